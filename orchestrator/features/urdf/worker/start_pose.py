"""Where a robot that was a URDF starts: its joints, its height, and the links that touch there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import mujoco
import numpy as np

from orchestrator.features.urdf.worker.joint_values import JointValueError, values_of_joints
from orchestrator.features.urdf.worker.servo_gains import Floats
from orchestrator.features.urdf.worker.urdf_structure import DRIVEN, UrdfJoint

CLEARANCE_M = 0.001
"""Between a floating robot and the floor, so that nothing touches at the start."""


def start_pose(
    model: mujoco.MjModel, joints: Sequence[UrdfJoint], given: Mapping[str, float]
) -> tuple[Floats, list[str]]:
    """``(nq,)`` positions: those given by joint or pattern, otherwise 0, or the middle of limits that
    do not include 0; and the names of joints in the middle.

    Joints that mimic another follow it.

    :raises JointValueError: a given position is of no joint, or outside of its limits.
    """
    pose = np.array(model.qpos0)
    moved = list[str]()
    movable = [one.name for one in joints if one.kind in DRIVEN and one.mimic is None]
    positions = values_of_joints(given, movable, "urdf.pose")
    followers = {joint.name: joint.mimic for joint in joints if joint.mimic is not None}
    all_numbers = {joint.name: _number(model, joint.name) for joint in joints}
    numbers = {name: number for name, number in all_numbers.items() if number >= 0}
    for name, number in numbers.items():
        low, high = model.jnt_range[number]
        if name in positions:
            position = positions[name]
            if model.jnt_limited[number] and not low <= position <= high:
                raise JointValueError(
                    f"urdf.pose: {position:g} is outside of the limits of the joint {name!r}, {low:g} to {high:g}"
                )
            pose[model.jnt_qposadr[number]] = position
        elif name not in followers and model.jnt_limited[number] and not low <= 0 <= high:
            pose[model.jnt_qposadr[number]] = (low + high) / 2
            moved.append(name)

    for name in followers:
        chain = [name]
        while chain[-1] in followers:
            chain.append(followers[chain[-1]].joint)
        value = float(pose[model.jnt_qposadr[numbers[chain.pop()]]])
        for follower in reversed(chain):
            mimic = followers[follower]
            value = mimic.factor * value + mimic.offset
        pose[model.jnt_qposadr[numbers[name]]] = value
    return pose, moved


def _number(model: mujoco.MjModel, joint: str) -> int:
    """-1 for one that the model does not have."""
    return int(mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_JOINT, joint))


def overlapping_bodies(model: mujoco.MjModel, data: mujoco.MjData) -> list[tuple[str, str]]:
    """Pairs of bodies that touch in the state of ``data``, for which ``mj_forward`` has been
    called.
    """
    bodies = [
        sorted(int(model.geom_bodyid[geom]) for geom in contact.geom)
        for contact in data.contact[: data.ncon]
    ]
    pairs = sorted({(first, second) for first, second in bodies if first > 0})
    return [(model.body(first).name, model.body(second).name) for first, second in pairs]


def lowest_points(model: mujoco.MjModel, data: mujoco.MjData) -> Floats:
    """``(nbody,)`` heights in m of the lowest of each body: of its frame, and of its geometry that
    collides.
    """
    lowest = np.array(data.xpos[:, 2])
    for geom in np.flatnonzero(model.geom_contype | model.geom_conaffinity).tolist():
        body = int(model.geom_bodyid[geom])
        lowest[body] = min(lowest[body], _lowest(model, data, geom))
    return lowest


def lowest_point(model: mujoco.MjModel, data: mujoco.MjData) -> float | None:
    """Height in m of the lowest point of geometry that collides; None where nothing does."""
    collides = np.flatnonzero(model.geom_contype | model.geom_conaffinity)
    return min((_lowest(model, data, int(geom)) for geom in collides), default=None)


def _lowest(model: mujoco.MjModel, data: mujoco.MjData, geom: int) -> float:
    """By the support of each shape in the direction of gravity."""
    kind = mujoco.mjtGeom(int(model.geom_type[geom]))
    size = model.geom_size[geom]
    height = float(data.geom_xpos[geom, 2])
    down = np.abs(data.geom_xmat[geom].reshape(3, 3)[2])
    if kind == mujoco.mjtGeom.mjGEOM_MESH:
        mesh = int(model.geom_dataid[geom])
        first = int(model.mesh_vertadr[mesh])
        vertices = model.mesh_vert[first : first + int(model.mesh_vertnum[mesh])]
        return height + float((vertices @ data.geom_xmat[geom].reshape(3, 3)[2]).min())
    if kind == mujoco.mjtGeom.mjGEOM_SPHERE:
        return height - float(size[0])
    if kind == mujoco.mjtGeom.mjGEOM_CAPSULE:
        return height - float(size[0] + down[2] * size[1])
    if kind == mujoco.mjtGeom.mjGEOM_CYLINDER:
        return height - float(size[0] * np.sqrt(max(0.0, 1 - down[2] ** 2)) + down[2] * size[1])
    if kind == mujoco.mjtGeom.mjGEOM_ELLIPSOID:
        return height - float(np.linalg.norm(down * size))
    return height - float(down @ size)  # a box
