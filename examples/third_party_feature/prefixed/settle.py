"""A task, which a job names by module and class: ``task = "prefixed.settle:Settle"``.

The robot comes to rest, in whatever pose:

    reward = exp(−mean(velocity²) / still²) − ctrl_cost_weight · mean(action²)

Observation: positions, and velocities within ±10. An episode never ends early.

The feature does not import this module: workers do, and whatever examines robots or plays policies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.worker.tasks import CommonOptions, States, Task
from orchestrator.worker.tasks.base import RewardAndTermination


@dataclass(frozen=True, slots=True, kw_only=True)
class SettleOptions(CommonOptions):
    """``task_options`` of a job."""

    still: float = 1.0
    """Speed, in metres or radians a second, at which most of the reward is lost."""
    ctrl_cost_weight: float = 0.01


class Settle(Task):
    Options = SettleOptions

    def observe(self, states: States) -> NDArray[Any]:
        velocities = np.clip(states.qvel, -10, 10)
        return np.concatenate((states.qpos, velocities), axis=1, dtype=np.float32)

    def reward_and_terminated(
        self, before: States, action: NDArray[Any], after: States
    ) -> RewardAndTermination:
        speed = np.square(after.qvel).mean(axis=1)
        effort = np.square(action).mean(axis=1)
        reward = np.exp(-speed / self.options.still**2) - self.options.ctrl_cost_weight * effort
        return reward, np.zeros(len(reward), dtype=np.bool_)
