"""What a robot's controller must know to drive its joints as they were driven in training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from orchestrator.worker.mjmodel.actuators import (
    actuator_kind,
    actuator_of_control,
    control_inputs,
    position_controls,
    scalar_gear,
    scalar_joints,
)
from orchestrator.worker.mjmodel.joints import joint_type
from orchestrator.worker.mjmodel.structure import Floats
from orchestrator.worker.tasks import input_names
from orchestrator.worker.tasks.actions import Scaled
from orchestrator.worker.tasks.observations import joints_with_encoders

if TYPE_CHECKING:
    import mujoco

    from orchestrator.worker.tasks import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class JointDrives:
    """The hinges and slides of a robot, without its root; as in
    :class:`.exported_policy.Metadata`.
    """

    joint_names: Sequence[str]
    """As in the names of observations."""
    default_joint_pos: Sequence[float]
    """In the pose that episodes start from; rad or m."""
    joint_stiffness: Sequence[float]
    """Of all position servos of the joint; N m/rad or N/m. 0 where it has none."""
    joint_damping: Sequence[float]
    """Of the same; N m s/rad or N s/m."""
    joint_force_limit: Sequence[float]
    """The most that all actuators of the joint together may give, in N m or N; inf without a limit,
    0 without an actuator."""
    action_scale: Sequence[float]
    """By how much an action of 1 moves the target of its joint, in rad or m, for each control; 0
    where its actuator is no position servo of a hinge or slide."""


def joint_drives(model: mujoco.MjModel, task: Task) -> JointDrives:
    joints = joints_with_encoders(task)
    stiffness = np.zeros(model.njnt)
    damping = np.zeros(model.njnt)
    scales = np.zeros(model.nu)
    actions = task.actions
    driven = scalar_joints(model)
    actuators = actuator_of_control(model)
    for control in np.flatnonzero(position_controls(model)).tolist():
        actuator = int(actuators[control])
        if driven[actuator] < 0:
            continue
        gear = scalar_gear(model, actuator)
        stiffness[driven[actuator]] -= model.actuator_biasprm[actuator, 1] * gear**2
        damping[driven[actuator]] -= model.actuator_biasprm[actuator, 2] * gear**2
        if gear and isinstance(actions, Scaled):
            scales[control] = actions.half[control] / gear
    return JointDrives(
        joint_names=input_names.joints(model)[joints].tolist(),
        default_joint_pos=task.pose[model.jnt_qposadr[joints]].tolist(),
        joint_stiffness=stiffness[joints].tolist(),
        joint_damping=damping[joints].tolist(),
        joint_force_limit=_force_limits(model)[joints].tolist(),
        action_scale=scales.tolist(),
    )


def control_units(model: mujoco.MjModel) -> list[str]:
    """Return what a control of 1 means at its joint: ``18 N m``, ``rad``, ``0.5 rad/s``; empty where
    that is not known. ``1`` is the activation of a muscle.
    """
    is_position = position_controls(model)
    joints = scalar_joints(model)
    inputs = control_inputs(model)
    units = []
    for control, actuator in enumerate(actuator_of_control(model).tolist()):
        kind = actuator_kind(model, actuator)
        gear = scalar_gear(model, actuator)
        if kind == "muscle":
            units.append(input_names.NUMBER)
            continue
        if joints[actuator] < 0 or not gear:
            units.append(input_names.UNKNOWN)
            continue
        of_joint = joint_type(model, int(joints[actuator]))
        [position] = input_names.POSITION_UNITS[of_joint]
        [velocity] = input_names.VELOCITY_UNITS[of_joint]
        force = input_names.FORCE_UNITS[velocity]
        if is_position[control]:
            factor, unit = 1 / gear, position
        elif inputs[control] == "vel" or kind in ("velocity", "intvelocity"):
            factor, unit = 1 / gear, velocity
        elif inputs[control] == "ff":
            factor, unit = gear, force
        elif kind == "motor":
            factor, unit = float(model.actuator_gainprm[actuator, 0]) * gear, force
        else:
            factor, unit = 1.0, input_names.UNKNOWN
        units.append(unit if factor == 1 else f"{factor:g} {unit}")
    return units


def _force_limits(model: mujoco.MjModel) -> Floats:
    """``(njnt,)``; see :attr:`JointDrives.joint_force_limit`."""
    limits = np.zeros(model.njnt)
    driven = scalar_joints(model)
    for actuator in np.flatnonzero(driven >= 0).tolist():
        most = np.inf
        if model.actuator_forcelimited[actuator]:
            most = float(np.abs(model.actuator_forcerange[actuator]).max())
        control = int(model.actuator_ctrladr[actuator])
        if actuator_kind(model, actuator) == "motor" and model.actuator_ctrllimited[control]:
            largest = float(np.abs(model.actuator_ctrlrange[control]).max())
            most = min(most, largest * abs(float(model.actuator_gainprm[actuator, 0])))
        limits[driven[actuator]] += most * abs(scalar_gear(model, actuator))
    of_joints = np.where(model.jnt_actfrclimited, np.abs(model.jnt_actfrcrange).max(axis=1), np.inf)
    found: Floats = np.minimum(limits, of_joints)
    return found
