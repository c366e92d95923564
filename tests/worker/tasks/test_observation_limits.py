"""The bounds to which tasks clip what they observe, which exported policies have, are those to which
they do."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from orchestrator.worker.envs.simulation import Simulation
from orchestrator.worker.envs.simulation_factory import make_simulation

ROOT = Path(__file__).parents[3]
ASSETS = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets"
OURS = {
    "forward": "quadruped",
    "stand": "quadruped",
    "track": "quadruped",
    "reach": "arm",
    "balance": "balancer",
}
OF_GYMNASIUM = {
    "Ant-v5": "ant",
    "HalfCheetah-v5": "half_cheetah",
    "Hopper-v5": "hopper",
    "InvertedDoublePendulum-v5": "inverted_double_pendulum",
    "Walker2d-v5": "walker2d_v5",
}
CLIPPED = {"Ant-v5", "Hopper-v5", "InvertedDoublePendulum-v5", "Walker2d-v5", *OURS}
ROWS = 40


def observed(made: Simulation) -> Any:
    """``(ROWS, n)`` observations of states far beyond all that a robot comes to."""
    made.reset()
    chance = np.random.default_rng(0)

    def wild(values: Any) -> Any:
        return chance.choice([-1e5, 1e5], values.shape) * chance.uniform(0.5, 1.5, values.shape)

    states = made.states
    changed = dataclasses.replace(
        states,
        qpos=wild(states.qpos),
        qvel=wild(states.qvel),
        goals=wild(states.goals),
        fields={name: wild(values) for name, values in states.fields.items()},
    )
    assert made.task.policy_terms is not None
    return made.task.policy_terms.observe(changed)


@pytest.mark.parametrize("history", [1, 3])
@pytest.mark.parametrize("observe", ["full", "proprioception"])
@pytest.mark.parametrize("task", sorted(OURS))
def test_bounds_are_those_to_which_a_task_of_ours_clips(
    task: str, observe: str, history: int
) -> None:
    robot = ROOT / "mjcf" / f"{OURS[task]}.xml"
    options = {"observe": observe, "history": history}
    look_at(make_simulation(robot, task, options, {}, n_envs=ROWS, seed=0), is_clipped=True)


@pytest.mark.parametrize("name", sorted(OF_GYMNASIUM))
def test_bounds_are_those_to_which_a_task_of_gymnasium_clips(name: str) -> None:
    robot = ASSETS / f"{OF_GYMNASIUM[name]}.xml"
    made = make_simulation(robot, f"gymnasium:{name}", {}, {}, n_envs=ROWS, seed=0)
    look_at(made, is_clipped=name in CLIPPED)


def look_at(made: Simulation, *, is_clipped: bool) -> None:
    values = observed(made)
    size = values.shape[1]
    assert made.task.policy_terms is not None
    low, high = made.task.policy_terms.limits
    assert np.isfinite(low).any() == is_clipped
    assert (low <= values).all()
    assert (values <= high).all()
    names = made.observation_names()
    assert names is not None
    for column, name in enumerate(names[:size]):
        is_reached = values[:, column].max() == high[column]
        assert is_reached == np.isfinite(high[column]), name
        is_angle = name.startswith(("sin", "cos"))
        assert is_reached or is_angle or values[:, column].max() > 1e3, name
