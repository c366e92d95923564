"""The built-in task that suits a robot's structure, which ``task = "auto"`` selects.

The first of these that fits:

1. ``balance``: every joint is driven except hinges whose load stands above them and would tip over;
2. ``forward``: a free joint at the root, or a root that slides along x and is not driven along a
   rail of finite length;
3. ``reach``: actuators move a chain on a fixed base.

``stand`` and ``track`` suit the same robots as ``forward`` and are never selected: ``forward`` has
the weakest requirements on robot and keyframe.
"""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np

from orchestrator.worker.mjmodel.robot import driven_trees
from orchestrator.worker.mjmodel.root import NoRootError, Root, find_root
from orchestrator.worker.mjmodel.structure import Floats, driven_dofs, posed_data
from orchestrator.worker.tasks.balance import driven_joints_and_poles
from orchestrator.worker.tasks.base import find_keyframe, keyframe_pose
from orchestrator.worker.tasks.reach import Reach, ReachOptions

_UPRIGHT = 0.9
"""Least cosine between the vertical and the direction from the axis of a hinge to the load of a
standing pole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskChoice:
    """A built-in task for a robot."""

    task: str
    """Its name."""
    reason: str
    """For people: ``free root 'trunk'``."""


def choose(model: mujoco.MjModel) -> TaskChoice:
    """The first built-in task that suits.

    :raises ValueError: no built-in task suits; the message says what each requires.
    """
    key = find_keyframe(model, None)
    pose = keyframe_pose(model, key)
    if _has_standing_poles(model, pose):
        return TaskChoice(task="balance", reason="upright poles on a driven base")
    try:
        root = find_root(model, pose)
    except NoRootError:
        root = None
    if root is not None and not _is_gantry(model, root, pose):
        kind = "free" if root.quaternion is not None else "planar"
        body = model.body(root.body).name or root.body
        return TaskChoice(task="forward", reason=f"{kind} root '{body}'")
    try:
        effector = Reach(model, ReachOptions()).effector
    except ValueError as error:
        raise ValueError(
            'no built-in task suits this robot: "forward" needs a root that is free or slides along x, "balance" poles '
            f'on a driven base, and "reach" {error}. Write your own task: task = "my_tasks:MyTask" (docs/tasks.md)'
        ) from None
    return TaskChoice(task="reach", reason=f"driven chain on a fixed base ends in {effector.name}")


def _has_standing_poles(model: mujoco.MjModel, pose: Floats) -> bool:
    """Return whether all hinges without actuator are poles that stand on a driven base."""
    try:
        _, poles = driven_joints_and_poles(model, pose)
    except ValueError:
        return False
    data = posed_data(model, pose)
    loads = data.subtree_com[model.jnt_bodyid[poles]] - data.xanchor[poles]
    axes = data.xaxis[poles]
    loads -= axes * (loads * axes).sum(axis=1, keepdims=True)
    weights = np.linalg.norm(loads, axis=1) * np.linalg.norm(model.opt.gravity)
    return bool((loads @ -model.opt.gravity > _UPRIGHT * weights).all())


def _is_gantry(model: mujoco.MjModel, root: Root, pose: Floats) -> bool:
    """Whether actuators push the root along a rail with limits, or beside loose objects: a machine's
    axis, or a hand that handles them, not a robot that walks.
    """
    joint = model.dof_jntid[root.x.dof]
    data = posed_data(model, pose)
    is_pushed = root.quaternion is None and bool(driven_dofs(model, data)[root.x.dof])
    has_objects = len(driven_trees(model, data)) < model.ntree
    return is_pushed and (bool(model.jnt_limited[joint]) or has_objects)
