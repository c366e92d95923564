"""One compiled robot examined: its figures, what is wrong with it, and how fast it runs."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np

from orchestrator.worker import soundness
from orchestrator.worker.figures import figures
from orchestrator.worker.soundness import Findings
from orchestrator.worker.tasks.actions import ActionMap, Floats, scaled
from orchestrator.worker.tasks.base import Task, find_keyframe
from orchestrator.worker.tryout import try_out


def examine(
    model: mujoco.MjModel,
    findings: Findings,
    *,
    simulate_s: float,
    task: Task | None = None,
) -> dict[str, Any]:
    """Adds to ``findings``, and returns the figures; ``steps_per_s`` is physics steps on one thread.

    The model's numbers must be sound (:func:`orchestrator.worker.soundness.numbers`).

    :param simulate_s: CPU seconds that the simulation may take.
    :param task: its starting pose and its way from actions to controls are what is tried out; None for those of a
        task without options.
    """
    data = mujoco.MjData(model)
    known = {**figures(model, data), "steps_per_s": None}
    key = find_keyframe(model, None) if task is None else task.key
    pose = np.array(model.key_qpos[key] if key >= 0 else model.qpos0) if task is None else task.pose
    findings.warnings += soundness.actuators(model, key)
    findings.warnings += soundness.masses(model)
    findings.warnings += soundness.poses(model, key, pose)
    findings.warnings += soundness.timestep(model)
    data.qpos[:] = pose
    mujoco.mj_forward(model, data)
    findings.warnings += soundness.start_contacts(model, data)
    if model.nv == 0:
        return known
    actions = None
    if model.nu:
        actions = scaled(model, key, None) if task is None else task.actions
    rest = _rest(model, actions)
    known["steps_per_s"] = try_out(model, data, pose, rest, actions, simulate_s, findings)
    return known


def _rest(model: mujoco.MjModel, actions: ActionMap | None) -> Floats:
    """``(nu,)`` the control of an action of zeros."""
    if actions is None:
        return np.zeros(model.nu)
    return np.asarray(actions.ctrl(actions.taken(np.zeros((1, model.nu))))[0], np.float64)
