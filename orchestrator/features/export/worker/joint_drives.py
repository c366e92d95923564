"""What a robot's controller must know to drive its joints as they were driven in training."""

from __future__ import annotations

from collections.abc import Sequence
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
    """The hinges and slides of a robot, without its root; as in
    :class:`.exported_policy.Metadata`.
    """

    joint_names: Sequence[str]
    default_joint_pos: Sequence[float]
    """In the pose that episodes start from; rad or m."""
    joint_stiffness: Sequence[float]
    """Of all position servos of the joint; N m/rad or N/m. 0 where it has none."""
    joint_damping: Sequence[float]
    """Of the same; N m s/rad or N s/m."""
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
    for actuator in np.flatnonzero(position_servos(model) & (driven >= 0)).tolist():
        gear = scalar_gear(model, actuator)
        stiffness[driven[actuator]] += model.actuator_gainprm[actuator, 0] * gear**2
        damping[driven[actuator]] -= model.actuator_biasprm[actuator, 2] * gear**2
        if gear and isinstance(actions, Scaled):
            control = int(model.actuator_ctrladr[actuator])
            scales[control] = actions.half[control] / gear
    return JointDrives(
        joint_names=[model.joint(joint).name or f"joint {joint}" for joint in joints],
        default_joint_pos=task.pose[model.jnt_qposadr[joints]].tolist(),
        joint_stiffness=stiffness[joints].tolist(),
        joint_damping=damping[joints].tolist(),
        action_scale=scales.tolist(),
    )
