"""Where an episode starts: the keys ``start.*`` and ``terrain`` of ``[jobs.randomize]``."""

from __future__ import annotations

import math
from collections.abc import Mapping

import mujoco
import numpy as np

from orchestrator.core.numbers.changing_numbers import TrainingMoment
from orchestrator.worker.envs.episode_conditions import GridPlaces
from orchestrator.worker.envs.randomization.draws import draw, of_each, refusal
from orchestrator.worker.envs.randomization.rough_terrain import RoughTerrain
from orchestrator.worker.mjmodel.joints import joint_type, joints_of
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
KEYS = (JOINTS, HEIGHT, TURN, SPEED)
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
        self._terrain = terrain
        self._places = places
        self._sources = {
            key: drawn for key in KEYS if (drawn := of_each(key, randomize, grid, len(places)))
        }
        self._joints: dict[str, int] = {}
        """Joints that are moved, by the key of what is drawn for each: addresses in ``qpos``."""
        if JOINTS in self._sources:
            self._joints = _joint_addresses(task)
            if not self._joints:
                reason = "the robot has no hinge or slide besides its base; leave the key out"
                raise refusal(JOINTS, randomize, reason)
        of_root = [key for key in self._sources if key != JOINTS]
        self._root = _root(task, of_root, randomize) if of_root else None
        self._lowest, self._highest = start_limits(task.model, task.pose)
        self.drawn: dict[str, Floats] = {
            key: np.zeros(len(places)) for key in (*self._joints, *of_root)
        }
        """Key → ``(n_envs,)`` what the running episodes have drawn; of joints, one key for each."""

    def change(
        self, env: int, qpos: Floats, qvel: Floats, rng: np.random.Generator, moment: TrainingMoment
    ) -> None:
        """Draw a start.

        :param qpos: ``(nq,)``, changed like ``qvel``, ``(nv,)``.
        """

        def draw_value(source: str, key: str) -> float:
            value = draw(self._sources[source][env], rng, moment)
            self.drawn[key][env] = value
            return value

        for key, address in self._joints.items():
            moved = qpos[address] + draw_value(JOINTS, key)
            qpos[address] = min(max(moved, self._lowest[address]), self._highest[address])
        root = self._root
        turned_by = 0.0
        if root is not None and root.z is not None and HEIGHT in self._sources:
            qpos[root.z.address] += root.z.sign * draw_value(HEIGHT, HEIGHT)
        if root is not None and root.quaternion is not None and TURN in self._sources:
            turned_by = draw_value(TURN, TURN)
            about_z = np.array([math.cos(turned_by / 2), 0.0, 0.0, math.sin(turned_by / 2)])
            turned = np.zeros(4)
            mujoco.mju_mulQuat(turned, about_z, qpos[root.quaternion])
            qpos[root.quaternion] = turned
        if root is not None and SPEED in self._sources:
            qvel += horizontal_push(root, len(qvel), draw_value(SPEED, SPEED), rng)
        if self._terrain is not None:
            self._places[env] = self._terrain.draw(rng)
            self._terrain.lift(qpos, self._places[env], turned_by)

    def drawn_by(self, env: int) -> dict[str, float]:
        """What the running episode of environment ``env`` has drawn, and where its terrain lies."""
        found = {key: float(values[env]) for key, values in self.drawn.items()}
        if self._terrain is not None:
            x_m, y_m = self._places[env].tolist()
            found |= {"terrain.x": x_m, "terrain.y": y_m}
        return found


def _root(task: Task, keys: list[str], randomize: Mapping[str, str]) -> Root:
    """:raises RandomizeError: the robot's base does not move as ``keys`` need it."""
    try:
        root = find_root(task.model, task.pose)
    except NoRootError as error:
        raise refusal(keys[0], randomize, f"{error}; leave the key out") from None
    if HEIGHT in keys and root.z is None:
        reason = "the robot's base cannot move up and down; leave the key out"
        raise refusal(HEIGHT, randomize, reason)
    if TURN in keys and root.quaternion is None:
        reason = "the robot's base cannot turn freely, as it has no free joint; leave the key out"
        raise refusal(TURN, randomize, reason)
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
        if joint_type(model, joint) in _ONE_POSITION
    }
