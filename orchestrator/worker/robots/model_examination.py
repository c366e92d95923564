"""What is found by looking at a compiled robot: its numbers, its stability, and whether the task of a
job can be made for it.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

import mujoco
import numpy as np

from orchestrator.core.messages import ExaminationAnswer, ExaminationRequest
from orchestrator.core.robot_sources import mjcf_format
from orchestrator.worker.envs.batch_interface import BatchSettings
from orchestrator.worker.envs.changing_task import check_changes
from orchestrator.worker.envs.divergence import PhysicsDiverged
from orchestrator.worker.envs.simulation import Simulation
from orchestrator.worker.envs.simulation_factory import check_grid, make_simulation
from orchestrator.worker.robots import model_checks
from orchestrator.worker.robots.model_checks import ModelFindings
from orchestrator.worker.robots.model_summary import summarize
from orchestrator.worker.robots.stability_test import check_stability
from orchestrator.worker.robots.start_test import check_start, step_with_zero_action
from orchestrator.worker.tasks import AUTO, choose, make_task
from orchestrator.worker.tasks.actions import ActionMap, scaled_actions
from orchestrator.worker.tasks.base import Task, find_keyframe
from orchestrator.worker.tasks.task_options import TaskError

NOTHING_MOVES = "has no joints, so nothing in it moves"
NO_ACTUATORS = "has no actuators, so there is nothing to train; add an <actuator> section"


def examined_model(
    model: mujoco.MjModel,
    answer: ExaminationAnswer,
    findings: ModelFindings,
    request: ExaminationRequest,
    staged: Path,
) -> ExaminationAnswer:
    """Return ``answer`` with the findings on a compiled robot."""
    findings.problems += model_checks.numbers(model)
    if findings.problems:
        summary = summarize(model, mujoco.MjData(model))
    elif request.is_environment:
        summary = examine(model, findings, simulate_s=request.simulate_s)
        # An environment may use the robot in its own way: every problem is only a warning.
        findings.warnings = [*findings.problems, *findings.warnings]
        findings.problems = []
    else:
        simulations: list[Simulation] = []
        try:
            answer = _with_task(model, answer, findings, request, staged, simulations)
        except ValueError as error:
            # A robot examined alone may be for the user's own task.
            (findings.warnings if request.alone else findings.problems).append(str(error))
            answer = dataclasses.replace(
                answer, task_reason=str(error), cause=_cause(request, error)
            )
        task = simulations[0].task if simulations else None
        summary = examine(model, findings, simulate_s=request.simulate_s, task=task)
        if simulations and not findings.problems:
            try:
                check_start(simulations[0], findings, request.simulate_s)
                for drawn in simulations[1:]:
                    drawn.reset()
                    step_with_zero_action(drawn)
            except (ValueError, PhysicsDiverged) as error:
                findings.diverges = findings.diverges or isinstance(error, PhysicsDiverged)
                findings.problems.append(str(error))
                answer = dataclasses.replace(answer, cause=_cause(request, error))
        if model.nv == 0:
            answer = dataclasses.replace(answer, fragment=f"not a robot: {NOTHING_MOVES}")
    return dataclasses.replace(
        answer,
        problem="; ".join(findings.problems) or None,
        diverges=findings.diverges,
        warnings=tuple(findings.warnings),
        notes=tuple(findings.notes),
        figures=summary,
    )


def _with_task(
    model: mujoco.MjModel,
    answer: ExaminationAnswer,
    findings: ModelFindings,
    request: ExaminationRequest,
    staged: Path,
    simulations: list[Simulation],
) -> ExaminationAnswer:
    """Make the task that is asked for, and all that it is asked with.

    :param simulations: receives an environment of the robot as it is, and one with what is drawn.
    :raises ValueError: something does not fit the robot.
    """
    if model.nu == 0:
        mjcf = mjcf_format()
        cure = f", or {mjcf.adds_actuators}" if mjcf and mjcf.adds_actuators else ""
        findings.problems.append(f"{NO_ACTUATORS}{cure}" if model.nv else NOTHING_MOVES)
        return answer
    options = request.task_options
    name = request.task or AUTO
    reason = None
    if name == AUTO:
        choice = choose(model)
        name = choice.task
        reason = choice.reason
    task = make_task(name, model, options)
    asymmetric = request.asymmetric
    settings: BatchSettings = {"n_envs": 1, "seed": 0, "autoreset": False}
    plain = Simulation(model, task, robot=staged.name, asymmetric=asymmetric, **settings)
    simulations.append(plain)
    check_changes(name, model, options)
    if request.randomize:
        simulations.append(
            make_simulation(
                staged, name, options, request.randomize, asymmetric=asymmetric, **settings
            )
        )
    if asymmetric and not simulations[-1].privileged_names:
        findings.warnings.append(
            "asymmetric = true has no effect: the critic would see nothing that the policy does not; draw something, "
            'or let the policy observe less, as with task_options.observe = "proprioception"'
        )
    if request.evaluate:
        check_grid(staged, name, options, request.randomize, request.evaluate)
    return dataclasses.replace(answer, task=name, task_reason=reason)


def _cause(request: ExaminationRequest, error: Exception) -> Literal["robot", "code", "settings"]:
    """Return what :attr:`ExaminationAnswer.cause` is for an error of a task."""
    if not isinstance(error, TaskError):
        return "robot"
    if error.is_certain:
        return "code" if request.task == AUTO else "settings"
    is_users = ":" in str(request.task)
    return "code" if is_users else "robot"  # a built-in task fails because of the robot


def examine(
    model: mujoco.MjModel, findings: ModelFindings, *, simulate_s: float, task: Task | None = None
) -> dict[str, Any]:
    """Add to ``findings``; return the model summary with ``steps_per_s``, physics steps per second
    on one thread.

    The model must have passed :func:`model_checks.numbers`.

    :param simulate_s: limit of the stability test in CPU seconds.
    :param task: gives the starting pose and the mapping from actions to controls; None for those of
        a task with default options.
    """
    data = mujoco.MjData(model)
    summary = {
        **summarize(model, data),
        "steps_per_s": None,
        "control_period_s": None if task is None else task.step_s,
        "episode_steps": None if task is None else task.max_episode_steps,
    }
    actions: ActionMap | None
    if task is not None:
        key = task.key
        pose = task.pose
        actions = task.actions
    else:
        key = find_keyframe(model, None)
        pose = np.array(model.key_qpos[key] if key >= 0 else model.qpos0)
        actions = scaled_actions(model, key, None) if model.nu else None
    data.qpos[:] = pose
    mujoco.mj_forward(model, data)
    wide = model_checks.servo_ranges(model)
    findings.warnings += [
        *model_checks.actuators(model, key),
        *model_checks.masses(model),
        *model_checks.start_pose(model, key, pose),
        *model_checks.timestep(model),
        *model_checks.start_contacts(model, data),
    ]
    if model.nv:
        summary["steps_per_s"] = check_stability(
            model, pose, actions, simulate_s, findings, cause=wide
        )
    if wide is not None and not findings.diverges:
        findings.warnings.insert(0, wide)
    return summary
