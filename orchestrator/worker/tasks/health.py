"""Whether a robot's root is still high and upright enough."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from orchestrator.worker.mjmodel.root import Root
from orchestrator.worker.mjmodel.structure import Bools, Floats
from orchestrator.worker.tasks.base import RewardAndTermination, States
from orchestrator.worker.tasks.task_options import CommonOptions, Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthOptions(CommonOptions):
    terminate_when_unhealthy: bool | None = None
    """Whether falling ends the episode; None: yes if the robot can fall and starts upright."""
    healthy_reward: float | None = None
    """Reward per control step while healthy; None: 1 where falling ends the episode, else 0."""
    min_height: float = 0.6
    """The root is unhealthy below this fraction of its starting height over the ground: less than 1,
    unless ``terminate_when_unhealthy`` is set."""
    max_tilt: Positive = 1.0
    """The root is unhealthy beyond this angle in radians from its starting orientation, apart from
    turns about the vertical."""


class Health:
    """Whether the root is high and upright enough compared with its starting pose.

    :raises ValueError: ``min_height`` alone makes the starting pose unhealthy.
    """

    def __init__(self, root: Root, pose: Floats, options: HealthOptions) -> None:
        if (
            options.min_height >= 1
            and options.terminate_when_unhealthy is None
            and root.z is not None
            and root.start_height > 0
        ):
            raise ValueError(
                f"min_height = {options.min_height:g}: expected less than 1, as the root starts at 1, its starting "
                "height; to end no episode, set terminate_when_unhealthy = false"
            )
        self._root = root
        self._pose = pose
        self._least_rise = np.array((options.min_height - 1.0) * root.start_height)
        self._max_tilt = options.max_tilt
        self._most_squares = np.array((1.0 - math.cos(min(options.max_tilt, math.pi))) / 2)
        w, x, y, z = (1.0, 0.0, 0.0, 0.0) if root.quaternion is None else pose[root.quaternion]
        self._to_tilt = np.array([[-x, w, -z, y], [-y, z, w, -x]])
        """Turns the quaternion of a free joint into the components x and y of the one that leads there
        from the starting orientation, in world axes."""
        self._starts_level = x == 0 and y == 0
        can_fall = root.z is not None or root.pitch is not None or root.quaternion is not None
        terminates = options.terminate_when_unhealthy
        if terminates is None:
            terminates = can_fall and bool(self(pose[None])[0])
        self.terminates = terminates
        """Whether falling ends an episode."""
        self.bonus = float(terminates) if options.healthy_reward is None else options.healthy_reward
        """Reward of a control step while healthy."""

    def __call__(self, qpos: Floats) -> Bools:
        """``(n_envs, nq)`` → ``(n_envs,)`` whether the root is healthy; False where its x is not
        finite. No coordinate but those of the root is looked at.
        """
        healthy: Bools = np.isfinite(qpos[:, self._root.x.address])
        healthy &= self._is_high(qpos)
        healthy &= self._is_upright(qpos)
        return healthy

    def violations(self, qpos: Floats) -> list[str]:
        """Return which of ``height`` and ``tilt`` the first environment violates."""
        criteria = {"height": self._is_high(qpos), "tilt": self._is_upright(qpos)}
        return [name for name, is_fine in criteria.items() if not is_fine[0]]

    def judge(self, rewards: Floats, states: States) -> RewardAndTermination:
        """Return ``rewards``, to which the bonus for being healthy is added in place, and whether
        episodes terminate.
        """
        healthy = self(states.qpos)
        rewards += self.bonus * healthy
        return rewards, ~healthy if self.terminates else np.zeros(len(healthy), bool)

    def rise(self, qpos: Floats) -> Floats:
        """``(n_envs,)`` metres by which the root is higher than at the start; 0 where it cannot rise."""
        z = self._root.z
        if z is None:
            return np.zeros(len(qpos))
        rise: Floats = qpos[:, z.address] - self._pose[z.address]
        return rise if z.sign > 0 else -rise

    def _is_high(self, qpos: Floats) -> Bools:
        if self._root.z is None:
            return np.ones(len(qpos), bool)
        return self.rise(qpos) > self._least_rise

    def _is_upright(self, qpos: Floats) -> Bools:
        root = self._root
        if root.quaternion is not None:  # cos(tilt) = 1 - 2 (x² + y²)
            quaternions = qpos[:, root.quaternion]
            parts = quaternions[:, 1:3]
            if not self._starts_level:
                parts = np.add.reduce(quaternions[:, None] * self._to_tilt, axis=2)
            squares = np.square(parts)
            is_upright: Bools = squares[:, 0] + squares[:, 1] < self._most_squares
            return is_upright
        if root.pitch is None:
            return np.ones(len(qpos), bool)
        pitch = root.pitch.address
        is_little: Bools = np.abs(qpos[:, pitch] - self._pose[pitch]) < self._max_tilt
        return is_little
