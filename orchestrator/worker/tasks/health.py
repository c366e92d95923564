"""Whether a robot's root is still high and upright enough."""

from __future__ import annotations

import math
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from orchestrator.worker.mjmodel.root import Root
from orchestrator.worker.mjmodel.structure import Floats
from orchestrator.worker.tasks.base import RewardAndTermination, States
from orchestrator.worker.tasks.task_options import CommonOptions, check_positive


def world_up(quaternions: Floats) -> Floats:
    """``(n, 4)`` unit quaternions (w x y z) → ``(n, 3)`` the world's up direction in the rotated
    frame.
    """
    w, x, y, z = quaternions.T
    return np.stack((2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)), axis=1)


def outer(quaternions: Floats) -> Floats:
    """``(n, 4)`` → ``(n, 16)`` products of every two components, a new array."""
    products: Floats = quaternions[:, :, None] * quaternions[:, None, :]
    return products.reshape(-1, 16)


def uprightness(up: Floats) -> Floats:
    """``(16,)`` M with ``outer(q) · M = world_up(q) · up`` for every unit quaternion, which is
    faster to compute.
    """
    a, b, c = up
    return np.array([c, b, -a, 0.0, b, -c, 0.0, a, -a, 0.0, -c, b, 0.0, a, b, c])


def _uprightness_at_start(root: Root, pose: Floats) -> Floats | None:
    """:func:`uprightness` for the starting pose of a root that turns freely; None where it starts
    upright, as the tilt is faster to compute then.
    """
    if root.quaternion is None:
        return None
    up = world_up(pose[None, root.quaternion])[0]
    is_upright = up[0] == 0.0 and up[1] == 0.0 and up[2] > 0.0
    return None if is_upright else uprightness(up)


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

    def __init__(
        self, model: mujoco.MjModel, root: Root, pose: Floats, options: HealthOptions
    ) -> None:
        self._root = root
        self._pose = pose
        # Scalars as arrays are faster for NumPy.
        self._start_z = np.array(0.0 if root.z is None else pose[root.z.address])
        self._min_rise = np.array((options.min_height - 1.0) * root.start_height)
        self._max_tilt = options.max_tilt
        self._min_cosine = math.cos(min(options.max_tilt, math.pi))
        self._max_squares = np.array((1.0 - self._min_cosine) / 2)
        self._uprightness = _uprightness_at_start(root, pose)
        has_height = root.z is not None and root.start_height > 0
        if has_height and options.min_height >= 1 and options.terminate_when_unhealthy is None:
            raise ValueError(
                f"min_height = {options.min_height:g}: expected less than 1, as the root starts at 1, its starting "
                "height, and would be unhealthy from the start; to end no episode, set terminate_when_unhealthy = false"
            )
        stands = bool(self(States(pose[None], np.zeros((1, model.nv))))[0])
        if options.terminate_when_unhealthy and not stands:
            raise ValueError(
                f"the starting pose is unhealthy already (root body at height {root.start_height:g} over the "
                f"ground, min_height = {options.min_height:g}, max_tilt = {options.max_tilt:g}), so every episode "
                "would end at once; put the root body at its height over the ground, change these options, or leave "
                "out terminate_when_unhealthy"
            )
        can_fall = any(part is not None for part in (root.z, root.pitch, root.quaternion))
        terminates = options.terminate_when_unhealthy
        self.terminates = stands and can_fall if terminates is None else terminates
        """Whether falling ends an episode."""
        self.bonus = 1.0 if self.terminates else 0.0
        """Reward of a control step while healthy."""
        if options.healthy_reward is not None:
            self.bonus = options.healthy_reward

    def __call__(self, states: States) -> NDArray[np.bool_]:
        """``(n_envs,)`` whether the root is healthy; False where its x is not finite, or its height,
        pitch or tilt is NaN. No other coordinate is looked at.
        """
        root = self._root
        qpos = states.qpos
        healthy = np.isfinite(qpos[:, root.x.address])
        if root.z is not None:
            rise = qpos[:, root.z.address] - self._start_z
            healthy &= (rise if root.z.sign > 0 else -rise) > self._min_rise
        if root.pitch is not None:
            healthy &= (
                np.abs(qpos[:, root.pitch.address] - self._pose[root.pitch.address])
                < self._max_tilt
            )
        if root.quaternion is not None:
            quaternions = qpos[:, root.quaternion]
            if self._uprightness is None:  # cos(tilt) = 1 - 2 (x² + y²)
                squares = np.square(quaternions[:, 1:3])
                healthy &= squares[:, 0] + squares[:, 1] < self._max_squares
            else:
                products = outer(quaternions)
                products *= self._uprightness
                healthy &= np.add.reduce(products, axis=1) > self._min_cosine
        return healthy

    def violations(self, qpos: Floats) -> list[str]:
        """Return which of ``height`` and ``tilt`` the first environment violates."""
        if self(States(qpos, np.zeros_like(qpos)))[0]:
            return []
        z = self._root.z
        if z is None:
            return ["tilt"]
        rise = float(z.sign * (qpos[0, z.address] - self._start_z))
        return ["tilt"] if rise > self._min_rise else ["height"]

    def judge(self, rewards: Floats, states: States) -> RewardAndTermination:
        """``rewards`` with the bonus for being healthy added in place, and whether episodes
        terminate.
        """
        healthy = self(states)
        rewards += healthy if self.bonus == 1.0 else self.bonus * healthy
        return rewards, ~healthy if self.terminates else np.zeros(len(healthy), bool)
