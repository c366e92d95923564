"""The table ``curriculum``: stages, and the conditions between them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from jobfile_helpers import HOPPER, problems, resolve

from orchestrator.core.errors import SpecError
from orchestrator.features.curriculum.conditions import Condition, parse_condition, resolve_column
from orchestrator.features.curriculum.part import CurriculumSettings

STAND = {**HOPPER, "task": "stand"}


STAGES = {"task_options": {"push_speed": "stages(0, 0.5, 1)"}}


RETURN = {"curriculum": {"advance": "ep_rew_mean > 80"}}


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("ep_rew_mean > 800", Condition("ep_rew_mean", ">", 800.0)),
        (" rollout/ep_len_mean>=1e2 ", Condition("rollout/ep_len_mean", ">=", 100.0)),
        ("approx_kl<0.02", Condition("approx_kl", "<", 0.02)),
        ("value_loss <= -1", Condition("value_loss", "<=", -1.0)),
    ],
)
def test_a_condition_compares_a_column_with_a_number(text: str, condition: Condition) -> None:
    found = parse_condition(text)
    assert found == condition
    above, below = ({found.column: condition.threshold + by} for by in (0.5, -0.5))
    assert found.holds(above) == (">" in text)
    assert found.holds(below) == ("<" in text)
    assert not found.holds({found.column: None})
    assert not found.holds({})


def test_a_column_is_found_by_its_last_part() -> None:
    columns = ["rollout/ep_rew_mean", "train/loss"]
    assert (
        resolve_column("ep_rew_mean", columns)
        == resolve_column("rollout/ep_rew_mean", columns)
        == columns[0]
    )


def test_one_condition_serves_all_stages_or_each_has_its_own(place: Path) -> None:
    same, each, plain = resolve(
        place,
        {**STAND, **STAGES, **RETURN},
        {
            **STAND,
            "name": "b",
            **STAGES,
            "curriculum": {"advance": ["ep_len_mean >= 90", "loss < 1"], "episodes": 5},
        },
        {**STAND, "name": "c"},
        defaults={"curriculum": {"episodes": 30}},
    ).jobs
    assert same.spec.parts["curriculum"] == CurriculumSettings(
        advance=("rollout/ep_rew_mean > 80.0",) * 2, advance_episodes=30
    )
    assert each.spec.parts["curriculum"] == CurriculumSettings(
        advance=("rollout/ep_len_mean >= 90.0", "train/loss < 1.0"), advance_episodes=5
    )
    assert plain.spec.parts == {}


def test_an_algorithm_class_has_stages_too(place: Path) -> None:
    (job,) = resolve(place, {**STAND, **STAGES, **RETURN, "algo": "mine:Class"}).jobs
    assert job.spec.parts["curriculum"].advance == ("rollout/ep_rew_mean > 80.0",) * 2


def test_randomised_numbers_have_stages_too_and_a_matrix_may_vary_conditions(place: Path) -> None:
    drawn = {"randomize": {"push.speed": "uniform(0, stages(0, 1))"}}
    jobs = resolve(
        place,
        {
            **STAND,
            **drawn,
            "matrix": {"curriculum.advance": ["ep_len_mean > 5", "ep_len_mean > 9"]},
        },
    )
    assert [job.spec.parts["curriculum"].advance for job in jobs.jobs] == [
        ("rollout/ep_len_mean > 5.0",),
        ("rollout/ep_len_mean > 9.0",),
    ]
    assert len({job.job_id for job in jobs.jobs}) == 2


@pytest.mark.parametrize(
    ("job", "where", "message"),
    [
        (
            {**STAGES},
            "task_options.push_speed",
            "has 3 stages, and nothing advances them; set curriculum.advance",
        ),
        ({**RETURN}, "curriculum.advance", "is for numbers with stages, and this job has none"),
        (
            {**STAGES, **RETURN, "randomize": {"push.speed": "uniform(0, stages(0, 1))"}},
            "task_options.push_speed",
            "task_options.push_speed has 3, randomize.push.speed has 2",
        ),
        (
            {**STAGES, "curriculum": {"advance": ["ep_rew_mean > 1"] * 3}},
            "curriculum.advance",
            "has 3 conditions for 3 stages; expected one, or 2",
        ),
        (
            {"curriculum": {"advance": "ep_rew_mean"}},
            "curriculum.advance",
            "is no condition: expected a column of prog",
        ),
        ({"curriculum": {"advance": "loss > many"}}, "curriculum.advance", "is no condition"),
        ({"curriculum": {"advance": 800}}, "curriculum.advance", "expected a condition such as"),
        ({"curriculum": {"advence": "loss > 1"}}, "curriculum.advence", 'did you mean "advance"?'),
        (
            {**STAGES, "curriculum": {"advance": "ep_rew_men > 1"}},
            "curriculum.advance",
            'no column "ep_rew_men"; did you mean "ep_rew_mean"? It has rollout/ep_rew_mean, rollout/ep_len_mean, time',
        ),
        (
            {**STAGES, "algo": "sac", "curriculum": {"advance": "approx_kl < 1"}},
            "curriculum.advance",
            'no column "approx_kl"; It has rollout/ep_rew_mean',
        ),
        (
            {
                **STAGES,
                "algo": "sac",
                "sac": {"ent_coef": 0.1},
                "curriculum": {"advance": "ent_coef_loss < 1"},
            },
            "curriculum.advance",
            'no column "ent_coef_loss"; did you mean "ent_coef"?',
        ),
        (
            {
                "randomize": {"geom.a.friction": "uniform(0, stages(1, 2))"},
                "task_options": {"max_episode_steps": "stages(10, 20, 30)"},
                **RETURN,
            },
            "task_options.max_episode_steps",
            "randomize.geom.a.friction has 2",
        ),
        (
            {"randomize": {"push.speed": "uniform(stages(0, 1), stages(1, 2, 3))"}, **RETURN},
            "randomize.push.speed",
            "randomize.push.speed has 2, randomize.push.speed has 3",
        ),
        (
            {"randomize": {"push.speed": "uniform(stages(0, -1, 0), 2)"}, **RETURN},
            "randomize",
            '"push.speed": may draw -1; expected at least 0',
        ),
        (
            {**STAGES, "curriculum": {"advance": "fps > 1"}},
            "curriculum.advance",
            "depends on the speed of the machine",
        ),
        (
            {**STAGES, "curriculum": {"advance": "loss < 1", "episodes": 200}},
            "curriculum.episodes",
            "is 200, and returns are averaged over ppo.stats_window_size = 100 episodes",
        ),
        (
            {
                **STAGES,
                "algo": "mine:Class",
                "algo_kwargs": {"stats_window_size": 9},
                "curriculum": {"advance": "ep_rew_mean > 1", "episodes": 10},
            },
            "curriculum.episodes",
            "is 10, and returns are averaged over algo_kwargs.stats_window_size = 9 episodes",
        ),
        (
            {**STAGES, **RETURN, "total_timesteps": 4096, "n_envs": 1, "ppo": {"n_steps": 2048}},
            "curriculum.advance",
            "there are 3 stages, and total_timesteps = 4_096 makes 2 iterations",
        ),
        *(
            (
                {**STAGES, **RETURN, "total_timesteps": endless},
                "total_timesteps",
                "expected a whole number from 1 to",
            )
            for endless in (math.inf, 0, 10**13)
        ),
        (
            {"task": None, "env": "Hopper-v5", **RETURN},
            "curriculum",
            "is for tasks, built-in or your own",
        ),
    ],
)
def test_what_is_wrong_is_named_with_key_and_cure(
    place: Path, job: dict[str, Any], where: str, message: str
) -> None:
    given = {key: value for key, value in {**STAND, **job}.items() if value is not None}
    with pytest.raises(SpecError) as error:
        resolve(place, given)
    assert any(
        place == f"jobs[0].{where}" and message in text for place, text in problems(error)
    ), problems(error)
