"""Bodies in whose axes a task's own observations are, found by the names of
:mod:`orchestrator.worker.tasks.input_names`.
"""

from __future__ import annotations

from collections.abc import Sequence

import mujoco

from orchestrator.worker.mjmodel.joints import BALL, FREE, joint_type
from orchestrator.worker.mjmodel.root import NoRootError
from orchestrator.worker.tasks import input_names
from orchestrator.worker.tasks.base import Task
from orchestrator.worker.tasks.motion import root_motion_of

NONE = ""
"""The axes of the world, or no vector at all."""
_QUANTITIES_OF_ROOT = ("up", "velocity", "spin")
"""What :class:`.Proprioception` observes in the axes of the root."""
_TURNING = {FREE: slice(3, 6), BALL: slice(0, 3)}
"""Which velocities of a joint are in the axes of its own body."""


def of_observations(task: Task, names: Sequence[str]) -> list[str]:
    """For each observation with these names, the body in whose axes it is, or :data:`NONE`."""
    known = _of_root(task) | _of_joints(task.model)
    return [known.get(name, NONE) for name in names]


def of_body(model: mujoco.MjModel, body: int) -> str:
    """The name by which a body stands as a frame."""
    return str(model.body(body).name or body)


def _of_root(task: Task) -> dict[str, str]:
    """Names of what is in the axes of the root → frame; empty for a robot on a fixed base."""
    try:
        root = root_motion_of(task).root
    except NoRootError:
        return {}
    names = [f"{quantity} {axis}" for quantity in _QUANTITIES_OF_ROOT for axis in "xyz"]
    return dict.fromkeys(names, of_body(task.model, root.body))


def _of_joints(model: mujoco.MjModel) -> dict[str, str]:
    """Names of velocities of joints, and of the forces for them, → frame, where it is not the
    world's.
    """
    names = input_names.velocities(model)
    found: dict[str, str] = {}
    for joint in range(model.njnt):
        turning = _TURNING.get(joint_type(model, joint))
        if turning is None:
            continue
        frame = of_body(model, int(model.jnt_bodyid[joint]))
        for name in names[int(model.jnt_dofadr[joint]) :][turning]:
            found[name] = frame
            found[f"force for {name}"] = frame
    return found
