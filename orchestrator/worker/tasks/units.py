"""Units of what a policy observes and controls, found by the names of
:mod:`orchestrator.worker.tasks.input_names`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mujoco
import numpy as np

from orchestrator.worker.mjmodel.actuators import (
    actuator_kind,
    position_servos,
    scalar_gear,
    scalar_joints,
)
from orchestrator.worker.mjmodel.joints import BALL, FREE, HINGE, SLIDE, joint_type
from orchestrator.worker.tasks import input_names

UNKNOWN = ""
NUMBER = "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class _JointUnits:
    """Units of a joint's entries in ``qpos`` and in ``qvel``."""

    positions: tuple[str, ...]
    velocities: tuple[str, ...]


_OF_JOINT = {
    FREE: _JointUnits(
        positions=("m",) * 3 + (NUMBER,) * 4,
        velocities=("m/s",) * 3 + ("rad/s",) * 3,
    ),
    BALL: _JointUnits(positions=(NUMBER,) * 4, velocities=("rad/s",) * 3),
    HINGE: _JointUnits(positions=("rad",), velocities=("rad/s",)),
    SLIDE: _JointUnits(positions=("m",), velocities=("m/s",)),
}
_OF_FORCE = {"m/s": "N", "rad/s": "N m"}
"""Unit of a velocity → that of the force, or torque, that belongs to it."""
_FILTERS = (
    mujoco.mjtDyn.mjDYN_NONE,
    mujoco.mjtDyn.mjDYN_FILTER,
    mujoco.mjtDyn.mjDYN_FILTEREXACT,
)
"""Activations that follow the control."""
_OTHERS = {
    **{f"position of target {axis}": "m" for axis in "xyz"},
    **{"command forward": "m/s", "command left": "m/s", "command turn": "rad/s"},
    "constraint force": "N",
}
_PREFIXES = {"sin ": NUMBER, "cos ": NUMBER}


def of_observations(model: mujoco.MjModel, names: Sequence[str]) -> list[str]:
    """The unit of each observation: ``rad``, ``m/s`` … , ``1`` for plain numbers, empty where it is
    not known.
    """
    joints = [_OF_JOINT[joint_type(model, joint)] for joint in range(model.njnt)]
    of_positions = [unit for joint in joints for unit in joint.positions]
    of_velocities = [unit for joint in joints for unit in joint.velocities]
    known: dict[str, str] = {}
    for name, unit in zip(input_names.positions(model), of_positions, strict=True):
        known[name] = unit
        known[f"offset of {name}"] = unit
    for name, unit in zip(input_names.velocities(model), of_velocities, strict=True):
        known[name] = unit
        known[f"force for {name}"] = _OF_FORCE[unit]
    for name in input_names.activations(model):
        known[name] = NUMBER
    return [known.get(name) or _unit_of_other(name) for name in names]


def _unit_of_other(name: str) -> str:
    """The unit of what is no coordinate of a joint."""
    for prefix, unit in _PREFIXES.items():
        if name.startswith(prefix):
            return unit
    return _OTHERS.get(name, UNKNOWN)


_OF_SENSOR = {
    mujoco.mjtSensor.mjSENS_GYRO: "rad/s",
    mujoco.mjtSensor.mjSENS_FRAMEANGVEL: "rad/s",
    mujoco.mjtSensor.mjSENS_ACCELEROMETER: "m/s²",
    mujoco.mjtSensor.mjSENS_FRAMELINACC: "m/s²",
    mujoco.mjtSensor.mjSENS_FRAMEANGACC: "rad/s²",
    mujoco.mjtSensor.mjSENS_VELOCIMETER: "m/s",
    mujoco.mjtSensor.mjSENS_FRAMELINVEL: "m/s",
    mujoco.mjtSensor.mjSENS_FRAMEPOS: "m",
    mujoco.mjtSensor.mjSENS_RANGEFINDER: "m",
    mujoco.mjtSensor.mjSENS_TENDONPOS: "m",
    mujoco.mjtSensor.mjSENS_TENDONVEL: "m/s",
    mujoco.mjtSensor.mjSENS_TOUCH: "N",
    mujoco.mjtSensor.mjSENS_FORCE: "N",
    mujoco.mjtSensor.mjSENS_TORQUE: "N m",
    mujoco.mjtSensor.mjSENS_FRAMEQUAT: NUMBER,
    mujoco.mjtSensor.mjSENS_FRAMEXAXIS: NUMBER,
    mujoco.mjtSensor.mjSENS_FRAMEYAXIS: NUMBER,
    mujoco.mjtSensor.mjSENS_FRAMEZAXIS: NUMBER,
}


def of_sensor(model: mujoco.MjModel, sensor: int) -> str:
    """The unit of each number of a sensor of the MJCF; empty where it is not known."""
    kind = mujoco.mjtSensor(int(model.sensor_type[sensor]))
    if kind not in (mujoco.mjtSensor.mjSENS_JOINTPOS, mujoco.mjtSensor.mjSENS_JOINTVEL):
        return _OF_SENSOR.get(kind, UNKNOWN)
    of_joint = _OF_JOINT[joint_type(model, int(model.sensor_objid[sensor]))]
    is_position = kind == mujoco.mjtSensor.mjSENS_JOINTPOS
    return (of_joint.positions if is_position else of_joint.velocities)[0]


def of_controls(model: mujoco.MjModel) -> list[str]:
    """What a control of 1 means at its joint: ``18 N m``, ``rad``, ``0.5 rad/s``; empty where that
    is not known.

    ``1`` is the activation of a muscle.
    """
    servos = position_servos(model)
    joints = scalar_joints(model)
    actuators = np.repeat(np.arange(model.nactuator), model.actuator_ctrlnum)
    return [
        _of_actuator(
            model, int(actuator), int(joints[actuator]), is_position=bool(servos[actuator])
        )
        for actuator in actuators
    ]


def _of_actuator(model: mujoco.MjModel, actuator: int, joint: int, *, is_position: bool) -> str:
    """:param joint: that it moves, of which a control is one number; negative: none."""
    kind = actuator_kind(model, actuator)
    if kind == "muscle":
        return NUMBER
    gear = scalar_gear(model, actuator)
    if joint < 0 or not gear:
        return UNKNOWN
    units = _OF_JOINT[joint_type(model, joint)]
    [position] = units.positions
    [velocity] = units.velocities
    if is_position:
        return _scaled_unit(1 / gear, position)
    if model.actuator_ctrlnum[actuator] != 1:
        return UNKNOWN
    if kind in ("velocity", "intvelocity"):
        return _scaled_unit(1 / gear, velocity)
    if _has_proportional_force(model, actuator):
        gain = float(model.actuator_gainprm[actuator, 0])
        return _scaled_unit(gain * gear, _OF_FORCE[velocity])
    return UNKNOWN


def _has_proportional_force(model: mujoco.MjModel, actuator: int) -> bool:
    """Whether its force is the control times a gain, perhaps after a filter."""
    has_gain = model.actuator_gaintype[actuator] == int(mujoco.mjtGain.mjGAIN_FIXED)
    has_bias = model.actuator_biastype[actuator] != int(mujoco.mjtBias.mjBIAS_NONE)
    dynamics = mujoco.mjtDyn(int(model.actuator_dyntype[actuator]))
    return bool(has_gain and not has_bias and dynamics in _FILTERS)


def _scaled_unit(factor: float, unit: str) -> str:
    return unit if factor == 1 else f"{factor:g} {unit}"
