"""Task ``forward``: move along world x as fast as the robot can, without falling over.

In the manner of gymnasium's MuJoCo v5 locomotion environments (Hopper-v5, Walker2d-v5, HalfCheetah-v5,
Ant-v5; their documentation gives the same three terms):

    reward = forward_reward_weight · Δx / Δt + healthy_reward · healthy − ctrl_cost_weight · mean(action²)

Unlike there the control cost is a mean over actuators, not a sum, so that one weight suits a robot of
two motors and one of twenty, and what is healthy follows from the robot's own starting pose.

Observation: positions without the root's x and y, then velocities clipped to ±10.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from orchestrator.worker.tasks.base import (
    CommonOptions,
    Floats,
    States,
    joint_name,
    joint_type,
    noisy_start,
    read_options,
    start_pose,
)

FREE, BALL, SLIDE, HINGE = (
    mujoco.mjtJoint.mjJNT_FREE,
    mujoco.mjtJoint.mjJNT_BALL,
    mujoco.mjtJoint.mjJNT_SLIDE,
    mujoco.mjtJoint.mjJNT_HINGE,
)

CONTROL_PERIOD_S = 0.04
MAX_OBSERVED_VELOCITY = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardOptions(CommonOptions):
    forward_reward_weight: float = 1.0
    ctrl_cost_weight: float = 0.1
    terminate_when_unhealthy: bool = True
    """Set false for robots that cannot fall over, or that should learn to get up."""
    healthy_reward: float | None = None
    """Per control step; None: 1 where falling ends the episode, 0 where it does not (as HalfCheetah-v5)."""
    min_height: float = 0.6
    """The root is healthy above this fraction of its starting height over z = 0."""
    max_tilt: float = 1.0
    """… and within this angle in radians of its starting orientation, turns about the vertical aside."""

    @property
    def healthy_bonus(self) -> float:
        if self.healthy_reward is None:
            return 1.0 if self.terminate_when_unhealthy else 0.0
        return self.healthy_reward


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinate:
    """One scalar joint of the root: its address in ``qpos`` and its sense (+1 or −1) in world axes."""

    address: int
    sign: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """How the robot's base moves: a free joint, or some of slide x, y, z and hinge y."""

    x: Coordinate
    y: Coordinate | None
    z: Coordinate | None
    pitch: Coordinate | None
    quaternion: slice | None
    start_height: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    model: mujoco.MjModel
    options: ForwardOptions
    frame_skip: int
    root: Root
    pose: Floats
    observed: NDArray[np.intp]
    """Addresses in ``qpos`` of the observed positions."""
    start_up: Floats
    """``(3,)`` world up in the root's own frame at the start; free roots only."""

    @property
    def max_episode_steps(self) -> int:
        return self.options.max_episode_steps

    @property
    def observation_size(self) -> int:
        return len(self.observed) + int(self.model.nv)

    def initial_state(self, rng: np.random.Generator) -> tuple[Floats, Floats]:
        return noisy_start(self.model, self.pose, self.options.reset_noise_scale, rng)

    def observe(self, states: States) -> NDArray[np.float32]:
        observations = np.empty((len(states.qpos), self.observation_size), np.float32)
        split = len(self.observed)
        observations[:, :split] = states.qpos[:, self.observed]
        velocities = observations[:, split:]
        velocities[:] = states.qvel
        np.minimum(velocities, MAX_OBSERVED_VELOCITY, out=velocities)
        np.maximum(velocities, -MAX_OBSERVED_VELOCITY, out=velocities)
        return observations

    def reward_and_terminated(self, before: States, action: Floats, after: States) -> tuple[Floats, NDArray[np.bool_]]:
        options, x = self.options, self.root.x
        step_s = self.frame_skip * self.model.opt.timestep
        velocity = (after.qpos[:, x.address] - before.qpos[:, x.address]) * (x.sign / step_s)
        effort = np.square(action).sum(axis=1) / action.shape[1]
        rewards = options.forward_reward_weight * velocity - options.ctrl_cost_weight * effort
        healthy = self.healthy(after)
        rewards += options.healthy_bonus * healthy
        return rewards, ~healthy if options.terminate_when_unhealthy else np.zeros(len(healthy), bool)

    def healthy(self, states: States) -> NDArray[np.bool_]:
        """``(n_envs,)``: high and upright enough; never where a coordinate is not a number."""
        root, qpos = self.root, states.qpos
        healthy = np.isfinite(qpos[:, root.x.address])
        if root.z is not None:
            rise = root.z.sign * (qpos[:, root.z.address] - self.pose[root.z.address])
            healthy &= rise > (self.options.min_height - 1.0) * root.start_height
        if root.pitch is not None:
            healthy &= np.abs(qpos[:, root.pitch.address] - self.pose[root.pitch.address]) < self.options.max_tilt
        if root.quaternion is not None:
            cosine = world_up(qpos[:, root.quaternion]) @ self.start_up
            healthy &= cosine > math.cos(min(self.options.max_tilt, math.pi))
        return healthy


