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


@dataclass(frozen=True, slots=True)
class Scaled:
    """Actions in [-1, 1] → ``middle + half · action``, clipped to the controls' limits."""

    middle: Floats
    half: Floats
    ctrl_low: Floats
    ctrl_high: Floats
    _tables: dict[int, Floats] = field(default_factory=dict, init=False, compare=False)
    """The four fields and the bounds of actions for each environment, by number of environments:
    equal shapes are faster."""

    @property
    def low(self) -> NDArray[np.float32]:
        return np.full(len(self.middle), -1.0, np.float32)

    @property
    def high(self) -> NDArray[np.float32]:
        return np.full(len(self.middle), 1.0, np.float32)

    def taken(self, actions: NDArray[Any]) -> Floats:
        *_, low, high = self._table(len(actions))
        taken: Floats = np.array(actions, np.float64)
        np.maximum(taken, low, out=taken)
        np.minimum(taken, high, out=taken)
        return taken

    def _table(self, rows: int) -> Floats:
        if rows not in self._tables:
            numbers = np.stack(
                (self.middle, self.half, self.ctrl_low, self.ctrl_high, self.low, self.high)
            )
            self._tables[rows] = np.repeat(numbers[:, None], rows, axis=1)
        return self._tables[rows]

    def ctrl(self, taken: NDArray[Any]) -> Floats:
        middle, half, low, high, *_ = self._table(len(taken))
        ctrl: Floats = taken * half
        ctrl += middle
        np.maximum(ctrl, low, out=ctrl)
        np.minimum(ctrl, high, out=ctrl)
        return ctrl

    def commands(self, control: int) -> Floats:
        """``(2,)`` values of one control for the actions -1 and 1."""
        ends = self.middle[control] + self.half[control] * np.array([-1.0, 1.0])
        commands: Floats = np.clip(ends, self.ctrl_low[control], self.ctrl_high[control])
        return commands


@dataclass(frozen=True, slots=True)
class Direct:
    """Actions are controls, as in gymnasium's MuJoCo environments; MuJoCo itself clips them to
    ``ctrlrange``.
    """

    low: NDArray[np.float32]
    high: NDArray[np.float32]

    def taken(self, actions: NDArray[Any]) -> NDArray[Any]:
        return np.ascontiguousarray(
            actions
        )  # the bits of sums over a row depend on the memory order

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
    limited, low, high = control_limits(model)
    middle = (low + high) / 2
    half = (high - low) / 2 * (1.0 if action_scale is None else action_scale)
    if key >= 0:
        actuator = np.repeat(np.arange(model.nactuator), model.actuator_ctrlnum)  # of each control
        servos = position_servos(model)[actuator]
        reach = np.where(limited, (high - low) / 2, _half_joint_range(model)[actuator])
        middle = np.where(servos, _holding_controls(model, key, actuator), middle)
        half = np.where(
            servos, (SERVO_SCALE if action_scale is None else action_scale) * reach, half
        )
    return Scaled(middle, half, np.where(limited, low, -np.inf), np.where(limited, high, np.inf))


def control_limits(model: mujoco.MjModel) -> tuple[NDArray[np.bool_], Floats, Floats]:
    """``(nu,)`` each: whether a control has a ``ctrlrange``, and its bounds, ±1 where it has
    none.
    """
    limited = model.actuator_ctrllimited.astype(bool)
    low = np.where(limited, model.actuator_ctrlrange[:, 0], -1.0)
    return limited, low, np.where(limited, model.actuator_ctrlrange[:, 1], 1.0)


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
    """``(nactuator,)`` half the range of each actuator's joint; 1 where the joint has no range."""
    joint = model.actuator_trnid[:, 0]
    ranged = model.actuator_trntype == int(mujoco.mjtTrn.mjTRN_JOINT)
    ranged[ranged] = model.jnt_limited[joint[ranged]]
    half = np.ones(model.nactuator)
    half[ranged] = np.diff(model.jnt_range[joint[ranged]])[:, 0] / 2
    return half
