"""Where an episode starts: the keys ``start.*`` and ``terrain`` of ``[jobs.randomize]``."""

from __future__ import annotations

import math

import mujoco
import numpy as np

from orchestrator.worker.envs.randomization.draws import EpisodeDraws
from orchestrator.worker.envs.randomization.rough_terrain import RoughTerrain
from orchestrator.worker.mjmodel.joints import SCALAR, joints_of
from orchestrator.worker.mjmodel.robot import joints_of_robot
from orchestrator.worker.mjmodel.root import (
    NoRootError,
    Root,
    find_root,
    horizontal_push,
)
from orchestrator.worker.mjmodel.structure import Floats, posed_data
from orchestrator.worker.tasks import Task, input_names
from orchestrator.worker.tasks.base import start_limits

JOINTS = "start.joints"
HEIGHT = "start.height"
TURN = "start.turn"
SPEED = "start.speed"
TERRAIN_X = "terrain.x"
TERRAIN_Y = "terrain.y"


class EpisodeStarts:
    """Changes the state in which a task lets an episode start.

    :param draws: gets the values of what is drawn.
    :param terrain: the floor, if it is rough.
    :raises RandomizeError: a key does not fit the robot.
    """

    def __init__(
        self, draws: EpisodeDraws, task: Task, terrain: RoughTerrain | None, n_envs: int
    ) -> None:
        self._draws = draws
        self._terrain = terrain
        self._joints: dict[str, int] = {}
        """Joints that are moved, by the key of what is drawn for each: addresses in ``qpos``."""
        if JOINTS in draws.sources:
            self._joints = _joint_addresses(task)
            if not self._joints:
                reason = "the robot has no hinge or slide besides its base; leave the key out"
                raise draws.refusal(JOINTS, reason)
        of_root = [key for key in (HEIGHT, TURN, SPEED) if key in draws.sources]
        self._root = _root(task, of_root, draws) if of_root else None
        self._lowest, self._highest = start_limits(task.model, task.pose)
        places = [] if terrain is None else [TERRAIN_X, TERRAIN_Y]
        for key in (*self._joints, *of_root, *places):
            draws.values[key] = np.zeros(n_envs)

    def place(self, env: int | np.intp) -> Floats:
        """``(2,)`` where the terrain's middle lies in the world, in metres."""
        values = self._draws.values
        return np.array([values[TERRAIN_X][env], values[TERRAIN_Y][env]])

    def change(self, env: int, qpos: Floats, qvel: Floats, rng: np.random.Generator) -> None:
        """Draw a start.

        :param qpos: ``(nq,)``, changed like ``qvel``, ``(nv,)``.
        """
        draws = self._draws
        for key, address in self._joints.items():
            moved = qpos[address] + draws.keep(key, env, JOINTS)
            qpos[address] = min(max(moved, self._lowest[address]), self._highest[address])
        root = self._root
        turned_by = 0.0
        if root is not None and root.z is not None and HEIGHT in draws.sources:
            qpos[root.z.address] += root.z.sign * draws.keep(HEIGHT, env)
        if root is not None and root.quaternion is not None and TURN in draws.sources:
            turned_by = draws.keep(TURN, env)
            about_z = np.array([math.cos(turned_by / 2), 0.0, 0.0, math.sin(turned_by / 2)])
            turned = np.zeros(4)
            mujoco.mju_mulQuat(turned, about_z, qpos[root.quaternion])
            qpos[root.quaternion] = turned
        if root is not None and SPEED in draws.sources:
            qvel += horizontal_push(root, len(qvel), draws.keep(SPEED, env), rng)
        if self._terrain is not None:
            place = self._terrain.draw(rng)
            draws.values[TERRAIN_X][env], draws.values[TERRAIN_Y][env] = place
            self._terrain.lift(qpos, place, turned_by)


def _root(task: Task, keys: list[str], draws: EpisodeDraws) -> Root:
    """:raises RandomizeError: the robot's base does not move as ``keys`` need it."""
    try:
        root = find_root(task.model, task.pose)
    except NoRootError as error:
        raise draws.refusal(keys[0], f"{error}; leave the key out") from None
    for key, part in ((HEIGHT, root.z), (TURN, root.quaternion)):
        if key in keys and part is None:
            raise draws.refusal(key, "the robot's base cannot move like that; leave the key out")
    return root


def _joint_addresses(task: Task) -> dict[str, int]:
    """Key of each joint → address in qpos, of the hinges and slides of the robot but for those of its base. What stands
    beside a robot that moves about, such as a door, is none of it; what a robot on a fixed base moves is.
    """
    model = task.model
    try:
        body = find_root(model, task.pose).body
    except NoRootError:
        joints = list(range(model.njnt))
    else:
        of_root = joints_of(model, body)
        robot = joints_of_robot(model, posed_data(model, task.pose), body)
        joints = [joint for joint in robot if joint not in of_root]
    names = input_names.joints(model)
    return {
        f"{JOINTS}.{names[joint]}": int(model.jnt_qposadr[joint])
        for joint in joints
        if model.jnt_type[joint] in SCALAR
    }
