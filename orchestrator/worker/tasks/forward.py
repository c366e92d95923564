"""Task ``forward``: move along world x as fast as the robot can, without falling over.

In the manner of gymnasium's MuJoCo v5 locomotion environments (Hopper-v5, Walker2d-v5, HalfCheetah-v5,
Ant-v5; their documentation gives the same three terms):

    reward = forward_reward_weight · Δx / Δt + healthy_reward · healthy − ctrl_cost_weight · mean(action²)

Unlike there the control cost is a mean over actuators, not a sum, so that one weight suits a robot of
two motors and one of twenty, and what is healthy follows from the robot's own starting pose.

Observation: positions without the root's x and y, activations of muscles, then velocities clipped to ±10.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from orchestrator.worker.tasks.actions import Floats
from orchestrator.worker.tasks.base import Measure, States, Task
from orchestrator.worker.tasks.root import Health, HealthOptions, find_root
from orchestrator.worker.tasks.structure import addresses, joints_of_robot, posed

MAX_OBSERVED_VELOCITY = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardOptions(HealthOptions):
    forward_reward_weight: float = 1.0
    ctrl_cost_weight: float = 0.1


class Forward(Task):
    """:raises ValueError: the robot has no root that can move along x, or starts unhealthy."""

    Options = ForwardOptions
    control_period_s = 0.04
    measures = (Measure(name="distance_m", over_episode="sum"),)

    def __init__(self, model: mujoco.MjModel, options: ForwardOptions) -> None:
        super().__init__(model, options)
        self.root = find_root(model, self.pose)
        self.healthy = Health(model, self.root, self.pose, options)
        positions, self._dofs = addresses(model, joints_of_robot(model, posed(model, self.pose), self.root.body))
        self._positions = np.setdiff1d(positions, self.root.unseen)
        self.fields = ("act",) if model.na else ()

    def observe(self, states: States) -> NDArray[np.float32]:
        split = len(self._positions)
        end = split + len(self._dofs)
        observations = np.empty((len(states.qpos), end + self.model.na), np.float32)
        observations[:, :split] = states.qpos.take(self._positions, axis=1)
        velocities = observations[:, split:end]
        velocities[:] = states.qvel.take(self._dofs, axis=1)
        np.minimum(velocities, MAX_OBSERVED_VELOCITY, out=velocities)
        np.maximum(velocities, -MAX_OBSERVED_VELOCITY, out=velocities)
        if self.model.na:
            observations[:, end:] = states.fields["act"]
        return observations

    def reward_and_terminated(
        self, before: States, action: NDArray[Any], after: States
    ) -> tuple[Floats, NDArray[np.bool_]]:
        options = self.options
        velocity = self._moved(before, after) / self.step_s
        effort = np.square(action).sum(axis=1) / action.shape[1]
        rewards = options.forward_reward_weight * velocity - options.ctrl_cost_weight * effort
        healthy = self.healthy(after)
        rewards += self.healthy.bonus * healthy
        return rewards, ~healthy if self.healthy.terminates else np.zeros(len(healthy), bool)

    def measure(self, before: States, action: NDArray[Any], after: States) -> Floats:
        return self._moved(before, after)[:, None]

    def _moved(self, before: States, after: States) -> Floats:
        x = self.root.x
        return (after.qpos[:, x.address] - before.qpos[:, x.address]) * x.sign
