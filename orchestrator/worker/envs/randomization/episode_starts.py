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
from orchestrator.worker.mjmodel.root import NoRootError, Root, find_root, horizontal_push
from orchestrator.worker.mjmodel.structure import Floats
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
        self._joints = (
            _joint_addresses(task) if "start.joints" in self._by_key else np.zeros(0, np.intp)
        )
        if "start.joints" in self._by_key and not len(self._joints):
            raise RandomizeError(
                f"{table_of('start.joints', randomize)}.start.joints: the robot has no such joints"
            )
        self._lowest, self._highest = start_limits(task.model, task.pose)

    def change(
        self, env: int, qpos: Floats, qvel: Floats, rng: np.random.Generator, moment: TrainingMoment
    ) -> None:
        """:param qpos: ``(nq,)``, changed like ``qvel``, ``(nv,)``."""
        drawn = {key: each[env] for key, each in self._by_key.items()}
        if (distribution := drawn.get("start.joints")) is not None:
            for address in self._joints:
                moved = qpos[address] + draw(distribution, rng, moment)
                qpos[address] = min(max(moved, self._lowest[address]), self._highest[address])
        root = self._root
        if root is not None and root.z is not None and "start.height" in drawn:
            qpos[root.z.address] += root.z.sign * draw(drawn["start.height"], rng, moment)
        if root is not None and root.quaternion is not None and "start.turn" in drawn:
            _turn(qpos, root.quaternion, draw(drawn["start.turn"], rng, moment))
        if root is not None and "start.speed" in drawn:
            qvel += horizontal_push(root, len(qvel), draw(drawn["start.speed"], rng, moment), rng)
        if self._terrain is not None:
            self._places[env] = self._terrain.draw(rng)
            self._terrain.lift(qpos, self._places[env])


def _root(task: Task, keys: list[str], randomize: Mapping[str, str]) -> Root:
    """:raises RandomizeError: the robot's base does not move as ``keys`` need it."""
    try:
        root = find_root(task.model, task.pose)
    except NoRootError as error:
        raise RandomizeError(f"{table_of(keys[0], randomize)}.{keys[0]}: {error}") from None
    cannot = {"start.height": root.z is None, "start.turn": root.quaternion is None}
    for key in keys:
        if cannot.get(key):
            how = (
                "move up and down"
                if key == "start.height"
                else "turn freely, as it has no free joint"
            )
            raise RandomizeError(f"{table_of(key, randomize)}.{key}: the robot's base cannot {how}")
    return root


def _joint_addresses(task: Task) -> NDArray[np.intp]:
    """Addresses in qpos of the hinges and slides of the robot but for those of its base."""
    model = task.model
    try:
        of_root = joints_of(model, find_root(model, task.pose).body)
    except NoRootError:
        of_root = range(0)
    return np.array(
        [
            model.jnt_qposadr[joint]
            for joint in range(model.njnt)
            if joint not in of_root and joint_type(model, joint) in _ONE_POSITION
        ],
        np.intp,
    )


def _turn(qpos: Floats, quaternion: slice, angle: float) -> None:
    about_z = np.array([math.cos(angle / 2), 0.0, 0.0, math.sin(angle / 2)])
    turned = np.zeros(4)
    mujoco.mju_mulQuat(turned, about_z, qpos[quaternion])
    qpos[quaternion] = turned
