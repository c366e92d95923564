"""The table ``randomize`` of a job file."""

from __future__ import annotations

from pathlib import Path

from jobfile_helpers import HOPPER, resolve


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
