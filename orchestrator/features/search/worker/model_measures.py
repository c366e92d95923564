"""Measures of a compiled robot that are known before it is trained: mass, size, torques, counts.

Their names are those of :data:`~orchestrator.features.search.declaration.constraints.MODEL_MEASURES`.
"""

from __future__ import annotations

import mujoco
import numpy as np
from numpy.typing import NDArray

from orchestrator.worker.mjmodel.actuators import scalar_joints
from orchestrator.worker.mjmodel.robot import bodies_of_robot
from orchestrator.worker.mjmodel.structure import Floats, posed_data
from orchestrator.worker.tasks.base import find_keyframe, keyframe_pose

COUNTS = ("nu", "nv", "nbody", "ngeom")
_ON_TENDON = (int(mujoco.mjtTrn.mjTRN_TENDON), int(mujoco.mjtTrn.mjTRN_SLIDERCRANK))


def measured_model(model: mujoco.MjModel) -> dict[str, float | None]:
    """The measures by name; None for one that has no value, such as a torque without a limit."""
    pose = keyframe_pose(model, find_keyframe(model, None))  # of a task with default options
    robot = bodies_of_robot(model, pose)
    sizes = _sizes_m(model, pose, robot)
    torques = _highest_torques(model)
    is_bounded = len(torques) > 0 and bool(np.isfinite(torques).all())
    return {
        "mass_kg": float(np.add.reduce(model.body_mass[robot])),
        "length_m": sizes[0],
        "width_m": sizes[1],
        "height_m": sizes[2],
        "torque_max": float(torques.max()) if is_bounded else None,
        "torque_sum": float(np.add.reduce(torques)) if is_bounded else None,
        **{name: float(getattr(model, name)) for name in COUNTS},
    }


def _sizes_m(model: mujoco.MjModel, pose: Floats, robot: NDArray[np.bool_]) -> list[float | None]:
    """Along x, y and z, of the boxes around the geoms of the bodies ``robot`` (nbody,); None
    without any.
    """
    data = posed_data(model, pose)
    of_robot = robot[model.geom_bodyid]
    if not of_robot.any():
        return [None, None, None]
    turns = data.geom_xmat[of_robot].reshape(-1, 3, 3)
    boxes = model.geom_aabb[of_robot]
    centres = data.geom_xpos[of_robot] + np.einsum("gij,gj->gi", turns, boxes[:, :3])
    halves = np.einsum("gij,gj->gi", np.abs(turns), boxes[:, 3:])
    sizes = (centres + halves).max(axis=0) - (centres - halves).min(axis=0)
    return [float(size) for size in sizes]


def _highest_torques(model: mujoco.MjModel) -> Floats:
    """``(nout,)`` that each output of the actuators can give, in N·m at hinges; infinite where
    nothing limits it.
    """
    actuators = np.repeat(np.arange(model.nactuator), model.actuator_outnum)
    forces = np.array([_highest_force(model, number) for number in range(model.nactuator)])
    torques: Floats = forces[actuators] * _torque_levers(model)
    for output, joint in enumerate(scalar_joints(model)[actuators].tolist()):
        if joint >= 0 and model.jnt_actfrclimited[joint]:
            most = float(np.abs(model.jnt_actfrcrange[joint]).max())
            torques[output] = min(torques[output], most)
    return torques


def _highest_force(model: mujoco.MjModel, actuator: int) -> float:
    """By its force range; for a motor also by its control range."""
    found = [np.inf]
    if model.actuator_forcelimited[actuator]:
        found.append(float(np.abs(model.actuator_forcerange[actuator]).max()))
    is_motor = (
        model.actuator_gaintype[actuator] == int(mujoco.mjtGain.mjGAIN_FIXED)
        and model.actuator_biastype[actuator] == int(mujoco.mjtBias.mjBIAS_NONE)
        and model.actuator_dyntype[actuator] == int(mujoco.mjtDyn.mjDYN_NONE)
        and model.actuator_ctrlnum[actuator] == 1
    )
    control = int(model.actuator_ctrladr[actuator])
    if is_motor and model.actuator_ctrllimited[control]:
        highest = float(np.abs(model.actuator_ctrlrange[control]).max())
        found.append(abs(float(model.actuator_gainprm[actuator, 0])) * highest)
    return min(found)


def _torque_levers(model: mujoco.MjModel) -> Floats:
    """``(nout,)`` torque for each unit of actuator force, of each output."""
    on_joint = np.repeat(scalar_joints(model), model.actuator_outnum) >= 0
    on_tendon = np.isin(np.repeat(model.actuator_trntype, model.actuator_outnum), _ON_TENDON)
    gear = model.actuator_gear
    levers: Floats = np.where(
        on_joint | on_tendon, np.abs(gear[:, 0]), np.linalg.norm(gear, axis=1)
    )
    return levers
