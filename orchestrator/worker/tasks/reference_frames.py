"""Bodies in whose axes observations are, those of joints by the names of
:mod:`orchestrator.worker.tasks.input_names`.
"""

from __future__ import annotations

from collections.abc import Sequence

import mujoco

from orchestrator.worker.mjmodel.joints import BALL, FREE, joint_type
from orchestrator.worker.tasks import input_names

NONE = ""
"""The axes of the world, or no vector at all."""
_TURNING = {FREE: slice(3, 6), BALL: slice(0, 3)}
"""Which velocities of a joint are in the axes of its own body."""


def of_observations(model: mujoco.MjModel, names: Sequence[str]) -> list[str]:
    """For each observation of joints with these names, the body in whose axes it is, or
    :data:`NONE`.
    """
    known = _of_joints(model)
    return [known.get(name, NONE) for name in names]


def of_body(model: mujoco.MjModel, body: int) -> str:
    """The name by which a body stands as a frame."""
    return str(model.body(body).name or body)


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
