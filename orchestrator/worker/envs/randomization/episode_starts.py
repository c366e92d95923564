"""Where an episode starts: the keys ``start.*`` and ``terrain`` of ``[jobs.randomize]``."""

from __future__ import annotations

import math
from collections.abc import Mapping

import mujoco
import numpy as np
from numpy.typing import NDArray

from orchestrator.core.numbers.changing_numbers import TrainingMoment
from orchestrator.worker.envs.episode_conditions import GridPlaces
from orchestrator.worker.envs.randomization.draws import draw, of_each
from orchestrator.worker.envs.randomization.randomized_fields import RandomizeError, table_of
from orchestrator.worker.envs.randomization.rough_terrain import RoughTerrain
from orchestrator.worker.mjmodel.joints import joint_type, joints_of
from orchestrator.worker.mjmodel.robot import joints_of_robot
from orchestrator.worker.mjmodel.root import NoRootError, Root, find_root, horizontal_push
from orchestrator.worker.mjmodel.structure import Floats, posed_data
from orchestrator.worker.tasks import Task
from orchestrator.worker.tasks.base import start_limits

KEYS = ("start.joints", "start.height", "start.turn", "start.speed")
_ONE_POSITION = (mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE)


class EpisodeStarts:
    """Changes the state in which a task lets an episode start.

    :param terrain: the floor, if it is rough.
    :param places: ``(n_envs, 2)`` where the terrain lies in the running episodes; changed here.
    :raises RandomizeError: a key does not fit the robot.
    """

    def __init__(
        self,
        randomize: Mapping[str, str],
        task: Task,
        terrain: RoughTerrain | None,
        places: Floats,
        grid: GridPlaces | None = None,
    ) -> None:
        self._task = task
        self._terrain = terrain
        self._places = places
        self._by_key = {
            key: drawn for key in KEYS if (drawn := of_each(key, randomize, grid, len(places)))
        }
        needed = [key for key in self._by_key if key != "start.joints"]
        self._root = _root(task, needed, randomize) if needed else None
        self._joints: NDArray[np.intp] = np.zeros(0, np.intp)
        """Addresses in ``qpos`` of the joints that are moved."""
        if "start.joints" in self._by_key:
            self._joints = _joint_addresses(task)
            if not len(self._joints):
                table = table_of("start.joints", randomize)
                raise RandomizeError(f"{table}.start.joints: the robot has no such joints")
        self._lowest, self._highest = start_limits(task.model, task.pose)

    def change(
        self, env: int, qpos: Floats, qvel: Floats, rng: np.random.Generator, moment: TrainingMoment
    ) -> None:
        """Draw a start.

        :param qpos: ``(nq,)``, changed like ``qvel``, ``(nv,)``.
        """
        sources = {key: of_each_env[env] for key, of_each_env in self._by_key.items()}
        if "start.joints" in sources:
            for address in self._joints:
                moved = qpos[address] + draw(sources["start.joints"], rng, moment)
                qpos[address] = min(max(moved, self._lowest[address]), self._highest[address])
        root = self._root
        if root is not None and root.z is not None and "start.height" in sources:
            qpos[root.z.address] += root.z.sign * draw(sources["start.height"], rng, moment)
        if root is not None and root.quaternion is not None and "start.turn" in sources:
            _turn(qpos, root.quaternion, draw(sources["start.turn"], rng, moment))
        if root is not None and "start.speed" in sources:
            speed = draw(sources["start.speed"], rng, moment)
            qvel += horizontal_push(root, len(qvel), speed, rng)
        if self._terrain is not None:
            self._places[env] = self._terrain.draw(rng)
            self._terrain.lift(qpos, self._places[env])


def _root(task: Task, keys: list[str], randomize: Mapping[str, str]) -> Root:
    """:raises RandomizeError: the robot's base does not move as ``keys`` need it."""
    try:
        root = find_root(task.model, task.pose)
    except NoRootError as error:
        raise RandomizeError(f"{table_of(keys[0], randomize)}.{keys[0]}: {error}") from None
    impossible = {}
    if root.z is None:
        impossible["start.height"] = "move up and down"
    if root.quaternion is None:
        impossible["start.turn"] = "turn freely, as it has no free joint"
    for key in keys:
        if key in impossible:
            raise RandomizeError(
                f"{table_of(key, randomize)}.{key}: the robot's base cannot {impossible[key]}"
            )
    return root


def _joint_addresses(task: Task) -> NDArray[np.intp]:
    """Addresses in qpos of the hinges and slides of the robot but for those of its base. What stands
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
    return np.array(
        [model.jnt_qposadr[joint] for joint in joints if joint_type(model, joint) in _ONE_POSITION],
        np.intp,
    )


def _turn(qpos: Floats, quaternion: slice, angle: float) -> None:
    """Turn the base by ``angle`` radians about the vertical."""
    about_z = np.array([math.cos(angle / 2), 0.0, 0.0, math.sin(angle / 2)])
    turned = np.zeros(4)
    mujoco.mju_mulQuat(turned, about_z, qpos[quaternion])
    qpos[quaternion] = turned
