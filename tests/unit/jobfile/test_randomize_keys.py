"""The table ``randomize`` of a job file."""

from __future__ import annotations

from pathlib import Path

from jobfile_helpers import HOPPER, resolve

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
