"""Names and units of what a policy observes and controls, made from a compiled model. By these names
a trained policy is carried over to another robot.

What has no name in the MJCF is named by its place: a joint by its body, an actuator by what it
moves, and a body by its parent and its place among unnamed siblings. So names of one part do not
change when another part of the robot is added or removed, except those of unnamed siblings, and of
actuators that move a part without a name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import mujoco
import numpy as np
from numpy.typing import NDArray

from orchestrator.worker.mjmodel.actuators import (
    actuator_kind,
    actuator_of_control,
    control_inputs,
    position_controls,
    scalar_gear,
    scalar_joints,
)
from orchestrator.worker.mjmodel.joints import BALL, FREE, HINGE, SLIDE, joint_type

if TYPE_CHECKING:
    from orchestrator.worker.tasks.base import Task

UNKNOWN = ""
"""The unit of what has none that is known."""
NUMBER = "1"

_POSITION_UNITS = {
    FREE: ("m",) * 3 + (NUMBER,) * 4,
    BALL: (NUMBER,) * 4,
    HINGE: ("rad",),
    SLIDE: ("m",),
}
_VELOCITY_UNITS = {
    FREE: ("m/s",) * 3 + ("rad/s",) * 3,
    BALL: ("rad/s",) * 3,
    HINGE: ("rad/s",),
    SLIDE: ("m/s",),
}
_FORCE_UNITS = {"m/s": "N", "rad/s": "N m"}
"""Unit of a velocity → that of the force, or torque, that belongs to it."""
_SENSOR_UNITS = {
    mujoco.mjtSensor.mjSENS_GYRO: "rad/s",
    mujoco.mjtSensor.mjSENS_FRAMEANGVEL: "rad/s",
    mujoco.mjtSensor.mjSENS_ACCELEROMETER: "m/s²",
    mujoco.mjtSensor.mjSENS_FRAMELINACC: "m/s²",
    mujoco.mjtSensor.mjSENS_VELOCIMETER: "m/s",
    mujoco.mjtSensor.mjSENS_FRAMELINVEL: "m/s",
    mujoco.mjtSensor.mjSENS_FRAMEPOS: "m",
    mujoco.mjtSensor.mjSENS_RANGEFINDER: "m",
    mujoco.mjtSensor.mjSENS_TOUCH: "N",
    mujoco.mjtSensor.mjSENS_FORCE: "N",
    mujoco.mjtSensor.mjSENS_TORQUE: "N m",
    mujoco.mjtSensor.mjSENS_FRAMEQUAT: NUMBER,
}
_AXES = {1: ("",), 3: (" x", " y", " z"), 4: (" w", " x", " y", " z")}
"""Numbers of a sensor → what is behind its name in the name of each."""
_TRANSMISSIONS = {
    mujoco.mjtTrn.mjTRN_TENDON: "tendon",
    mujoco.mjtTrn.mjTRN_SITE: "site",
    mujoco.mjtTrn.mjTRN_BODY: "body",
}


@dataclass(frozen=True, slots=True)
class Labels:
    """Name and unit of each of some numbers."""

    names: Sequence[str]
    units: Sequence[str]

    def take(self, columns: slice | NDArray[np.intp]) -> Labels:
        """Return the labels of these columns."""
        kept = np.arange(len(self.names))[columns].tolist()
        return Labels(
            [self.names[column] for column in kept], [self.units[column] for column in kept]
        )

    def prefixed(self, prefix: str, units: Sequence[str] | None = None) -> Labels:
        """Return them with ``prefix`` before each name, in other ``units`` where these are given."""
        return Labels([f"{prefix} {name}" for name in self.names], units or self.units)


def vector(quantity: str, unit: str) -> Labels:
    """Return the labels of x, y and z of a quantity."""
    return Labels([f"{quantity} {axis}" for axis in "xyz"], [unit] * 3)


def of_task(task: Task, size: int) -> list[str] | None:
    """Return the names of what a policy observes of ``task`` at once, or None if they are not
    ``size`` names.
    """
    terms = task.policy_terms
    return None if terms is None or len(terms.names) != size else list(terms.names)


def of_full_observation(task: Task, size: int) -> list[str] | None:
    """Return the names of what ``task`` itself gives, as :func:`of_task`."""
    terms = task.own_terms
    return None if terms is None or len(terms.names) != size else list(terms.names)


def joints(model: mujoco.MjModel) -> NDArray[np.object_]:
    """``(njnt,)`` names."""
    return np.array([_joint(model, joint) for joint in range(model.njnt)], object)


def positions(model: mujoco.MjModel) -> Labels:
    """Return ``nq`` labels."""
    return _of_joints(model, "position", _POSITION_UNITS)


def velocities(model: mujoco.MjModel) -> Labels:
    """Return ``nv`` labels."""
    return _of_joints(model, "velocity", _VELOCITY_UNITS)


def _of_joints(
    model: mujoco.MjModel, quantity: str, units: Mapping[mujoco.mjtJoint, Sequence[str]]
) -> Labels:
    of_joints = [units[joint_type(model, joint)] for joint in range(model.njnt)]
    names = _numbered_names(
        (f"{_joint(model, joint)} {quantity}", len(of_joint))
        for joint, of_joint in enumerate(of_joints)
    )
    return Labels(names, [unit for of_joint in of_joints for unit in of_joint])


def joint_forces(model: mujoco.MjModel) -> Labels:
    """Return ``nv`` labels of the force, or torque, for each velocity."""
    moving = velocities(model)
    return moving.prefixed("force for", [_FORCE_UNITS[unit] for unit in moving.units])


def activations(model: mujoco.MjModel) -> Labels:
    """Return ``na`` labels."""
    names = _numbered_names(
        (f"{_actuator(model, number)} activation", width)
        for number, width in enumerate(model.actuator_actnum)
    )
    return Labels(names, [NUMBER] * len(names))


def of_bodies(model: mujoco.MjModel, quantity: str, width: int) -> Labels:
    """Return ``(nbody - 1) · width`` labels, without the world."""
    names = _numbered_names(
        (f"{_body(model, body)} {quantity}", width) for body in range(1, model.nbody)
    )
    return Labels(names, [UNKNOWN] * len(names))


def of_sensor(model: mujoco.MjModel, sensor: int) -> Labels:
    """Return the labels of the numbers of a sensor, in its own unit."""
    size = int(model.sensor_dim[sensor])
    kind = mujoco.mjtSensor(int(model.sensor_type[sensor]))
    unit = _SENSOR_UNITS.get(kind, UNKNOWN)
    endings = _AXES.get(size) or [f" {number}" for number in range(size)]
    return Labels([f"{model.sensor(sensor).name}{ending}" for ending in endings], [unit] * size)


def controls(model: mujoco.MjModel) -> NDArray[np.object_]:
    """``(nu,)`` names: those of the actuators, with the input behind it for ``<pid>``."""
    actuators = actuator_of_control(model).tolist()
    inputs = control_inputs(model)
    parts = []
    for number, actuator in enumerate(actuators):
        name = _actuator(model, actuator)
        if inputs[number]:
            parts.append((f"{name} {inputs[number]}", 1))
        elif number == model.actuator_ctrladr[actuator]:
            parts.append((name, int(model.actuator_ctrlnum[actuator])))
    return np.array(_numbered_names(parts), object)


def control_units(model: mujoco.MjModel) -> list[str]:
    """Return what a control of 1 means at its joint: ``18 N m``, ``rad``, ``0.5 rad/s``; empty where
    that is not known. ``1`` is the activation of a muscle.
    """
    is_position = position_controls(model)
    inputs = control_inputs(model)
    return [
        _unit_of_control(model, actuator, inputs[control], is_position=bool(is_position[control]))
        for control, actuator in enumerate(actuator_of_control(model).tolist())
    ]


def _unit_of_control(
    model: mujoco.MjModel, actuator: int, pid_input: str, *, is_position: bool
) -> str:
    kind = actuator_kind(model, actuator)
    if kind == "muscle":
        return NUMBER
    gear = scalar_gear(model, actuator)
    joint = int(scalar_joints(model)[actuator])
    if joint < 0 or not gear:
        return UNKNOWN
    [position] = _POSITION_UNITS[joint_type(model, joint)]
    [velocity] = _VELOCITY_UNITS[joint_type(model, joint)]
    if is_position:
        return _scaled_unit(1 / gear, position)
    if pid_input == "vel" or kind in ("velocity", "intvelocity"):
        return _scaled_unit(1 / gear, velocity)
    if pid_input == "ff":
        return _scaled_unit(gear, _FORCE_UNITS[velocity])
    if kind == "motor":
        gain = float(model.actuator_gainprm[actuator, 0])
        return _scaled_unit(gain * gear, _FORCE_UNITS[velocity])
    return UNKNOWN


def _scaled_unit(factor: float, unit: str) -> str:
    return unit if factor == 1 else f"{factor:g} {unit}"


def _joint(model: mujoco.MjModel, joint: int) -> str:
    body = int(model.jnt_bodyid[joint])
    return (
        model.joint(joint).name or f"{_body(model, body)} joint {joint - model.body_jntadr[body]}"
    )


def _actuator(model: mujoco.MjModel, actuator: int) -> str:
    if name := model.actuator(actuator).name:
        return str(name)
    kind = mujoco.mjtTrn(int(model.actuator_trntype[actuator]))
    target = int(model.actuator_trnid[actuator, 0])
    if kind in (mujoco.mjtTrn.mjTRN_JOINT, mujoco.mjtTrn.mjTRN_JOINTINPARENT):
        return f"actuator of {_joint(model, target)}"
    moved = getattr(model, _TRANSMISSIONS[kind])(target).name if kind in _TRANSMISSIONS else ""
    return f"actuator of {moved}" if moved else f"actuator {actuator}"


def _body(model: mujoco.MjModel, body: int) -> str:
    if name := model.body(body).name:
        return str(name)
    parent = int(model.body_parentid[body])
    alike = [
        other
        for other in np.flatnonzero(model.body_parentid == parent).tolist()
        if not model.body(other).name
    ]
    return f"{_body(model, parent)}/{alike.index(body)}"


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
