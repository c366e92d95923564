"""Which bodies and joints of a compiled model are the robot, as opposed to loose objects, the world,
and what is fixed to it.

The rules differ on purpose:

- :func:`bodies_of_robot`: what actuators move, whatever the task is about.
- :func:`joints_of_robot`: the same and the tree of the root that a task is about, which is the robot
  also where nothing is driven.
- :func:`joints_of_tree`: one tree alone, whatever other trees actuators move: an arm without what
  stands beside it.
"""

from __future__ import annotations

import mujoco
import numpy as np
from numpy.typing import NDArray

from orchestrator.worker.mjmodel.structure import Floats, driven_dofs, posed_data


def driven_trees(model: mujoco.MjModel, data: mujoco.MjData) -> NDArray[np.int32]:
    """Numbers of the kinematic trees that actuators move in the pose of ``data``."""
    trees: NDArray[np.int32] = np.unique(model.dof_treeid[driven_dofs(model, data)])
    return trees


def bodies_of_robot(model: mujoco.MjModel, pose: Floats) -> NDArray[np.bool_]:
    """``(nbody,)`` which bodies are parts of the robot that move: those of the kinematic trees that
    actuators move, and of all trees where there is no actuator. Loose objects, the world and what
    is fixed to it (the foot of an arm as well as a table) are none.

    :param pose: ``(nq,)`` the starting pose.
    """
    trees = driven_trees(model, posed_data(model, pose))
    is_driven: NDArray[np.bool_] = np.isin(model.body_treeid, trees)
    is_moving: NDArray[np.bool_] = model.body_treeid >= 0
    return is_driven if len(trees) else is_moving


def joints_of_robot(model: mujoco.MjModel, data: mujoco.MjData, body: int) -> list[int]:
    """Numbers of the joints in the tree of ``body`` and in trees with actuators, without loose
    objects.
    """
    trees = {int(model.body_treeid[body]), *driven_trees(model, data).tolist()}
    return joints_in(model, trees)


def joints_of_tree(model: mujoco.MjModel, body: int) -> list[int]:
    """Numbers of the joints in the tree of ``body``."""
    return joints_in(model, {int(model.body_treeid[body])})


def joints_in(model: mujoco.MjModel, trees: set[int]) -> list[int]:
    """Numbers of the joints in kinematic trees with these numbers."""
    return [
        joint
        for joint in range(model.njnt)
        if int(model.body_treeid[model.jnt_bodyid[joint]]) in trees
    ]
