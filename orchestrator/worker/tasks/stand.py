"""Task ``stand``: keep standing in the starting pose while being pushed.

The reward has the form of the standing tasks of dm_control's walker and humanoid (Tassa et al.
2018, "DeepMind Control Suite", section on humanoid): a product of factors between 0 and 1, so that
none can make up for another. Gaussians around the robot's own starting pose replace the thresholds
that were chosen for one robot:

    reward = high · upright · (1 + pose) / 2 · (1 + still) / 2
             + healthy_reward · healthy − ctrl_cost_weight · mean(action²)

    high     = exp(−(Δheight / (0.2 · start height))²), where the root can move up and down
    upright  = cosine of the tilt against the starting pose, at least 0
    pose     = exp(−mean((joint position − starting position)²) / 0.3²)
    still    = exp(−(horizontal speed / brisk walking speed)²)

Every ``push_period_s`` a horizontal velocity in a random direction is added to the root's, as in
Rudin et al. 2021, "Learning to Walk in Minutes Using Massively Parallel Deep Reinforcement
Learning".

Heights are over the flat floor of the file, also on rough terrain: there a robot that stands is paid
less, by where it stands.

Observation: the world's up, velocity and spin in the root's own axes, joint positions against the
starting pose and joint velocities, height, activations of muscles; all within ±10. Ends when
unhealthy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mujoco
import numpy as np

from orchestrator.core.task_names import TASKS
from orchestrator.worker.mjmodel.root import horizontal_push
from orchestrator.worker.mjmodel.structure import Floats, Numbers
from orchestrator.worker.tasks.base import (
    RewardAndTermination,
    States,
    control_steps,
)
from orchestrator.worker.tasks.health import HealthOptions
from orchestrator.worker.tasks.motion import LEAST_HEIGHT_M, UprightTask, brisk_speed
from orchestrator.worker.tasks.task_options import NotNegative, Positive, PositiveInt
from orchestrator.worker.tasks.terms import Term, activation_terms

HIGH_SHARE = 0.2
POSE_WIDTH = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class StandOptions(HealthOptions):
    max_episode_steps: PositiveInt = 250
    healthy_reward: float | None = 0.0
    ctrl_cost_weight: float = 0.01
    push_speed: NotNegative | None = None
    """Metres a second that a push adds; None: a brisk walking speed for the robot (Froude number
    0.1)."""
    push_period_s: Positive = 2.0
    """Seconds between pushes."""


class Stand(UprightTask):
    """See the module."""

    Options = StandOptions
    measures = TASKS["stand"].measures

    def __init__(self, model: mujoco.MjModel, options: StandOptions) -> None:
        super().__init__(model, options)
        self._brisk = brisk_speed(self.root)
        self._drop = HIGH_SHARE * max(self.root.start_height, LEAST_HEIGHT_M)
        self._push_speed = self._brisk if options.push_speed is None else options.push_speed
        self.push_period = (
            control_steps(options.push_period_s, self.step_s) if self._push_speed else None
        )

    def push(self, rng: np.random.Generator) -> Floats:
        return horizontal_push(self.root, self.model.nv, self._push_speed, rng)

    def make_observation_terms(self) -> Sequence[Term]:
        height = Term(
            names=["height"], units=["m"], values=lambda states: self._height(states)[:, None]
        )
        return (*self.root_motion.terms(), height, *activation_terms(self.model))

    def reward_and_terminated(
        self, before: States, action: Numbers, after: States
    ) -> RewardAndTermination:
        options = self.options
        body = self.root_motion
        motion = body.motion(after)
        fall = (self._height(after) - self.root.start_height) / self._drop
        bent = (
            np.square(after.qpos.take(body.joints, axis=1) - body.home).sum(axis=1)
            / max(1, len(body.joints))
            / POSE_WIDTH**2
        )
        speed = np.square(motion.heading_velocity[:, :2]).sum(axis=1) / self._brisk**2
        rewards = np.exp(-fall * fall) * np.maximum((motion.up * body.root_up).sum(axis=1), 0.0)
        rewards *= (1.0 + np.exp(-bent)) * (1.0 + np.exp(-speed)) / 4.0
        rewards -= options.ctrl_cost_weight * np.square(action).sum(axis=1) / action.shape[1]
        return self.healthy.judge(rewards, after)

    def measure(self, before: States, action: Numbers, after: States) -> Floats:
        return self._height(after)[:, None]

    def _height(self, states: States) -> Floats:
        """``(n,)`` height of the root in metres over the ground that is below its starting position in
        the file; what is below it now, as on rough terrain or a step, is not looked at.
        """
        return self.root.start_height + self.healthy.rise(states.qpos)
