"""Motion of a robot's root and joints, for any kind of root.

For a free joint MuJoCo gives the linear velocity in world axes (``qvel[:3]``) and the angular
velocity in body axes (``qvel[3:6]``); a planar root has one velocity for each of its joints.
"""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np

from orchestrator.worker.mjmodel.robot import joints_of_robot
from orchestrator.worker.mjmodel.root import NoRootError, Root, find_root
from orchestrator.worker.mjmodel.structure import Floats, addresses, posed_data
from orchestrator.worker.tasks import input_names
from orchestrator.worker.tasks.base import States, Task
from orchestrator.worker.tasks.health import Health, HealthOptions
from orchestrator.worker.tasks.input_names import NUMBER
from orchestrator.worker.tasks.terms import Term, offset_term, velocity_term

GRAVITY_M_S2 = 9.81
LEAST_HEIGHT_M = 0.05
"""Least height assumed for a robot, such as a swimmer or a snake, whose root lies lower."""


def _rotation() -> Floats:
    """``(9, 16)`` R: the products of every two components of q, times R[3 i + j], add up to entry (i, j) of
    q's rotation matrix.
    """
    table = np.zeros((9, 4, 4))
    axes = np.eye(4)
    sums, differences = np.zeros((2, 9))
    for row, column in np.ndindex(4, 4):
        mujoco.mju_quat2Mat(sums, axes[row] + axes[column])
        mujoco.mju_quat2Mat(differences, axes[row] - axes[column])
        table[:, row, column] = (sums - differences) / 4
    return table.reshape(9, 16)


_ROTATION = _rotation()