def world_up(quaternions: Floats) -> Floats:
    """``(n, 4)`` unit quaternions (w x y z) → ``(n, 3)`` the world's up as seen in the rotated frame.

    The third row of the rotation matrix.
    """
    w, x, y, z = quaternions.T
    return np.stack((2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)), axis=1)


def load(model: mujoco.MjModel, options: Mapping[str, Any]) -> Forward:
    """:raises ValueError: unknown or wrong option, or no root that can move along x."""
    chosen = read_options("forward", ForwardOptions, options)
    pose = start_pose(model)
    root = find_root(model, pose)
    unseen = [coordinate.address for coordinate in (root.x, root.y) if coordinate is not None]
    quaternion = pose[root.quaternion] if root.quaternion is not None else np.array([1.0, 0.0, 0.0, 0.0])
    task = Forward(
        model=model,
        options=chosen,
        frame_skip=chosen.frame_skip_for(model, CONTROL_PERIOD_S),
        root=root,
        pose=pose,
        observed=np.setdiff1d(np.arange(model.nq), unseen),
        start_up=world_up(quaternion[None])[0],
    )
    if chosen.terminate_when_unhealthy and not task.healthy(States(pose[None], np.zeros((1, model.nv))))[0]:
        raise ValueError(
            f'task "forward": the starting pose is unhealthy already (root body at height {root.start_height:g} over '
            f"z = 0, min_height = {chosen.min_height:g}, max_tilt = {chosen.max_tilt:g}), so every episode would end "
            "at once; put the root body at its height over the ground, change these options, or set "
            "terminate_when_unhealthy = false"
        )
    return task


def find_root(model: mujoco.MjModel, pose: Floats) -> Root:
    """The first body with joints that hangs on the world, and what its joints do in world axes."""
    data = mujoco.MjData(model)
    data.qpos[:] = pose
    mujoco.mj_kinematics(model, data)
    mujoco.mj_comPos(model, data)
    bodies = [body for body in range(1, model.nbody) if model.body_parentid[body] == 0 and model.body_jntnum[body]]
    for body in bodies:
        height = float(data.xpos[body, 2])
        coordinates: dict[str, Coordinate] = {}
        for joint in _joints(model, body):
            address = int(model.jnt_qposadr[joint])
            kind = joint_type(model, joint)
            if kind == FREE:
                free_x, free_y, free_z = (Coordinate(address=address + offset, sign=1.0) for offset in range(3))
                quaternion = slice(address + 3, address + 7)
                return Root(x=free_x, y=free_y, z=free_z, pitch=None, quaternion=quaternion, start_height=height)
            axis = int(np.abs(data.xaxis[joint]).argmax())
            sign = float(np.sign(data.xaxis[joint, axis]))
            if abs(data.xaxis[joint, axis]) < 0.999:
                continue
            if kind == SLIDE:
                coordinates.setdefault("xyz"[axis], Coordinate(address=address, sign=sign))
            elif kind == HINGE and axis == 1:
                coordinates.setdefault("pitch", Coordinate(address=address, sign=sign))
        if "x" in coordinates:
            y, z, pitch = (coordinates.get(name) for name in ("y", "z", "pitch"))
            return Root(x=coordinates["x"], y=y, z=z, pitch=pitch, quaternion=None, start_height=height)
    raise ValueError(
        'task "forward" needs a free joint or a slide joint along x at the root (usually slide x, slide z and '
        f"hinge y); this robot has {_describe_roots(model, bodies)}"
    )


def _describe_roots(model: mujoco.MjModel, bodies: list[int]) -> str:
    words = {BALL: "ball joint {}", SLIDE: "slide joint {} along {}", HINGE: "hinge joint {} about {}"}
    found = [
        words[joint_type(model, joint)].format(joint_name(model, joint), model.jnt_axis[joint].round(3).tolist())
        for body in bodies
        for joint in _joints(model, body)
    ]
    return ", ".join(found) if found else "no joint there at all"


def _joints(model: mujoco.MjModel, body: int) -> range:
    return range(model.body_jntadr[body], model.body_jntadr[body] + model.body_jntnum[body])
