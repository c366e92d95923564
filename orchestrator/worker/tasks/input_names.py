"""Names and units of what a policy observes and controls, made from a compiled model. By these names
a trained policy is carried over to another robot.

What has no name in the MJCF is named by its place: a joint by its body, an actuator by the joint
that it moves, and a body by its parent and its place among unnamed siblings. So names of one part do
not change when another part of the robot is added or removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from orchestrator.worker.mjmodel.actuators import (
    actuator_of_control,
    control_inputs,
    scalar_joints,
)
from orchestrator.worker.mjmodel.joints import BALL, FREE, HINGE, SLIDE, joint_type

UNKNOWN = ""
"""The unit of what has none that is known."""
NUMBER = "1"

POSITION_UNITS = {
    FREE: ("m",) * 3 + (NUMBER,) * 4,
    BALL: (NUMBER,) * 4,
    HINGE: ("rad",),
    SLIDE: ("m",),
}
"""Type of a joint → units of its positions."""
VELOCITY_UNITS = {
    FREE: ("m/s",) * 3 + ("rad/s",) * 3,
    BALL: ("rad/s",) * 3,
    HINGE: ("rad/s",),
    SLIDE: ("m/s",),
}
"""Type of a joint → units of its velocities."""
FORCE_UNITS = {"m/s": "N", "rad/s": "N m"}
"""Unit of a velocity → that of the force, or torque, that belongs to it."""
SENSOR_UNITS = {
    "mjSENS_GYRO": "rad/s",
    "mjSENS_FRAMEANGVEL": "rad/s",
    "mjSENS_ACCELEROMETER": "m/s²",
    "mjSENS_FRAMELINACC": "m/s²",
    "mjSENS_VELOCIMETER": "m/s",
    "mjSENS_FRAMELINVEL": "m/s",
    "mjSENS_FRAMEPOS": "m",
    "mjSENS_RANGEFINDER": "m",
    "mjSENS_TOUCH": "N",
    "mjSENS_FORCE": "N",
    "mjSENS_TORQUE": "N m",
    "mjSENS_FRAMEQUAT": NUMBER,
}
"""Kind of sensor → unit of its numbers."""


@dataclass(frozen=True, slots=True)
class Labels:
    """Name and unit of each of some numbers."""

    names: Sequence[str]
    units: Sequence[str]

    def take(self, columns: slice | NDArray[np.intp]) -> Labels:
        """Return the labels of these columns."""
        names, units = np.array([self.names, self.units], object)[:, columns].tolist()
        return Labels(names, units)

    def prefixed(self, prefix: str, unit: str | None = None) -> Labels:
        """Return them with ``prefix`` before each name; all with ``unit``, where that is given."""
        units = self.units if unit is None else [unit] * len(self.names)
        return Labels([f"{prefix} {name}" for name in self.names], units)


def vector(quantity: str, unit: str) -> Labels:
    """Return the labels of x, y and z of a quantity."""
    return Labels([f"{quantity} {axis}" for axis in "xyz"], [unit] * 3)


def numbered(quantity: str, size: int, unit: str) -> Labels:
    """Return the labels of ``size`` numbers of a quantity."""
    return Labels(_numbered_names([(quantity, size)]), [unit] * size)


def joints(model: mujoco.MjModel) -> NDArray[np.object_]:
    """``(njnt,)`` names."""
    return np.array([_joint(model, joint) for joint in range(model.njnt)], object)


def positions(model: mujoco.MjModel) -> Labels:
    """Return ``nq`` labels."""
    return _of_joints(model, "position", POSITION_UNITS)


def velocities(model: mujoco.MjModel) -> Labels:
    """Return ``nv`` labels."""
    return _of_joints(model, "velocity", VELOCITY_UNITS)


def _of_joints(
    model: mujoco.MjModel, quantity: str, units: Mapping[mujoco.mjtJoint, Sequence[str]]
) -> Labels:
    of_joints = [units[joint_type(model, joint)] for joint in range(model.njnt)]
    names = _numbered_names(
        (f"{_joint(model, joint)} {quantity}", len(of_joint))
        for joint, of_joint in enumerate(of_joints)
    )
    return Labels(names, [unit for of_joint in of_joints for unit in of_joint])


def activations(model: mujoco.MjModel) -> Labels:
    """Return ``na`` labels."""
    names = _numbered_names(
        (f"{_actuator(model, actuator)} activation", width)
        for actuator, width in enumerate(model.actuator_actnum)
    )
    return Labels(names, [NUMBER] * len(names))


def of_bodies(model: mujoco.MjModel, quantity: str, width: int) -> Labels:
    """Return ``(nbody - 1) · width`` labels, without the world."""
    names = _numbered_names(
        (f"{_body(model, body)} {quantity}", width) for body in range(1, model.nbody)
    )
    return Labels(names, [UNKNOWN] * len(names))


def controls(model: mujoco.MjModel) -> NDArray[np.object_]:
    """``(nu,)`` names: those of the actuators, with the input behind it for ``<pid>``."""
    owners = zip(actuator_of_control(model).tolist(), control_inputs(model), strict=True)
    names = [f"{_actuator(model, actuator)} {pid_input}".strip() for actuator, pid_input in owners]
    return np.array(_numbered_names((name, 1) for name in names), object)


def _joint(model: mujoco.MjModel, joint: int) -> str:
    body = int(model.jnt_bodyid[joint])
    number = joint - model.body_jntadr[body]
    return model.joint(joint).name or f"{_body(model, body)} joint {number}"


def _actuator(model: mujoco.MjModel, actuator: int) -> str:
    joint = int(scalar_joints(model)[actuator])
    by_place = f"actuator {actuator}" if joint < 0 else f"actuator of {_joint(model, joint)}"
    return model.actuator(actuator).name or by_place


def _body(model: mujoco.MjModel, body: int) -> str:
    if name := model.body(body).name:
        return str(name)
    parent = int(model.body_parentid[body])
    siblings = np.flatnonzero(model.body_parentid[:body] == parent).tolist()
    unnamed = [sibling for sibling in siblings if not model.body(sibling).name]
    return f"{_body(model, parent)}/{len(unnamed)}"


def _numbered_names(parts: Iterable[tuple[str, int]]) -> list[str]:
    """Return each name as often as its width: numbered from 0 where that is above 1, and with a
    ``+`` behind it where a name comes again.
    """
    names: dict[str, None] = {}
    for name, width in parts:
        for number in range(width):
            each = f"{name} {number}" if width > 1 else name
            while each in names:
                each += "+"
            names[each] = None
    return list(names)
