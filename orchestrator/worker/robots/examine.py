"""One compiled robot examined: its figures, what is wrong with it, and how fast it runs."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np

from orchestrator.worker.robots import model_checks
from orchestrator.worker.robots.model_checks import Findings
from orchestrator.worker.robots.model_summary import figures
from orchestrator.worker.robots.stability_test import try_out
from orchestrator.worker.tasks.actions import ActionMap, Floats, scaled
from orchestrator.worker.tasks.base import Task, find_keyframe


def examine(
    model: mujoco.MjModel,
    findings: Findings,
    *,
    simulate_s: float,
    task: Task | None = None,
) -> dict[str, Any]:
    """Adds to ``findings``, and returns the figures; ``steps_per_s`` is physics steps on one thread.

    The model's numbers must be sound (:func:`orchestrator.worker.robots.model_checks.numbers`).

    :param simulate_s: CPU seconds that the simulation may take.
    :param task: its starting pose and its way from actions to controls are what is tried out; None for those of a
        task without options.
    """
    data = mujoco.MjData(model)
    known = {**figures(model, data), "steps_per_s": None}
    key = find_keyframe(model, None) if task is None else task.key
    pose = np.array(model.key_qpos[key] if key >= 0 else model.qpos0) if task is None else task.pose
    findings.warnings += model_checks.actuators(model, key)
    findings.warnings += model_checks.masses(model)
    findings.warnings += model_checks.poses(model, key, pose)
    findings.warnings += model_checks.timestep(model)
    data.qpos[:] = pose
    mujoco.mj_forward(model, data)
    findings.warnings += model_checks.start_contacts(model, data)
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
