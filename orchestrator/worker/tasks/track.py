"""Task ``track``: walk at the commanded velocity, also after the command changes.

The command is a velocity forward, one to the left and a rate of turning, in the robot's heading
frame (world axes turned about the vertical with the robot), drawn anew every ``command_period_s``.
The reward has the terms of Rudin et al. 2021, "Learning to Walk in Minutes Using Massively Parallel
Deep Reinforcement Learning", appendix on rewards:

    reward = exp(−|Δv|² / σ²) + ½ · exp(−Δω² / σ_ω²) − ½ · |Δv| / speed + healthy_reward · healthy
             − bounce_cost_weight · min(10, (v_up² + (½ · height · |roll and pitch rate|)²) / speed²)
             − ctrl_cost_weight · mean(action²) − smoothness_weight · mean((action − last action)²)

with Δv, Δω the commanded minus the actual velocities, ``speed`` the largest command forward or
backward (``sideways_speed`` does not count), σ half of it and σ_ω half of the largest turning rate,
at least 0.1 (in the paper σ = ½ for speeds up to 1). Heights are over the flat floor of the file, also
on rough terrain. The paper's
weights fit one robot and torque control; here costs are relative to the robot's speed and height,
and means over actuators. The third term is not from the paper: far from the command the first is so
flat that a standing robot would not learn to walk in a few hundred thousand steps.
``healthy_reward`` compensates for it, so that falling is never better than standing.

Observation: the world's up (minus projected gravity), velocity and spin in the root's own axes,
joint positions against the starting pose, joint velocities, the command, the last action,
activations of muscles; all within ±10. Ends when unhealthy. For a planar root the command is a
velocity along x alone, whatever ``sideways_speed`` and ``turn_rate`` are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import mujoco
import numpy as np

from orchestrator.core.task_names import TASKS
from orchestrator.worker.mjmodel.joints import HINGE
from orchestrator.worker.mjmodel.structure import Floats, Numbers, driven_dofs, posed_data
from orchestrator.worker.tasks.base import (
    RewardAndTermination,
    States,
    control_steps,
)
from orchestrator.worker.tasks.health import HealthOptions
from orchestrator.worker.tasks.input_names import Labels
from orchestrator.worker.tasks.motion import Motion, UprightTask, brisk_speed
from orchestrator.worker.tasks.task_options import NotNegative, Positive, PositiveInt
from orchestrator.worker.tasks.terms import LAST_ACTION, Term, activation_terms, last_action

COMMANDS = Labels(
    ["command forward", "command left", "command turn"],
    ["m/s", "m/s", "rad/s"],
)
TURN_WEIGHT = 0.5
FAR_WEIGHT = 0.5
LEAST_TURN = 0.2
"""Least scale of turning in radians a second, for robots that are never commanded to turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackOptions(HealthOptions):
    max_episode_steps: PositiveInt = 500
    healthy_reward: float | None = 0.5
    forward_speed: Positive | None = None
    """Fastest command forward in metres a second; None: a brisk walk for the robot's height (Froude
    number 0.1)."""
    backward_speed: NotNegative = 0.0
    """Fastest command backward in metres a second."""
    sideways_speed: NotNegative | None = None
    """Fastest command to either side in metres a second; None: half of ``forward_speed`` where legs
    can swing sideways, else 0."""
    turn_rate: NotNegative = 0.5
    """Fastest command to turn to either side in radians a second."""
    command_period_s: Positive = 4.0
    """Seconds between commands."""
    bounce_cost_weight: float = 0.05
    ctrl_cost_weight: float = 0.01
    smoothness_weight: float = 0.01


class Track(UprightTask):
    """See the module."""

    Options = TrackOptions
    fields = (LAST_ACTION,)
    measures = TASKS["track"].measures

    def __init__(self, model: mujoco.MjModel, options: TrackOptions) -> None:
        super().__init__(model, options)
        self.goal_period = control_steps(options.command_period_s, self.step_s)
        forward = options.forward_speed
        if forward is None:
            forward = brisk_speed(self.root)
        commands = [(-options.backward_speed, forward)]
        if self.root.quaternion is not None:
            sideways = options.sideways_speed
            if sideways is None:
                sideways = forward / 2 if swings_sideways(model, self.pose) else 0.0
            commands += [(-sideways, sideways), (-options.turn_rate, options.turn_rate)]
        self._low, self._high = np.array(commands).T
        self.goal_size = len(commands)
        self._speed = max(forward, options.backward_speed)
        self._turn = max(options.turn_rate, LEAST_TURN)

    def sample_goal(self, rng: np.random.Generator) -> Floats:
        """Return ``(vx, vy, yaw rate)`` in metres and radians a second; ``(vx,)`` for a planar
        root.
        """
        command: Floats = rng.uniform(self._low, self._high)
        return command

    def goal_labels(self) -> Labels:
        return COMMANDS.take(slice(self.goal_size))

    def make_observation_terms(self) -> Sequence[Term]:
        return (
            *self.root_motion.terms(),
            self.goal_term(),
            last_action(self.model),
            *activation_terms(self.model),
        )

    def reward_and_terminated(
        self, before: States, action: Numbers, after: States
    ) -> RewardAndTermination:
        options = self.options
        motion = self.root_motion.motion(after)
        error = self._squared_error(motion, after.goals)
        rewards = np.exp(error / -((self._speed / 2) ** 2))
        rewards -= FAR_WEIGHT * np.sqrt(error) / self._speed
        if self.goal_size == 3:
            turning = (after.goals[:, 2] - motion.yaw_rate) / (self._turn / 2)
            rewards += TURN_WEIGHT * np.exp(-turning * turning)
        rolling = np.square(motion.spin).sum(axis=1) - np.square(motion.yaw_rate)
        bounce = np.square(motion.heading_velocity[:, 2])
        bounce += rolling * (self.root.start_height / 2) ** 2
        rewards -= options.bounce_cost_weight * np.minimum(bounce / self._speed**2, 10.0)
        change = action - before.fields[LAST_ACTION]
        effort = options.ctrl_cost_weight * np.square(action)
        effort += options.smoothness_weight * np.square(change)
        rewards -= effort.sum(axis=1) / action.shape[1]
        return self.healthy.judge(rewards, after)

    def measure(self, before: States, action: Numbers, after: States) -> Floats:
        errors = np.sqrt(self._squared_error(self.root_motion.motion(after), after.goals))
        return np.column_stack((errors, self.distance_travelled(before, after)))

    def distance_travelled(self, before: States, after: States) -> Floats:
        """The way of the root in the horizontal plane: commands turn it around and back."""
        squares = np.square(after.qpos[:, self.horizontal] - before.qpos[:, self.horizontal])
        distance: Floats = np.sqrt(squares.sum(axis=1))
        return distance

    def _squared_error(self, motion: Motion, goals: Floats) -> Floats:
        """``(n,)`` square of the difference to the commanded velocity in m²/s²."""
        planar = min(2, self.goal_size)
        errors = goals[:, :planar] - motion.heading_velocity[:, :planar]
        squares: Floats = np.square(errors).sum(axis=1)
        return squares


def swings_sideways(model: mujoco.MjModel, pose: Floats) -> bool:
    """Return whether an actuator turns a joint about an axis that lies more along world x than along
    y and z.
    """
    data = posed_data(model, pose)
    driven = driven_dofs(model, data)[model.jnt_dofadr]
    is_hinge = model.jnt_type == int(HINGE)
    is_along_x = np.abs(data.xaxis[:, 0]) > math.sqrt(0.5)
    return bool((driven & is_hinge & is_along_x).any())