def rotation_matrices(quaternions: Floats) -> Floats:
    """``(n, 4)`` unit quaternions (w x y z) → ``(n, 3, 3)``, from body to world."""
    products = (quaternions[:, :, None] * quaternions[:, None, :]).reshape(-1, 1, 16)
    matrices: Floats = np.add.reduce(products * _ROTATION, axis=2)
    return matrices.reshape(-1, 3, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Motion:
    """Motion of the root in a batch of ``n`` environments.

    Computed without matrix products over the batch: BLAS rounds a row differently in batches of
    different sizes.
    """

    up: Floats
    """``(n, 3)`` the world's up direction in the root's axes: minus the projected gravity."""
    velocity: Floats
    """``(n, 3)`` metres a second, in the root's axes."""
    spin: Floats
    """``(n, 3)`` radians a second, in the root's axes."""
    heading_velocity: Floats
    """``(n, 3)`` metres a second forward, to the left and up: in world axes rotated about the
    vertical by the root's rotation since the starting pose."""
    yaw_rate: Floats
    """``(n,)`` radians a second about the vertical."""


class Proprioception:
    """Observations and measures of the robot's own motion.

    :param pose: ``(nq,)`` starting pose, in which the robot heads along world x.
    """

    def __init__(self, model: mujoco.MjModel, root: Root, pose: Floats) -> None:
        self._model = model
        self._root = root
        self._start = pose
        start = np.eye(3)
        if root.quaternion is not None:
            start = rotation_matrices(pose[None, root.quaternion])[0]
        self._ahead = start[0]
        """``(3,)`` the world's x at the start, in the root's axes: where the robot heads."""
        self.root_up = start[2]
        """``(3,)`` the world's up at the start, in the root's axes."""
        of_root = model.dof_jntid[[part.dof for part in root.coordinates]]
        robot = joints_of_robot(model, posed_data(model, pose), root.body)
        self.joint_numbers = [joint for joint in robot if joint not in of_root]
        """The robot's joints without its root."""
        self.joints, self.dofs = addresses(model, self.joint_numbers)
        """Their addresses in ``qpos``, and in ``qvel``."""
        self.home = pose[self.joints]
        self._latest: tuple[bytes, Motion] | None = None

    def motion(self, states: States) -> Motion:
        """Return the root's motion; the latest result is cached, because reward and observation both
        use it.
        """
        key = states.qpos.tobytes() + states.qvel.tobytes()
        if self._latest is None or self._latest[0] != key:
            self._latest = (key, self._compute_motion(states))
        return self._latest[1]

    def _compute_motion(self, states: States) -> Motion:
        root = self._root
        if root.quaternion is not None and root.free_dof is not None:
            rotations = rotation_matrices(states.qpos[:, root.quaternion])
            moving = states.qvel[:, root.free_dof : root.free_dof + 6]
        else:
            rotations, moving = self._planar_motion(states)
        velocity = moving[:, :3]
        spin = moving[:, 3:]
        ahead = (rotations[:, :2] * self._ahead).sum(axis=2)
        ahead /= np.maximum(np.sqrt(np.square(ahead).sum(axis=1, keepdims=True)), 1e-9)
        heading = velocity.copy()
        heading[:, 0] = ahead[:, 0] * velocity[:, 0] + ahead[:, 1] * velocity[:, 1]
        heading[:, 1] = ahead[:, 0] * velocity[:, 1] - ahead[:, 1] * velocity[:, 0]
        up = rotations[:, 2]
        return Motion(
            up=up,
            velocity=(velocity[:, :, None] * rotations).sum(axis=1),
            spin=spin,
            heading_velocity=heading,
            yaw_rate=(up * spin).sum(axis=1),
        )

    def terms(self) -> list[Term]:
        """Return the terms of up, velocity and spin of the root, joint offsets and velocities."""
        model = self._model

        def values(states: States) -> Floats:
            motion = self.motion(states)
            return np.concatenate((motion.up, motion.velocity, motion.spin), axis=1)

        quantities = [
            input_names.vector("up", NUMBER),
            input_names.vector("velocity", "m/s"),
            input_names.vector("spin", "rad/s"),
        ]
        return [
            Term(  # one term, as three would ask for the motion three times
                names=[name for labels in quantities for name in labels.names],
                units=[unit for labels in quantities for unit in labels.units],
                values=values,
            ),
            offset_term(model, self.joints, self.home),
            velocity_term(model, self.dofs),
        ]

    def _planar_motion(self, states: States) -> tuple[Floats, Floats]:
        """``(n, 3, 3)`` from the root's axes to the world's, and ``(n, 6)`` its linear and angular
        velocity, of a root without a free joint.
        """
        root = self._root
        moving = np.zeros((len(states.qvel), 6))
        for axis, part in enumerate((root.x, root.y, root.z, None, root.pitch)):
            if part is not None:
                moving[:, axis] = part.sign * states.qvel[:, part.dof]
        rotations = np.tile(np.eye(3), (len(moving), 1, 1))
        if (pitch := root.pitch) is not None:
            angle = pitch.sign * (states.qpos[:, pitch.address] - self._start[pitch.address])
            rotations[:, 0, 0] = rotations[:, 2, 2] = np.cos(angle)
            rotations[:, 0, 2] = np.sin(angle)
            rotations[:, 2, 0] = -rotations[:, 0, 2]
        return rotations, moving


class UprightTask(Task):
    """A task of a robot whose root moves about and has to stay high and upright.

    :raises ValueError: the robot has neither a floating nor a planar root.
    """

    def __init__(self, model: mujoco.MjModel, options: HealthOptions) -> None:
        super().__init__(model, options)
        self.root = find_root(model, self.pose)
        parts = (self.root.x, self.root.y)
        self.horizontal = [part.address for part in parts if part is not None]
        """Addresses in ``qpos`` of the root's horizontal coordinates."""
        self.healthy = Health(self.root, self.pose, options)
        self.root_motion = Proprioception(model, self.root, self.pose)


def root_motion_of(task: Task) -> Proprioception | None:
    """Return the motion of the root that ``task`` is about, or of the free joint that the robot has;
    None of a robot on a fixed base.
    """
    if isinstance(task, UprightTask):
        return task.root_motion
    try:
        root = find_root(task.model, task.pose)
    except NoRootError:
        return None
    return None if root.quaternion is None else Proprioception(task.model, root, task.pose)


def brisk_speed(root: Root) -> float:
    """Brisk walking speed in metres a second for the root's height: Froude number v² / (g · height)
    = 0.1.

    Animals of any size move alike at the same Froude number, and most run from 0.5 on (R. McN.
    Alexander, "Optimization and gaits in the locomotion of vertebrates", Physiological Reviews 69,
    1989).
    """
    return float(np.sqrt(0.1 * GRAVITY_M_S2 * max(root.start_height, LEAST_HEIGHT_M)))
