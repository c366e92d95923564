"""What is found by looking at a compiled robot: its numbers, its stability, and whether the task of a
job can be made for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
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
from orchestrator.worker.tasks import AUTO, choose, make_task
from orchestrator.worker.tasks.actions import scaled_actions
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
    """``answer`` with the findings on a compiled robot."""
    findings.problems += model_checks.numbers(model)
    if findings.problems:
        return _with_findings(answer, findings, summarize(model, mujoco.MjData(model)))
    # An environment may use the robot in its own way: every problem is only a warning.
    if request.is_environment:
        summary = examine(model, findings, simulate_s=request.simulate_s)
        findings.warnings = [*findings.problems, *findings.warnings]
        findings.problems = []
        return _with_findings(answer, findings, summary)
    answer = _examine_task(model, answer, findings, request, staged)
    if model.nv == 0:
        return dataclasses.replace(answer, fragment=f"not a robot: {NOTHING_MOVES}")
    return answer


def _examine_task(
    model: mujoco.MjModel,
    answer: ExaminationAnswer,
    findings: ModelFindings,
    request: ExaminationRequest,
    staged: Path,
) -> ExaminationAnswer:
    tried = _try_task(model, answer, findings, request, staged)
    answer = tried.answer
    simulation = tried.simulation
    task = None if simulation is None else simulation.task
    summary = examine(model, findings, simulate_s=request.simulate_s, task=task)
    if simulation is not None and not findings.problems:
        try:
            _step_once(simulation)
        except (ValueError, PhysicsDiverged) as error:
            findings.problems.append(str(error))
            answer = dataclasses.replace(answer, cause=_cause(request, error))
    return _with_findings(answer, findings, summary)


@dataclass(frozen=True, slots=True, kw_only=True)
class _TriedTask:
    answer: ExaminationAnswer
    """With the task, or with the reason why it does not fit."""
    simulation: Simulation | None
    """None where none could be made."""


def _try_task(
    model: mujoco.MjModel,
    answer: ExaminationAnswer,
    findings: ModelFindings,
    request: ExaminationRequest,
    staged: Path,
) -> _TriedTask:
    """Make the task that is asked for, and all that it is asked with."""
    simulation: Simulation | None = None
    if model.nu == 0:
        findings.problems.append(_no_actuators() if model.nv else NOTHING_MOVES)
        return _TriedTask(answer=answer, simulation=None)
    options = request.task_options
    try:
        name = request.task or AUTO
        reason = None
        if name == AUTO:
            choice = choose(model)
            name = choice.task
            reason = choice.reason
        task = make_task(name, model, options)
        asymmetric = request.asymmetric
        settings: BatchSettings = {"n_envs": 1, "seed": 0}
        simulation = Simulation(model, task, robot=staged.name, asymmetric=asymmetric, **settings)
        answer = dataclasses.replace(answer, task=name, task_reason=reason)
        findings.warnings += _options_without_effect(name, task, options)
        check_changes(name, model, options)
        if request.randomize:
            simulation = make_simulation(
                staged, name, options, request.randomize, asymmetric=asymmetric, **settings
            )
        if asymmetric and not simulation.privileged_names:
            findings.warnings.append(_nothing_for_critic(task))
        if request.evaluate:
            check_grid(staged, name, options, request.randomize, request.evaluate)
    except ValueError as error:
        # A robot examined alone may be for the user's own task.
        if request.alone:
            findings.warnings.append(str(error))
        else:
            findings.problems.append(str(error))
        answer = dataclasses.replace(answer, task_reason=str(error), cause=_cause(request, error))
    return _TriedTask(answer=answer, simulation=simulation)


def _no_actuators() -> str:
    mjcf = mjcf_format()
    return (
        f"{NO_ACTUATORS}, or {mjcf.adds_actuators}"
        if mjcf and mjcf.adds_actuators
        else NO_ACTUATORS
    )


def _options_without_effect(name: str, task: Task, given: Mapping[str, Any]) -> list[str]:
    """Warnings of options that the job sets and that do nothing for this robot."""
    return [
        f'task "{name}": task_options.{option} = {given[option]} has no effect on this robot: {why}'
        for option, why in task.unused_options.items()
        if given.get(option)
    ]


def _nothing_for_critic(task: Task) -> str:
    observed = (
        "the policy observes all that the task does"
        if task.observed_by is None
        else "task_options.observe leaves out nothing of what the task observes"
    )
    return (
        f"asymmetric = true has no effect, as {observed}, and randomize draws nothing that the critic would see: "
        'leave it out, or give the policy less, such as with task_options.observe = "proprioception"'
    )


def _step_once(simulation: Simulation) -> None:
    """Make one control step with an action of zeros.

    :raises TaskError: what it returns is not finite.
    :raises ValueError: its task cannot compute.
    :raises PhysicsDiverged: physics does.
    """
    simulation.reset()
    result = simulation.step(np.zeros((1, len(simulation.task.actions.low))))
    if not (np.isfinite(result.observations).all() and np.isfinite(result.rewards).all()):
        text = "observation or reward is not finite after one step with an action of zeros"
        raise TaskError(text, is_certain=False)


def _cause(request: ExaminationRequest, error: Exception) -> Literal["robot", "code", "settings"]:
    """What :attr:`ExaminationAnswer.cause` is for an error of a task."""
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
    key = find_keyframe(model, None) if task is None else task.key
    if task is not None:
        pose = task.pose
    elif key >= 0:
        pose = np.array(model.key_qpos[key])
    else:
        pose = np.array(model.qpos0)
    findings.warnings += [*model_checks.actuators(model, key), *model_checks.masses(model)]
    findings.warnings += [*model_checks.poses(model, key, pose), *model_checks.timestep(model)]
    data.qpos[:] = pose
    mujoco.mj_forward(model, data)
    findings.warnings += model_checks.start_contacts(model, data)
    if model.nv == 0:
        return summary
    actions = None
    rest = np.zeros(model.nu)
    if model.nu:
        actions = scaled_actions(model, key, None) if task is None else task.actions
        rest = np.asarray(actions.ctrl(actions.taken(np.zeros((1, model.nu))))[0], np.float64)
    wide = model_checks.servo_ranges(model)
    summary["steps_per_s"] = check_stability(
        model, data, pose, rest, actions, simulate_s, findings, cause=wide
    )
    texts = [*findings.problems, *findings.warnings]
    if wide is not None and not any(wide in text for text in texts):
        findings.warnings.insert(0, wide)
    return summary


def _with_findings(
    answer: ExaminationAnswer, findings: ModelFindings, summary: dict[str, Any]
) -> ExaminationAnswer:
    return dataclasses.replace(
        answer,
        problem="; ".join(findings.problems) or None,
        diverges=findings.diverges,
        warnings=tuple(findings.warnings),
        notes=tuple(findings.notes),
        figures=summary,
    )
