"""The table ``curriculum``: stages, and the conditions between them."""

from __future__ import annotations

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
        advance=("rollout/ep_rew_mean > 80.0",) * 2, episodes=30
    )
    assert each.spec.parts["curriculum"] == CurriculumSettings(
        advance=("rollout/ep_len_mean >= 90.0", "train/loss < 1.0"), episodes=5
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
    ("job", "where"),
    [
        ({"curriculum": {"advance": "loss > many"}}, "curriculum.advance"),
        (
            {**STAGES, "algo": "sac", "curriculum": {"advance": "approx_kl < 1"}},
            "curriculum.advance",
        ),
        (
            {
                **STAGES,
                "algo": "sac",
                "sac": {"ent_coef": 0.1},
                "curriculum": {"advance": "ent_coef_loss < 1"},
            },
            "curriculum.advance",
        ),
        (
            {
                "randomize": {"geom.a.friction": "uniform(0, stages(1, 2))"},
                "task_options": {"max_episode_steps": "stages(10, 20, 30)"},
                **RETURN,
            },
            "task_options.max_episode_steps",
        ),
        (
            {"randomize": {"push.speed": "uniform(stages(0, 1), stages(1, 2, 3))"}, **RETURN},
            "randomize.push.speed",
        ),
        ({"randomize": {"push.speed": "uniform(stages(0, -1, 0), 2)"}, **RETURN}, "randomize"),
        (
            {
                **STAGES,
                "algo": "mine:Class",
                "algo_kwargs": {"stats_window_size": 9},
                "curriculum": {"advance": "ep_rew_mean > 1", "episodes": 10},
            },
            "curriculum.episodes",
        ),
    ],
)
def test_what_is_wrong_is_refused_at_its_key(place: Path, job: dict[str, Any], where: str) -> None:
    """The mistakes whose messages ``problems.txt`` has not."""
    with pytest.raises(SpecError) as error:
        resolve(place, {**STAND, **job})
    assert [place for place, _ in problems(error)] == [f"jobs[0].{where}"]
