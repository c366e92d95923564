"""Mappings from a policy's actions to the robot's controls."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import mujoco
import numpy as np
from numpy.typing import NDArray

from orchestrator.worker.mjmodel.actuators import position_servos
from orchestrator.worker.mjmodel.structure import Floats

SERVO_SCALE = 0.5
"""Default share of a servo's range around its keyframe: the robot explores near its starting
pose."""


class ActionMap(Protocol):
    @property
    def low(self) -> NDArray[np.float32]:
        """``(nu,)`` lower bounds of the action space."""

    @property
    def high(self) -> NDArray[np.float32]:
        """``(nu,)`` upper bounds of the action space."""

    def taken(self, actions: NDArray[Any]) -> NDArray[Any]:
        """``(n_envs, nu)`` the actions that count in rewards: clipped to their bounds."""

    def ctrl(self, taken: NDArray[Any]) -> NDArray[Any]:
        """``(n_envs, nu)`` values of ``MjData.ctrl``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ScaledRows:
    """What :class:`Scaled` computes with, ``(n_envs, nu)`` each: equal shapes are faster."""

    middle: Floats
    half: Floats
    ctrl_low: Floats
    ctrl_high: Floats
    action_low: Floats
    action_high: Floats


@dataclass(frozen=True, slots=True)
class Scaled:
    """Actions in [-1, 1] → ``middle + half · action``, clipped to the controls' limits."""

    middle: Floats
    """``(nu,)``, as the next three."""
    half: Floats
    ctrl_low: Floats
    ctrl_high: Floats
    _rows_by_count: dict[int, _ScaledRows] = field(default_factory=dict, init=False, compare=False)
    """Number of environments → their rows."""

    @property
    def low(self) -> NDArray[np.float32]:
        return np.full(len(self.middle), -1.0, np.float32)

    @property
    def high(self) -> NDArray[np.float32]:
        return np.full(len(self.middle), 1.0, np.float32)

    def taken(self, actions: NDArray[Any]) -> Floats:
        rows = self._rows(len(actions))
        taken: Floats = np.array(actions, np.float64)
        np.maximum(taken, rows.action_low, out=taken)
        np.minimum(taken, rows.action_high, out=taken)
        return taken

    def ctrl(self, taken: NDArray[Any]) -> Floats:
        rows = self._rows(len(taken))
        ctrl: Floats = taken * rows.half
        ctrl += rows.middle
        np.maximum(ctrl, rows.ctrl_low, out=ctrl)
        np.minimum(ctrl, rows.ctrl_high, out=ctrl)
        return ctrl

    def _rows(self, n_envs: int) -> _ScaledRows:
        rows = self._rows_by_count.get(n_envs)
        if rows is None:
            rows = _ScaledRows(
                middle=_repeated(self.middle, n_envs),
                half=_repeated(self.half, n_envs),
                ctrl_low=_repeated(self.ctrl_low, n_envs),
                ctrl_high=_repeated(self.ctrl_high, n_envs),
                action_low=_repeated(self.low, n_envs),
                action_high=_repeated(self.high, n_envs),
            )
            self._rows_by_count[n_envs] = rows
        return rows

    def commands(self, control: int) -> Floats:
        """``(2,)`` values of one control for the actions -1 and 1."""
        ends = self.middle[control] + self.half[control] * np.array([-1.0, 1.0])
        commands: Floats = np.clip(ends, self.ctrl_low[control], self.ctrl_high[control])
        return commands


def _repeated(row: NDArray[Any], count: int) -> Floats:
    """``(n,)`` → ``(count, n)``"""
    return np.tile(np.asarray(row, np.float64), (count, 1))


@dataclass(frozen=True, slots=True)
class Direct:
    """Actions are controls, as in gymnasium's MuJoCo environments; MuJoCo itself clips them to
    ``ctrlrange``.
    """

    low: NDArray[np.float32]
    high: NDArray[np.float32]

    def taken(self, actions: NDArray[Any]) -> NDArray[Any]:
        # The bits of sums over a row depend on the memory order.
        return np.ascontiguousarray(actions)

    def ctrl(self, taken: NDArray[Any]) -> NDArray[Any]:
        return taken


