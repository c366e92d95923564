"""Task ``forward``: move along world x as fast as the robot can, without falling over.

The reward has the three terms of gymnasium's MuJoCo v5 locomotion environments (Hopper-v5,
Walker2d-v5, HalfCheetah-v5, Ant-v5; see their documentation):

    reward = forward_reward_weight · Δx / Δt + healthy_reward · healthy − ctrl_cost_weight · mean(action²)

with x in metres, Δt the control period in seconds and actions in [-1, 1]. Unlike in gymnasium, the
control cost is a mean over actuators, not a sum, so that one weight suits any number of actuators,
and the healthy range follows from the robot's own starting pose.

Observation: positions without the root's x and y, velocities clipped to ±10, then activations of
muscles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.core.task_names import TASKS
from orchestrator.worker.mjmodel.robot import joints_of_robot
from orchestrator.worker.mjmodel.structure import Floats, Numbers, addresses, as_index, posed_data
from orchestrator.worker.tasks.base import RewardAndTermination, States
from orchestrator.worker.tasks.health import HealthOptions
from orchestrator.worker.tasks.motion import UprightTask
from orchestrator.worker.tasks.terms import (
    UNLIMITED,
    Term,
    activation_terms,
    position_term,
    velocity_term,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardOptions(HealthOptions):
    forward_reward_weight: float = 1.0
    ctrl_cost_weight: float = 0.1


class Forward(UprightTask):
    """:raises ValueError: the robot has no root that can move along x."""

    Options = ForwardOptions
    measures = TASKS["forward"].measures

    def make_observation_terms(self) -> Sequence[Term]:
        model = self.model
        robot = joints_of_robot(model, posed_data(model, self.pose), self.root.body)
        positions, dofs = addresses(model, robot)
        return (
            position_term(model, as_index(np.setdiff1d(positions, self.horizontal))),
            velocity_term(model, as_index(dofs)),
            *activation_terms(model, UNLIMITED),
        )

    def reward_and_terminated(
        self, before: States, action: Numbers, after: States
    ) -> RewardAndTermination:
        options = self.options
        health = self.healthy
        rewards = self.distance_travelled(before, after)
        rewards /= self.step_s
        rewards *= options.forward_reward_weight
        effort = np.add.reduce(np.square(action), axis=1)
        effort /= action.shape[1]
        effort *= options.ctrl_cost_weight
        rewards -= effort
        if not health.terminates and not health.bonus:
            return rewards, np.zeros(len(rewards), bool)
        return health.judge(rewards, after)

    def measure(self, before: States, action: Numbers, after: States) -> Floats:
        return self.distance_travelled(before, after)[:, None]

    def distance_travelled(self, before: States, after: States) -> Floats:
        x = self.root.x
        moved: Floats = after.qpos[:, x.address] - before.qpos[:, x.address]
        return moved if x.sign > 0 else np.negative(moved, out=moved)
