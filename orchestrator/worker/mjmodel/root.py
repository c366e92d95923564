"""The joints that connect the root body of a robot with the world: how its base moves."""

from __future__ import annotations

import math
from dataclasses import dataclass

import mujoco
import numpy as np

from orchestrator.worker.mjmodel.floor import ground_below
from orchestrator.worker.mjmodel.joints import (
    FREE,
    HINGE,
    SLIDE,
    joint_type,
    joints_of,
    type_name,
)
from orchestrator.worker.mjmodel.robot import driven_trees
from orchestrator.worker.mjmodel.structure import Floats, is_fixed, posed_data

LEAST_ALIGNED = 0.999
"""Cosine of the angle between a joint's axis and one of the world, for which it counts as this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinate:
    """One coordinate of the root: its address in ``qpos`` and ``qvel``, and its sign (+1 or −1) in
    world axes.
    """

    address: int
    dof: int
    sign: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """How the robot's base moves: by a free joint, or by slide x and possibly slide y, slide z and
    hinge y.
    """

    body: int
    start_height: float
    """Height in metres over the ground below (z = 0 without ground) in the starting pose."""
    x: Coordinate
    y: Coordinate | None = None
    z: Coordinate | None = None
    pitch: Coordinate | None = None
    quaternion: slice | None = None
    """Orientation of a free joint in ``qpos``; its six velocities in ``qvel`` start at
    :attr:`free_dof`."""
    free_dof: int | None = None

    @property
    def coordinates(self) -> list[Coordinate]:
        """The existing coordinates; for a free joint its three positions."""
        return [part for part in (self.x, self.y, self.z, self.pitch) if part is not None]


def horizontal_push(root: Root, nv: int, speed: float, rng: np.random.Generator) -> Floats:
    """``(nv,)`` velocities of a push in a random horizontal direction; along x where the root moves
    in a plane.

    :param speed: in metres a second.
    """
    pushed = np.zeros(nv)
    direction = rng.uniform(-math.pi, math.pi)
    if root.y is None:
        pushed[root.x.dof] = math.copysign(speed, direction)
    else:
        pushed[root.x.dof] = speed * math.cos(direction)
        pushed[root.y.dof] = speed * math.sin(direction)
    return pushed


class NoRootError(ValueError):
    """The robot's base cannot move along x; the message says which joints it has."""


def find_root(model: mujoco.MjModel, pose: Floats) -> Root:
    """The first body with joints whose parent is fixed, and how its joints move it in world axes.

    Bodies in trees with actuators take precedence: the robot rather than a loose object.

    :raises NoRootError: no such body can move along x.
    """
    data = posed_data(model, pose)
    bodies = _root_bodies(model, data)
    for body in bodies:
        height = float(data.xpos[body, 2]) - ground_below(model, data, data.xpos[body])
        for joint in joints_of(model, body):
            if joint_type(model, joint) == FREE:
                address = int(model.jnt_qposadr[joint])
                dof = int(model.jnt_dofadr[joint])
                x, y, z = (
                    Coordinate(address=address + axis, dof=dof + axis, sign=1.0)
                    for axis in range(3)
                )
                return Root(
                    body=body,
                    start_height=height,
                    x=x,
                    y=y,
                    z=z,
                    quaternion=slice(address + 3, address + 7),
                    free_dof=dof,
                )
        coordinates = _coordinates(model, data, body)
        if "x" in coordinates:
            return Root(
                body=body,
                start_height=height,
                x=coordinates["x"],
                y=coordinates.get("y"),
                z=coordinates.get("z"),
                pitch=coordinates.get("pitch"),
            )
    raise NoRootError(
        "needs a free joint or a slide joint along x at the root (usually slide x, slide z and hinge y); "
        f"this robot has there: {root_type(model)}"
    )


def _root_bodies(model: mujoco.MjModel, data: mujoco.MjData) -> list[int]:
    """Bodies with joints whose parent is fixed; only those in trees with actuators, if there are
    any.
    """
    with_joints = np.flatnonzero(model.body_jntnum).tolist()
    bodies = [body for body in with_joints if is_fixed(model, model.body_parentid[body])]
    trees = driven_trees(model, data).tolist()
    driven = [body for body in bodies if model.body_treeid[body] in trees]
    return driven or bodies


def _coordinates(model: mujoco.MjModel, data: mujoco.MjData, body: int) -> dict[str, Coordinate]:
    """What slide and hinge joints of ``body`` move along an axis of the world: ``x``, ``y``, ``z``
    and ``pitch``, as far as there are such joints.
    """
    coordinates: dict[str, Coordinate] = {}
    for joint in joints_of(model, body):
        axis = int(np.abs(data.xaxis[joint]).argmax())
        along = float(data.xaxis[joint, axis])
        if abs(along) < LEAST_ALIGNED:
            continue
        coordinate = Coordinate(
            address=int(model.jnt_qposadr[joint]),
            dof=int(model.jnt_dofadr[joint]),
            sign=float(np.sign(along)),
        )
        kind = joint_type(model, joint)
        if kind == SLIDE:
            coordinates.setdefault("xyz"[axis], coordinate)
        elif kind == HINGE and axis == 1:
            coordinates.setdefault("pitch", coordinate)
    return coordinates


def root_type(model: mujoco.MjModel) -> str:
    """Return the types of the joints that connect the robot to the world, as in ``"slide slide
    hinge"``; ``none`` where nothing moves.
    """
    if model.nv == 0:
        return "none"
    root = _root_bodies(model, posed_data(model, model.qpos0))[0]
    return " ".join(type_name(joint_type(model, joint)) for joint in joints_of(model, root))
