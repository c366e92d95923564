"""What controllers for policies of mjlab read of an ONNX file besides its joints: what the policy
observes, in mjlab's own terms.

mjlab names whole terms (``base_ang_vel``), where this program names each observation
(``angular velocity x``). Source: ``mjlab/rl/exporter_utils.py`` and the observations of its task
``velocity`` in mjlab 1.6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from orchestrator.worker.mjmodel.actuators import scalar_joints
from orchestrator.worker.tasks.observations import joints_with_encoders
from orchestrator.worker.tasks.track import Track

if TYPE_CHECKING:
    from orchestrator.features.export.worker.joint_drives import JointDrives
    from orchestrator.worker.tasks import Task

OF_ROOT = ("base_ang_vel", "projected_gravity")
OF_JOINTS = ("joint_pos", "joint_vel", "actions")
COMMAND = "command"
TWIST = "twist"
"""mjlab's command of three numbers: velocity forward and to the left, and the turning rate."""


def mjlab_terms(task: Task, drives: JointDrives) -> Mapping[str, Sequence[Any]] | None:
    """Metadata by the names that mjlab gives them; None where its controllers could not drive the
    robot.

    They can where the policy observes ``proprioception`` of a robot whose root moves, without
    history, and where action i moves joint i alone, by a position servo, around its position in the
    starting pose. A command is that of ``track`` for a free root.
    """
    observed = task.observed_by
    if observed is None or task.observed_steps != 1:
        return None
    if observed.names[:3] != [f"angular velocity {axis}" for axis in "xyz"]:
        return None  # the root does not move
    commands: Sequence[str] = ()
    if task.goal_size:
        if not isinstance(task, Track) or task.goal_size != 3:
            return None
        commands = (TWIST,)
    if not _moves_joint_by_joint(task, drives):
        return None
    terms = [*OF_ROOT, *OF_JOINTS, *(COMMAND for _ in commands)]
    return {
        "observation_names": terms,
        "observation_terms_scale": [1.0] * len(terms),
        "observation_terms_clip": [_clip(*term.bounds) for term in observed.all[: len(terms)]],
        "observation_terms_history_length": [0] * len(terms),
        "observation_terms_flatten_history_dim": [True] * len(terms),
        "command_names": commands,
    }


def _moves_joint_by_joint(task: Task, drives: JointDrives) -> bool:
    """Whether the target of joint i is ``default_joint_pos[i] + action_scale[i] · action[i]``."""
    joints = joints_with_encoders(task)
    if scalar_joints(task.model).tolist() != joints or not all(drives.action_scale):
        return False
    middle = getattr(task.actions, "middle", None)
    half = getattr(task.actions, "half", None)
    if middle is None or half is None:
        return False
    gear = half / np.array(drives.action_scale)
    return bool(np.allclose(middle / gear, drives.default_joint_pos, rtol=0, atol=1e-6))


def _clip(low: float, high: float) -> str:
    """The bounds of a term, as mjlab writes them."""
    return f"{low:g};{high:g}"
