"""The joints that connect a robot's base (its root body) with the world, and whether the base is
still upright.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from orchestrator.worker.tasks.actions import Floats
from orchestrator.worker.tasks.base import RewardAndTermination, States, joint_name, joint_type
from orchestrator.worker.tasks.structure import (
    driven_dofs,
    ground_below,
    is_fixed,
    joints_of,
    posed,
)
from orchestrator.worker.tasks.task_options import CommonOptions

FREE, BALL = mujoco.mjtJoint.mjJNT_FREE, mujoco.mjtJoint.mjJNT_BALL
SLIDE, HINGE = mujoco.mjtJoint.mjJNT_SLIDE, mujoco.mjtJoint.mjJNT_HINGE


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
    data = posed(model, pose)
    bodies = np.flatnonzero(model.body_jntnum).tolist()
    bodies = [body for body in bodies if is_fixed(model, model.body_parentid[body])]
    trees = {int(model.dof_treeid[dof]) for dof in np.flatnonzero(driven_dofs(model, data))}
    bodies = [body for body in bodies if model.body_treeid[body] in trees] or bodies
    for body in bodies:
        height = float(data.xpos[body, 2]) - ground_below(model, data, data.xpos[body])
        coordinates: dict[str, Any] = {}
        for joint in joints_of(model, body):
            address, dof = int(model.jnt_qposadr[joint]), int(model.jnt_dofadr[joint])
            kind = joint_type(model, joint)
            if kind == FREE:
                x, y, z = (
                    Coordinate(address=address + axis, dof=dof + axis, sign=1.0)
                    for axis in range(3)
                )
                quaternion = slice(address + 3, address + 7)
                return Root(
                    body=body,
                    start_height=height,
                    x=x,
                    y=y,
                    z=z,
                    quaternion=quaternion,
                    free_dof=dof,
                )
            axis = int(np.abs(data.xaxis[joint]).argmax())
            if abs(data.xaxis[joint, axis]) < 0.999:
                continue
            coordinate = Coordinate(
                address=address, dof=dof, sign=float(np.sign(data.xaxis[joint, axis]))
            )
            if kind == SLIDE:
                coordinates.setdefault("xyz"[axis], coordinate)
            elif kind == HINGE and axis == 1:
                coordinates.setdefault("pitch", coordinate)
        if "x" in coordinates:
            return Root(body=body, start_height=height, **coordinates)
    raise NoRootError(
        "needs a free joint or a slide joint along x at the root (usually slide x, slide z and hinge y); "
        f"this robot has {_describe_roots(model, bodies)}"
    )


def _describe_roots(model: mujoco.MjModel, bodies: list[int]) -> str:
    forms = {
        BALL: "ball joint {}",
        SLIDE: "slide joint {} along {}",
        HINGE: "hinge joint {} about {}",
    }
    descriptions = []
    for joint in (joint for body in bodies for joint in joints_of(model, body)):
        axis = model.jnt_axis[joint].round(3).tolist()
        descriptions.append(forms[joint_type(model, joint)].format(joint_name(model, joint), axis))
    return ", ".join(descriptions) or "no joint there"


def world_up(quaternions: Floats) -> Floats:
    """``(n, 4)`` unit quaternions (w x y z) → ``(n, 3)`` the world's up direction in the rotated
    frame.
    """
    w, x, y, z = quaternions.T
    return np.stack((2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)), axis=1)


def outer(quaternions: Floats) -> Floats:
    """``(n, 4)`` → ``(n, 16)`` products of every two components, a new array."""
    products: Floats = quaternions[:, :, None] * quaternions[:, None, :]
    return products.reshape(-1, 16)


def uprightness(up: Floats) -> Floats:
    """``(16,)`` M with ``outer(q) · M = world_up(q) · up`` for every unit quaternion, which is
    faster to compute.
    """
    a, b, c = up
    return np.array([c, b, -a, 0.0, b, -c, 0.0, a, -a, 0.0, -c, b, 0.0, a, b, c])


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthOptions(CommonOptions):
    terminate_when_unhealthy: bool | None = None
    """Whether falling ends the episode; None: yes if the robot can fall and starts upright."""
    healthy_reward: float | None = None
    """Reward per control step while healthy; None: 1 where falling ends the episode, else 0."""
    min_height: float = 0.6
    """The root is unhealthy below this fraction of its starting height over the ground."""
    max_tilt: float = 1.0
    """The root is unhealthy beyond this angle in radians from its starting orientation, apart from
    turns about the vertical."""


class Health:
    """Whether the root is high and upright enough compared with its starting pose.

    :raises ValueError: ``terminate_when_unhealthy`` is set, but the starting pose is unhealthy.
    """

    def __init__(
        self, model: mujoco.MjModel, root: Root, pose: Floats, options: HealthOptions
    ) -> None:
        self._root, self._pose = root, pose
        # Scalars as arrays are faster for NumPy.
        self._start_z = np.array(0.0 if root.z is None else pose[root.z.address])
        self._min_rise = np.array((options.min_height - 1.0) * root.start_height)
        self._max_tilt = options.max_tilt
        self._min_cosine = math.cos(min(options.max_tilt, math.pi))
        self._max_squares = np.array((1.0 - self._min_cosine) / 2)
        quaternion = (
            pose[root.quaternion] if root.quaternion is not None else np.array([1.0, 0.0, 0.0, 0.0])
        )
        up = world_up(quaternion[None])[0]
        self._uprightness = None if up[0] == up[1] == 0.0 < up[2] else uprightness(up)
        """None for a root that starts upright, whose tilt is faster to compute."""
        stands = bool(self(States(pose[None], np.zeros((1, model.nv))))[0])
        if options.terminate_when_unhealthy and not stands:
            raise ValueError(
                f"the starting pose is unhealthy already (root body at height {root.start_height:g} over the "
                f"ground, min_height = {options.min_height:g}, max_tilt = {options.max_tilt:g}), so every episode "
                "would end at once; put the root body at its height over the ground, change these options, or leave "
                "out terminate_when_unhealthy"
            )
        can_fall = any(part is not None for part in (root.z, root.pitch, root.quaternion))
        terminates = options.terminate_when_unhealthy
        self.terminates = stands and can_fall if terminates is None else terminates
        self.bonus = (
            (1.0 if self.terminates else 0.0)
            if options.healthy_reward is None
            else options.healthy_reward
        )

    def __call__(self, states: States) -> NDArray[np.bool_]:
        """``(n_envs,)`` whether the root is healthy; False where a coordinate is NaN."""
        root = self._root
        qpos = states.qpos
        healthy = np.isfinite(qpos[:, root.x.address])
        if root.z is not None:
            rise = qpos[:, root.z.address] - self._start_z
            healthy &= (rise if root.z.sign > 0 else -rise) > self._min_rise
        if root.pitch is not None:
            healthy &= (
                np.abs(qpos[:, root.pitch.address] - self._pose[root.pitch.address])
                < self._max_tilt
            )
        if root.quaternion is not None:
            quaternions = qpos[:, root.quaternion]
            if self._uprightness is None:  # cos(tilt) = 1 - 2 (x² + y²)
                squares = np.square(quaternions[:, 1:3])
                healthy &= squares[:, 0] + squares[:, 1] < self._max_squares
            else:
                products = outer(quaternions)
                products *= self._uprightness
                healthy &= np.add.reduce(products, axis=1) > self._min_cosine
        return healthy

    def judge(self, rewards: Floats, states: States) -> RewardAndTermination:
        """``rewards`` with the bonus for being healthy added in place, and whether episodes
        terminate.
        """
        healthy = self(states)
        rewards += healthy if self.bonus == 1.0 else self.bonus * healthy
        return rewards, ~healthy if self.terminates else np.zeros(len(healthy), bool)
