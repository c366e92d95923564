"""The table ``randomize`` of a job file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jobfile_helpers import HOPPER, problems, resolve

from orchestrator.core.errors import SpecError
from orchestrator.core.worker_spec import WorkerSpec


def test_tables_are_dotted_keys_and_jobs_add_to_the_defaults(place: Path) -> None:
    defaults = {"randomize": {"body": {"trunk": {"mass": "scale(0.8, 1.2)"}}}}
    own = {**HOPPER, "randomize": {"push.speed": "uniform(0, 1)"}}
    env = {"name": "other", "env": "Hopper-v5"}
    first, second = resolve(place, own, env, defaults=defaults).jobs
    assert first.spec.randomize == {
        "body.trunk.mass": "scale(0.8, 1.2)",
        "push.speed": "uniform(0, 1)",
    }
    assert second.spec.randomize == {}


def test_what_is_drawn_may_be_shown_to_the_critic(place: Path) -> None:
    drawn = {"randomize": {"action.delay": "choice(0, 1)"}, "asymmetric": True}
    [with_task] = resolve(place, {**HOPPER, **drawn}).jobs
    assert with_task.spec.asymmetric
    defaults = {"asymmetric": True, **drawn}
    _, with_env = resolve(
        place, HOPPER, {"name": "other", "env": "Hopper-v5"}, defaults=defaults
    ).jobs
    assert not with_env.spec.asymmetric


def test_distributions_may_vary_over_a_matrix(place: Path) -> None:
    matrix = {"randomize.geom.floor.friction": ["uniform(0.8, 1)", "uniform(0.4, 1.2)"]}
    jobs = resolve(place, {**HOPPER, "matrix": matrix}).jobs
    assert [job.spec.randomize["geom.floor.friction"] for job in jobs] == [
        "uniform(0.8, 1)",
        "uniform(0.4, 1.2)",
    ]
    assert len({job.job_id for job in jobs}) == 2


def test_an_attribute_of_several_numbers_takes_a_list_which_is_overridden_as_a_whole(
    place: Path,
) -> None:
    friction = ["uniform(0.4, linear(0.5, 1.2))", 0.005, 1]
    defaults = {
        "randomize": {"geom.floor.friction": ["scale(1, 2)", 0.1]},
    }
    own = {**HOPPER, "randomize": {"geom": {"floor": {"friction": friction}}}}
    matrix = {
        **HOPPER,
        "name": "m",
        "matrix": {"randomize.geom.floor.friction": [["scale(1, 2)", 0.2], "scale(1, 2)"]},
    }
    first, *others = resolve(place, own, matrix, defaults=defaults).jobs
    assert first.spec.randomize == {"geom.floor.friction": friction}
    assert WorkerSpec.from_json(first.spec.to_json()) == first.spec
    assert [job.spec.randomize["geom.floor.friction"] for job in others] == [
        ["scale(1, 2)", 0.2],
        "scale(1, 2)",
    ]


@pytest.mark.parametrize(
    ("job", "where", "message"),
    [
        (
            {"randomize": {"geom.a.friction": []}},
            "randomize",
            '"geom.a.friction": expected a distribution in the list',
        ),
        (
            {"randomize": {"geom.a.friction": [1, 0.5]}},
            "randomize",
            'numbers alone belong in model."geom.a.friction"',
        ),
        (
            {"randomize": {"geom.a.friction": ["unifrm(0, 1)", 0.5]}},
            "randomize",
            "\"geom.a.friction[0]\": 'unifrm(0, 1)': unknown distribution",
        ),
        (
            {"randomize": {"geom.a.friction": ["uniform(0, 1)", True]}},
            "randomize",
            '"geom.a.friction[1]": expected a distribution or a finite number, found True',
        ),
        (
            {"randomize": {"geom.a.friction[0]": ["scale(1, 2)"]}},
            "randomize",
            '"geom.a.friction[0]": expected a dist',
        ),
        (
            {"randomize": {"push.speed": ["uniform(0, 1)"]}},
            "randomize",
            '"push.speed": expected a distribution such',
        ),
        (
            {"randomize": {"body.trunk.mass": 1.2}},
            "randomize",
            '"body.trunk.mass": expected a distribution such as',
        ),
        (
            {"randomize": {"body.trunk.mass": "gaussian(0, 1)"}},
            "randomize",
            "unknown distribution 'gaussian'; expected",
        ),
        (
            {"randomize": {"body.trunk.mass": "linear(0.4, 1.2)"}},
            "randomize",
            "write it inside one: uniform(0, linear(0.4, 1.2))",
        ),
        (
            {"randomize": {"push.speed": "stages(0, 1)"}},
            "randomize",
            "inside one: uniform(0, stages",
        ),
        ({"randomize": {"body.trunk.mass": "scale(2, 1)"}}, "randomize", "expected low below high"),
        (
            {"randomize": {"wheel.a.size": "scale(1, 2)"}},
            "randomize",
            "or the key observation.noise",
        ),
        ({"randomize": {"terain": "rough(0.05)"}}, "randomize", "did you mean terrain?"),
        ({"randomize": {"bodi.trunk.mass": "scale(1, 2)"}}, "randomize", "did you mean body?"),
        (
            {"randomize": {"action.delay": "choice(-1, 1)"}},
            "randomize",
            "may draw -1; expected at least 0",
        ),
        ({"randomize": 3}, "randomize", "expected a table of distributions"),
        ({"asymmetric": True}, "asymmetric", "randomize has no such key"),
        (
            {
                "asymmetric": True,
                "randomize": {"observation.noise.*": "normal(0, 1)", "terrain": "rough(0.1)"},
            },
            "asymmetric",
            "randomize has no such key",
        ),
        (
            {
                "asymmetric": True,
                "randomize": {"action.delay": "choice(0, 1)"},
                "policy_kwargs": {"net_arch": {"pi": [], "vf": [8]}},
            },
            "asymmetric",
            "needs an actor with at least one hidden layer",
        ),
        (
            {"env": "Hopper-v5", "asymmetric": True},
            "asymmetric",
            "is for tasks, built-in or your own",
        ),
        (
            {"env": "Hopper-v5", "randomize": {"body.a.mass": "scale(1, 2)"}},
            "randomize",
            "is for tasks, built-in or",
        ),
    ],
)
def test_what_is_wrong_is_named_with_key_and_cure(
    place: Path, job: dict[str, Any], where: str, message: str
) -> None:
    with pytest.raises(SpecError) as error:
        resolve(place, {**HOPPER, **job})
    assert any(
        place == f"jobs[0].{where}" and message in text for place, text in problems(error)
    ), problems(error)
    assert all(text.count(" found ") <= 1 for _, text in problems(error)), problems(error)
