"""What a robot's controller must know to drive its joints as they were driven in training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from orchestrator.worker.mjmodel.actuators import position_servos, scalar_gear, scalar_joints
from orchestrator.worker.tasks.actions import Scaled
from orchestrator.worker.tasks.observations import joints_with_encoders

if TYPE_CHECKING:
    import mujoco

    from orchestrator.worker.tasks import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class JointDrives:
    """The hinges and slides of a robot, without its root."""

    names: list[str]
    default_pos: list[float]
    """In the pose that episodes start from; rad or m."""
    stiffness: list[float]
    """Of all position servos of the joint; N m/rad or N/m. 0 where it has none."""
    damping: list[float]
    """Of the same; N m s/rad or N s/m."""


def of_joints(model: mujoco.MjModel, task: Task) -> JointDrives:
    joints = joints_with_encoders(task)
    stiffness, damping = np.zeros((2, model.njnt))
    driven = scalar_joints(model)
    for actuator in np.flatnonzero(position_servos(model) & (driven >= 0)).tolist():
        gear = scalar_gear(model, actuator)
        stiffness[driven[actuator]] += model.actuator_gainprm[actuator, 0] * gear**2
        damping[driven[actuator]] -= model.actuator_biasprm[actuator, 2] * gear**2
    return JointDrives(
        names=[model.joint(joint).name or f"joint {joint}" for joint in joints],
        default_pos=task.pose[model.jnt_qposadr[joints]].tolist(),
        stiffness=stiffness[joints].tolist(),
        damping=damping[joints].tolist(),
    )


def action_scales(model: mujoco.MjModel, actions: object) -> list[float]:
    """By how much an action of 1 moves the target of its joint, in rad or m, for each control; 0 where
    its actuator is no position servo of a hinge or slide.
    """
    scales = [0.0] * model.nu
    if not isinstance(actions, Scaled):
        return scales
    joints = scalar_joints(model)
    for actuator in np.flatnonzero(position_servos(model) & (joints >= 0)).tolist():
        gear = scalar_gear(model, actuator)
        control = int(model.actuator_ctrladr[actuator])
        scales[control] = float(actions.half[control]) / gear if gear else 0.0
    return scales
