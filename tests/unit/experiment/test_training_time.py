"""How long a job is expected to take, which decides the order of launch."""

from __future__ import annotations

import pytest
from supervisor_helpers import make_job

from orchestrator.core.job import Job
from orchestrator.examination import training_time

STEPS = 1_000_000


def job(ranks: int = 1, **spec: object) -> Job:
    return make_job(ranks=ranks, spec={"total_timesteps": STEPS, "eval_episodes": 0, **spec})


def test_a_training_takes_its_physics_and_the_rest() -> None:
    of_job, rest = training_time.of_job, STEPS * training_time.STEP_S
    assert of_job(job(), 3e-5) == pytest.approx(rest + 30)
    assert of_job(job(), 0.0) == pytest.approx(rest + 1e6 * training_time.UNMEASURED_S)
    assert of_job(job(eval_episodes=10), 3e-5) == pytest.approx(rest + 30.3)
    wide = {"n_envs": 4}
    assert (
        of_job(job(ranks=2, **wide), 3e-5)
        < of_job(job(cores=2, **wide), 3e-5)
        < of_job(job(**wide), 3e-5)
    )
    assert of_job(job(cores=2), 3e-5) == of_job(job(), 3e-5), (
        "a single environment is stepped on one core"
    )


@pytest.mark.parametrize(
    "slow", [{"learner": "sb3"}, {"policy_kwargs": {"activation_fn": "silu"}}, {"algo": "sac"}]
)
def test_learners_of_stable_baselines3_take_longer(slow: dict[str, object]) -> None:
    assert training_time.of_job(job(**slow), 3e-5) > 2 * training_time.of_job(job(), 3e-5)


def test_physics_is_that_of_all_steps_in_a_control_period() -> None:
    figures = {"timestep_s": 0.005, "steps_per_s": 100_000.0, "control_period_s": 0.04}
    assert training_time.physics_s(figures) == pytest.approx(8 / 100_000)
    assert (
        training_time.physics_s(figures | {"steps_per_s": None})
        == training_time.physics_s({})
        == 0.0
    )
