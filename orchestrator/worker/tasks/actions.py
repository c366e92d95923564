"""Mappings from a policy's actions to the robot's controls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import mujoco
import numpy as np
from numpy.typing import NDArray

from orchestrator.worker.mjmodel.actuators import (
    actuator_of_control,
    lengths_in_pose,
    position_controls,
    scalar_gear,
    scalar_joints,
)
from orchestrator.worker.mjmodel.structure import Floats, Numbers

SERVO_SCALE = 0.5
"""Default share of a servo's range around its keyframe: the robot explores near its starting
pose."""


class RepeatedRows:
    """Rows of numbers, each repeated for every environment: NumPy computes faster with arrays of
    equal shapes.

    :param rows: ``(n,)`` each.
    """

    def __init__(self, *rows: Numbers) -> None:
        self._rows = rows
        self._most = 0
        self._repeated: list[Numbers] = []
        """``(_most, n)`` each."""

    def of(self, count: int) -> list[Numbers]:
        """``(count, n)`` each."""
        if count > self._most:
            self._most = count
            self._repeated = [np.tile(row, (count, 1)) for row in self._rows]
        if count == self._most:
            return self._repeated
        return [repeated[:count] for repeated in self._repeated]


class Scaled:
    """Actions in [-1, 1] → ``middle + half · action``, clipped to the controls' limits; ``(nu,)``
    each.
    """

    def __init__(self, middle: Floats, half: Floats, ctrl_low: Floats, ctrl_high: Floats) -> None:
        self.middle = middle
        self.half = half
        self.ctrl_low = ctrl_low
        self.ctrl_high = ctrl_high
        self.low = np.full(len(middle), -1.0, np.float32)
        self.high = np.full(len(middle), 1.0, np.float32)
        self._action_bounds = RepeatedRows(-np.ones(len(middle)), np.ones(len(middle)))
        self._mapping = RepeatedRows(middle, half, ctrl_low, ctrl_high)

    def taken(self, actions: Numbers) -> Floats:
        """``(n_envs, nu)`` the actions that count in rewards: clipped to their bounds."""
        low, high = self._action_bounds.of(len(actions))
        taken: Floats = np.array(actions, np.float64)
        np.maximum(taken, low, out=taken)
        np.minimum(taken, high, out=taken)
        return taken

    def ctrl(self, taken: Numbers) -> Floats:
        """``(n_envs, nu)`` values of ``MjData.ctrl``."""
        middle, half, low, high = self._mapping.of(len(taken))
        ctrl: Floats = taken * half
        ctrl += middle
        np.maximum(ctrl, low, out=ctrl)
        np.minimum(ctrl, high, out=ctrl)
        return ctrl


@dataclass(frozen=True, slots=True)
class Direct:
    """Actions are controls, as in gymnasium's MuJoCo environments; MuJoCo itself clips them to
    ``ctrlrange``.
    """

    low: NDArray[np.float32]
    high: NDArray[np.float32]

    def taken(self, actions: Numbers) -> Numbers:
        # The bits of sums over a row depend on the memory order.
        return np.ascontiguousarray(actions)

    def ctrl(self, taken: Numbers) -> Numbers:
        return taken


ActionMap: TypeAlias = Scaled | Direct
"""What turns the actions of a policy, within ``low`` and ``high``, into controls."""


def scaled_actions(model: mujoco.MjModel, key: int, action_scale: float | None) -> Scaled:
    """Return the mapping of actions in [-1, 1] for any robot.

    A control that is a target position, of a robot with a keyframe, moves around the keyframe's
    ``ctrl`` (without one, around what holds the keyframe's pose) by ``action_scale`` (default
    :data:`SERVO_SCALE`) times half its range (``ctrlrange``, else the joint's). Any other control
    uses its ``ctrlrange``, or ±1 without one, times ``action_scale`` (default 1).

    :param key: number of the keyframe, -1 for none.
    """
    lowest, highest = control_limits(model)
    is_limited = np.isfinite(lowest)
    low = np.where(is_limited, lowest, -1.0)
    high = np.where(is_limited, highest, 1.0)
    half_range = (high - low) / 2
    middle = (low + high) / 2
    half = half_range * (1.0 if action_scale is None else action_scale)
    if key >= 0:
        is_position = position_controls(model)
        servo_range = np.where(is_limited, half_range, _half_joint_ranges(model))
        servo_scale = SERVO_SCALE if action_scale is None else action_scale
        holding = model.key_ctrl[key]
        if not holding.any():
            holding = lengths_in_pose(model, model.key_qpos[key])
        middle = np.where(is_position, holding, middle)
        half = np.where(is_position, servo_scale * servo_range, half)
    return Scaled(middle, half, lowest, highest)


def control_limits(model: mujoco.MjModel) -> tuple[Floats, Floats]:
    """``(nu,)`` least and greatest value of each control; ∓inf without a ``ctrlrange``."""
    is_limited = model.actuator_ctrllimited.astype(bool)
    low, high = model.actuator_ctrlrange.T
    return np.where(is_limited, low, -np.inf), np.where(is_limited, high, np.inf)


def _half_joint_ranges(model: mujoco.MjModel) -> Floats:
    """``(nu,)`` half the range of each control's joint in units of the control, which are those of
    the joint times the gear; 1 where the joint has no range.
    """
    half = np.ones(model.nactuator)
    for actuator, joint in enumerate(scalar_joints(model).tolist()):
        if joint >= 0 and model.jnt_limited[joint]:
            half[actuator] = np.ptp(model.jnt_range[joint]) / 2
            half[actuator] *= abs(scalar_gear(model, actuator))
    return half[actuator_of_control(model)]
