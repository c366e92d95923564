"""Examination of a compiled robot: its numbers, its task with one step and the start of an episode,
and its stability.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import mujoco

from orchestrator.core.messages import ExaminationAnswer, ExaminationRequest
from orchestrator.core.robot_sources import mjcf_format
from orchestrator.worker.envs.batch_interface import BatchSettings
from orchestrator.worker.envs.changing_task import check_changes
from orchestrator.worker.envs.divergence import PhysicsDiverged
from orchestrator.worker.envs.simulation import Simulation
from orchestrator.worker.envs.simulation_factory import check_grid, make_simulation
from orchestrator.worker.mjmodel.actuators import actuator_kind
from orchestrator.worker.mjmodel.root import root_type
from orchestrator.worker.robots import model_checks
from orchestrator.worker.robots.model_checks import ModelFindings
from orchestrator.worker.robots.stability_test import check_stability
from orchestrator.worker.robots.start_test import check_start, step_with_zero_action
from orchestrator.worker.tasks import AUTO, choose, make_task
from orchestrator.worker.tasks.actions import ActionMap, scaled_actions
from orchestrator.worker.tasks.base import Task, find_keyframe, keyframe_pose
from orchestrator.worker.tasks.task_options import TaskError

NOTHING_MOVES = "has no joints, so nothing in it moves"
NO_ACTUATORS = "has no actuators, so there is nothing to train; add an <actuator> section"
SHORTEST_TIMESTEP_S = 1e-7
"""Below, one action takes a hundred thousand physics steps: training would take years."""
SIZES = ("nq", "nv", "nu", "nbody", "ngeom")


def examine_model(
    model: mujoco.MjModel, answer: ExaminationAnswer, request: ExaminationRequest, copy: Path
) -> ExaminationAnswer:
    """Return ``answer`` with what is found in a compiled robot.

    :param copy: the main MJCF of which it was compiled.
    """
    findings = ModelFindings(warnings=list(answer.warnings))
    figures = _summary(model)
    if model.nv == 0 and not request.is_environment:
        answer = dataclasses.replace(answer, fragment=f"not a robot: {NOTHING_MOVES}")
    step_s = model.opt.timestep
    if not SHORTEST_TIMESTEP_S <= step_s < math.inf:
        problem = f"option timestep is {step_s:g} s; robots need 0.0005 s to 0.01 s"
        return dataclasses.replace(answer, problem=problem)
    simulations: list[Simulation] = []
    try:
        if not request.is_environment:
            answer = _make_simulations(model, answer, findings, request, copy, simulations)
    except ValueError as error:
        # A robot examined alone may be for the user's own task.
        (findings.warnings if request.alone else findings.problems).append(str(error))
        answer = dataclasses.replace(answer, task_reason=str(error), cause=_cause(request, error))
    task = simulations[0].task if simulations else None
    figures["steps_per_s"] = examine_physics(model, findings, request.simulate_s, task)
    if task is not None:
        figures["control_period_s"] = task.step_s
        figures["episode_steps"] = task.max_episode_steps
    if request.is_environment:
        # It may use the robot in its own way: every problem is only a warning.
        findings.warnings = [*findings.problems, *findings.warnings]
        findings.problems = []
    if simulations and not findings.problems:
        try:
            check_start(simulations[0], findings, request.simulate_s)
            for drawn in simulations[1:]:
                drawn.reset()
                step_with_zero_action(drawn)
        except (ValueError, PhysicsDiverged) as error:
            findings.diverges |= isinstance(error, PhysicsDiverged)
            findings.problems.append(str(error))
            answer = dataclasses.replace(answer, cause=_cause(request, error))
    return dataclasses.replace(
        answer,
        problem="; ".join(findings.problems) or None,
        diverges=findings.diverges,
        warnings=tuple(findings.warnings),
        figures=figures,
    )


def _make_simulations(
    model: mujoco.MjModel,
    answer: ExaminationAnswer,
    findings: ModelFindings,
    request: ExaminationRequest,
    copy: Path,
    simulations: list[Simulation],
) -> ExaminationAnswer:
    """Make the task that is asked for, and all that it is asked with. Return ``answer`` with its
    name.

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
    plain = Simulation(model, task, robot=copy.name, asymmetric=asymmetric, **settings)
    simulations.append(plain)
    check_changes(name, model, options)
    if request.randomize:
        simulations.append(
            make_simulation(
                copy, name, options, request.randomize, asymmetric=asymmetric, **settings
            )
        )
    if asymmetric and not simulations[-1].privileged_names:
        findings.warnings.append(
            "asymmetric = true has no effect: the critic would see nothing that the policy does not; draw something, "
            'or let the policy observe less, as with task_options.observe = "proprioception"'
        )
    if request.evaluate:
        check_grid(copy, name, options, request.randomize, request.evaluate)
    return dataclasses.replace(answer, task=name, task_reason=reason)


def _cause(request: ExaminationRequest, error: Exception) -> Literal["robot", "code", "settings"]:
    """Return what :attr:`ExaminationAnswer.cause` is for an error of a task."""
    if not isinstance(error, TaskError):
        return "robot"
    if error.is_certain:
        return "code" if request.task == AUTO else "settings"
    is_users = ":" in str(request.task)
    return "code" if is_users else "robot"  # a built-in task fails because of the robot


def examine_physics(
    model: mujoco.MjModel, findings: ModelFindings, simulate_s: float, task: Task | None = None
) -> float | None:
    """Add to ``findings``; return physics steps per second on one thread, None without actuators.

    :param simulate_s: limit of the stability test in CPU seconds.
    :param task: gives the starting pose and the mapping from actions to controls; None for those of
        a task with default options.
    """
    actions: ActionMap | None
    if task is None:
        key = find_keyframe(model, None)
        pose = keyframe_pose(model, key)
        actions = scaled_actions(model, key, None) if model.nu else None
    else:
        key = task.key
        pose = task.pose
        actions = task.actions
    findings.warnings += [
        *model_checks.servo_ranges(model),
        *model_checks.actuators(model, key),
        *model_checks.masses(model),
        *model_checks.start_contacts(model, pose),
    ]
    if model.nv == 0 or actions is None:
        return None
    return check_stability(model, pose, actions, simulate_s, findings)


def _summary(model: mujoco.MjModel) -> dict[str, Any]:
    """What ``check`` shows of a robot: numbers, text, and counts by kind."""
    kinds = Counter(actuator_kind(model, number) for number in range(model.nactuator))
    return {
        **{name: getattr(model, name) for name in SIZES},
        "root": root_type(model),
        "actuators": dict(kinds),
        "mass_kg": float(model.body_mass.sum()),
        "timestep_s": float(model.opt.timestep),
    }
