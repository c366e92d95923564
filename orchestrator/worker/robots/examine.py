"""Examination of one compiled robot: model summary, static checks, simulation stability test."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np

from orchestrator.worker.robots import model_checks
from orchestrator.worker.robots.model_checks import ModelFindings
from orchestrator.worker.robots.model_summary import summarize
from orchestrator.worker.robots.stability_test import check_stability
from orchestrator.worker.tasks.actions import scaled
from orchestrator.worker.tasks.base import Task, find_keyframe


def examine(
    model: mujoco.MjModel, findings: ModelFindings, *, simulate_s: float, task: Task | None = None
) -> dict[str, Any]:
    """Add to ``findings``; return the model summary with ``steps_per_s``, physics steps per second on one thread.

    The model must have passed :func:`orchestrator.worker.robots.model_checks.numbers`.

    :param simulate_s: limit of the stability test in CPU seconds.
    :param task: gives the starting pose and the mapping from actions to controls; None for those of a task with
        default options.
    """
    data = mujoco.MjData(model)
    summary = {**summarize(model, data), "steps_per_s": None}
    key = find_keyframe(model, None) if task is None else task.key
    pose = np.array(model.key_qpos[key] if key >= 0 else model.qpos0) if task is None else task.pose
    findings.warnings += [*model_checks.actuators(model, key), *model_checks.masses(model)]
    findings.warnings += [*model_checks.poses(model, key, pose), *model_checks.timestep(model)]
    data.qpos[:] = pose
    mujoco.mj_forward(model, data)
    findings.warnings += model_checks.start_contacts(model, data)
    if model.nv == 0:
        return summary
    actions, rest = None, np.zeros(model.nu)
    if model.nu:
        actions = scaled(model, key, None) if task is None else task.actions
        rest = np.asarray(actions.ctrl(actions.taken(np.zeros((1, model.nu))))[0], np.float64)
    summary["steps_per_s"] = check_stability(model, data, pose, rest, actions, simulate_s, findings)
    return summary