def scaled_actions(model: mujoco.MjModel, key: int, action_scale: float | None) -> Scaled:
    """The mapping of actions in [-1, 1] for any robot.

    A position servo of a robot with a keyframe moves around the keyframe's ``ctrl`` (without one,
    around the controls that hold the keyframe's pose) by ``action_scale`` (default
    :data:`SERVO_SCALE`) times half its range (``ctrlrange``, else the joint's). Any other actuator
    uses its ``ctrlrange``, or ±1 without one, times ``action_scale`` (default 1).

    :param key: number of the keyframe, -1 for none.
    """
    limits = control_limits(model)
    half_range = (limits.high - limits.low) / 2
    middle = (limits.low + limits.high) / 2
    half = half_range * (1.0 if action_scale is None else action_scale)
    if key >= 0:
        actuator = np.repeat(np.arange(model.nactuator), model.actuator_ctrlnum)  # of each control
        is_servo = position_servos(model)[actuator]
        servo_range = np.where(limits.is_limited, half_range, _half_joint_range(model)[actuator])
        servo_scale = SERVO_SCALE if action_scale is None else action_scale
        middle = np.where(is_servo, _holding_controls(model, key, actuator), middle)
        half = np.where(is_servo, servo_scale * servo_range, half)
    return Scaled(
        middle=middle,
        half=half,
        ctrl_low=limits.lowest,
        ctrl_high=limits.highest,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlLimits:
    """The bounds of a robot's controls."""

    is_limited: NDArray[np.bool_]
    """``(nu,)`` whether a control has a ``ctrlrange``."""
    low: Floats
    """``(nu,)``, -1 where a control has none."""
    high: Floats
    """``(nu,)``, 1 where a control has none."""

    @property
    def lowest(self) -> Floats:
        """``(nu,)``, -inf where a control has none."""
        return np.where(self.is_limited, self.low, -np.inf)

    @property
    def highest(self) -> Floats:
        """``(nu,)``, inf where a control has none."""
        return np.where(self.is_limited, self.high, np.inf)


def control_limits(model: mujoco.MjModel) -> ControlLimits:
    limited = model.actuator_ctrllimited.astype(bool)
    return ControlLimits(
        is_limited=limited,
        low=np.where(limited, model.actuator_ctrlrange[:, 0], -1.0),
        high=np.where(limited, model.actuator_ctrlrange[:, 1], 1.0),
    )


def _holding_controls(model: mujoco.MjModel, key: int, actuator: NDArray[np.intp]) -> Floats:
    """``(nu,)`` controls with which position servos hold the keyframe's pose.

    :param actuator: ``(nu,)`` the actuator of each control.
    """
    if model.key_ctrl[key].any():
        return np.array(model.key_ctrl[key])
    data = mujoco.MjData(model)
    data.qpos[:] = model.key_qpos[key]
    mujoco.mj_fwdPosition(model, data)
    return np.array(data.actuator_length[model.actuator_outadr[actuator]])


def _half_joint_range(model: mujoco.MjModel) -> Floats:
    """``(nactuator,)`` half the range of each actuator's joint in units of its control, which are
    those of the joint times the gear; 1 where the joint has no range.

    Joints by ``jointinparent`` count as without a range here, unlike in
    :func:`orchestrator.worker.mjmodel.actuators.scalar_joints`: their policies are trained so.
    """
    joint = model.actuator_trnid[:, 0]
    ranged = model.actuator_trntype == int(mujoco.mjtTrn.mjTRN_JOINT)
    ranged[ranged] = model.jnt_limited[joint[ranged]]
    half = np.ones(model.nactuator)
    half[ranged] = np.diff(model.jnt_range[joint[ranged]])[:, 0] / 2
    half[ranged] *= np.abs(model.actuator_gear[model.actuator_outadr[ranged], 0])
    return half
