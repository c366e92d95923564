"""Whether a robot's root is still high and upright enough."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from orchestrator.worker.mjmodel.root import Coordinate, Root
from orchestrator.worker.mjmodel.structure import Bools, Floats
from orchestrator.worker.tasks.base import RewardAndTermination, States
from orchestrator.worker.tasks.task_options import CommonOptions, check_positive

Criterion: TypeAlias = Callable[[Floats], Bools]
"""Tells from ``qpos``, ``(n_envs, nq)``, in which environments the root is healthy; not for NaN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthOptions(CommonOptions):
    terminate_when_unhealthy: bool | None = None
    """Whether falling ends the episode; None: yes if the robot can fall and starts upright."""
    healthy_reward: float | None = None
    """Reward per control step while healthy; None: 1 where falling ends the episode, else 0."""
    min_height: float = 0.6
    """The root is unhealthy below this fraction of its starting height over the ground: less than 1,
    unless ``terminate_when_unhealthy`` is set."""
    max_tilt: float = 1.0
    """The root is unhealthy beyond this angle in radians from its starting orientation, apart from
    turns about the vertical."""

    def __post_init__(self) -> None:
        CommonOptions.__post_init__(self)
        check_positive(self, "max_tilt")


class Health:
    """Whether the root is high and upright enough compared with its starting pose.

    :raises ValueError: ``terminate_when_unhealthy`` is set, but the starting pose is unhealthy; or
        it is not set, and ``min_height`` alone makes the starting pose unhealthy.
    """

    def __init__(self, root: Root, pose: Floats, options: HealthOptions) -> None:
        self._x = root.x.address
        self._criteria = _criteria(root, pose, options)
        has_height = root.z is not None and root.start_height > 0
        if has_height and options.min_height >= 1 and options.terminate_when_unhealthy is None:
            raise ValueError(
                f"min_height = {options.min_height:g}: expected less than 1, as the root starts at 1, its starting "
                "height, and would be unhealthy from the start; to end no episode, set terminate_when_unhealthy = false"
            )
        stands = bool(self(pose[None])[0])
        if options.terminate_when_unhealthy and not stands:
            raise ValueError(
                f"the starting pose is unhealthy already (root body at height {root.start_height:g} over the "
                f"ground, min_height = {options.min_height:g}, max_tilt = {options.max_tilt:g}), so every episode "
                "would end at once; put the root body at its height over the ground, change these options, or leave "
                "out terminate_when_unhealthy"
            )
        terminates = options.terminate_when_unhealthy
        self.terminates = stands and bool(self._criteria) if terminates is None else terminates
        """Whether falling ends an episode."""
        self.bonus = 1.0 if self.terminates else 0.0
        """Reward of a control step while healthy."""
        if options.healthy_reward is not None:
            self.bonus = options.healthy_reward

    def __call__(self, qpos: Floats) -> Bools:
        """``(n_envs, nq)`` → ``(n_envs,)`` whether the root is healthy; False where its x is not
        finite. No coordinate but those of the root is looked at.
        """
        healthy: Bools = np.isfinite(qpos[:, self._x])
        for is_fine in self._criteria.values():
            healthy &= is_fine(qpos)
        return healthy

    def violations(self, qpos: Floats) -> list[str]:
        """Return which of ``height`` and ``tilt`` the first environment violates."""
        return [name for name, is_fine in self._criteria.items() if not is_fine(qpos)[0]]

    def judge(self, rewards: Floats, states: States) -> RewardAndTermination:
        """Return ``rewards``, to which the bonus for being healthy is added in place, and whether
        episodes terminate.
        """
        healthy = self(states.qpos)
        rewards += healthy if self.bonus == 1.0 else self.bonus * healthy
        return rewards, ~healthy if self.terminates else np.zeros(len(healthy), bool)


def _criteria(root: Root, pose: Floats, options: HealthOptions) -> dict[str, Criterion]:
    """Return what a healthy root fulfils, by name; empty if it cannot fall."""
    criteria: dict[str, Criterion] = {}
    if root.z is not None:
        least_rise = (options.min_height - 1.0) * root.start_height
        criteria["height"] = _is_high(root.z, float(pose[root.z.address]), least_rise)
    if root.pitch is not None:
        start = float(pose[root.pitch.address])
        criteria["tilt"] = _is_pitched_little(root.pitch, start, options.max_tilt)
    if root.quaternion is not None:
        up = world_up(pose[None, root.quaternion])[0]
        least_cosine = math.cos(min(options.max_tilt, math.pi))
        criteria["tilt"] = _is_upright(root.quaternion, up, least_cosine)
    return criteria


def _is_high(z: Coordinate, start: float, least_rise: float) -> Criterion:
    # Scalars as arrays are faster for NumPy.
    start_z = np.array(start)
    least = np.array(least_rise)

    def is_high(qpos: Floats) -> Bools:
        rise = qpos[:, z.address] - start_z
        is_risen: Bools = (rise if z.sign > 0 else -rise) > least
        return is_risen

    return is_high


def _is_pitched_little(pitch: Coordinate, start: float, most: float) -> Criterion:
    return lambda qpos: np.abs(qpos[:, pitch.address] - start) < most


def _is_upright(quaternion: slice, start_up: Floats, least_cosine: float) -> Criterion:
    """:param start_up: ``(3,)`` the world's up at the start, in the root's axes."""
    if start_up[0] == 0.0 and start_up[1] == 0.0 and start_up[2] > 0.0:
        most_squares = np.array((1.0 - least_cosine) / 2)

        def is_upright(qpos: Floats) -> Bools:  # cos(tilt) = 1 - 2 (x² + y²)
            squares = np.square(qpos[:, quaternion][:, 1:3])
            return squares[:, 0] + squares[:, 1] < most_squares

        return is_upright
    return lambda qpos: (world_up(qpos[:, quaternion]) * start_up).sum(axis=1) > least_cosine


def world_up(quaternions: Floats) -> Floats:
    """``(n, 4)`` unit quaternions (w x y z) → ``(n, 3)`` the world's up direction in the rotated
    frame.
    """
    w, x, y, z = quaternions.T
    return np.stack((2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)), axis=1)
