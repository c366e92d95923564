"""Test of the start of an episode: its first two seconds with zero action.

A robot that falls at once, or whose keyframe commands another pose than its own, trains without an
error and learns to stand still at best.
"""

from __future__ import annotations

import time

import mujoco
import numpy as np

from orchestrator.core.text import listed
from orchestrator.worker.envs.simulation import Simulation
from orchestrator.worker.mjmodel.actuators import (
    actuator_of_control,
    position_controls,
    scalar_gear,
    scalar_joints,
)
from orchestrator.worker.mjmodel.joints import joint_name
from orchestrator.worker.mjmodel.root import NoRootError, find_root
from orchestrator.worker.robots.model_checks import ModelFindings
from orchestrator.worker.robots.stability_test import MOST_TIMES, step_cost_s
from orchestrator.worker.tasks import Task
from orchestrator.worker.tasks.health import Health
from orchestrator.worker.tasks.task_options import TaskError

SIMULATED_S = 2.0
SUNK = 0.6
"""Share of its height at the start below which a robot does not hold its pose."""
AT_ONCE_S = 0.4
"""A robot without servos that stands takes longer to fall over."""
UNLIKE = 0.2
"""Share of a joint's range by which a keyframe's ctrl differs from its pose."""


def check_start(simulation: Simulation, findings: ModelFindings, most_s: float) -> None:
    """Simulate the start of an episode with zero action; warn if the task ends the episode, or the
    robot sinks.

    Robots without position servos hold no pose by zero action, so it is a warning only if they fall
    through the air or at once.

    :param simulation: one environment, without ``autoreset``.
    :param most_s: estimated CPU seconds.
    :raises TaskError: an observation or reward is not finite.
    :raises PhysicsDiverged: physics does.
    """
    task = simulation.task
    simulation.reset()
    start = simulation.data(0)
    steps = 0
    ends = False
    has_touched = False
    cost_s = 0.0
    begun = time.thread_time()
    most_steps = min(max(1, round(SIMULATED_S / task.step_s)), task.max_episode_steps)
    while steps < most_steps:
        ends = step_with_zero_action(simulation)
        steps += 1
        data = simulation.data(0)
        cost_s += task.frame_skip * step_cost_s(task.model, data)
        if ends or cost_s > most_s or time.thread_time() - begun > MOST_TIMES * most_s:
            break
        has_touched = has_touched or data.ncon > 0
    try:
        root = find_root(task.model, task.pose)
    except NoRootError:
        root = None
    holds_pose = bool(position_controls(task.model).any())
    sunk_m = 0.0 if root is None else float(start.xpos[root.body, 2] - data.xpos[root.body, 2])
    time_s = steps * task.step_s
    if not ends:
        if holds_pose and root is not None and sunk_m > (1 - SUNK) * root.start_height > 0:
            findings.warnings.append(
                f"with zero action the robot does not hold its starting pose: its root sinks by {sunk_m:.2g} m of "
                f"{root.start_height:.2g} m within {time_s:.2g} s; {_cure(task)}"
            )
        return
    text = f"with zero action the task ends the episode after {time_s:.2g} s"
    health = getattr(task, "healthy", None)
    if isinstance(health, Health):
        reasons = {
            "height": f"height below min_height = {task.options.min_height:g}",
            "tilt": f"tilt beyond max_tilt = {task.options.max_tilt:g}",
        }
        violated = [reasons[name] for name in health.violations(simulation.states.qpos)]
        text += f" ({', '.join(violated)})" if violated else ""
    if sunk_m > 0 and not has_touched:
        findings.warnings.append(
            f"{text}: the robot starts in the air; lower its start (the keyframe, or the pos of its root body)"
        )
    elif holds_pose or (root is not None and root.z is not None and time_s <= AT_ONCE_S):
        findings.warnings.append(f"{text}; {_cure(task)}")


def step_with_zero_action(simulation: Simulation) -> bool:
    """Make one control step; return whether the task ends the episode.

    :raises TaskError: an observation or reward is not finite.
    """
    result = simulation.step(np.zeros((1, len(simulation.task.actions.low))))
    if not (np.isfinite(result.observations).all() and np.isfinite(result.rewards).all()):
        text = "observation or reward is not finite after a step with an action of zeros"
        raise TaskError(text, is_certain=False)
    return any(not episode.truncated for episode in result.ended)


def _cure(task: Task) -> str:
    if unlike := _servos_unlike_pose(task.model, task.key):
        name = task.model.key(task.key).name or task.key
        return (
            f"the ctrl of keyframe '{name}' differs from its pose ({listed(unlike, most=3)}): give each actuator its "
            "own value, in the order of <actuator>"
        )
    names = ["min_height", "max_tilt", "healthy_z_range", "terminate_when_unhealthy"]
    ending = [name for name in names if hasattr(task.options, name)]
    cure = "correct the starting pose" + (" and the ctrl of its keyframe" if task.key >= 0 else "")
    return f"{cure}, or change what ends an episode ({', '.join(ending)})" if ending else cure


def _servos_unlike_pose(model: mujoco.MjModel, key: int) -> list[str]:
    """Describe the position servos that a keyframe commands far from its own pose."""
    if key < 0 or not model.key_ctrl[key].any():  # without ctrl, servos hold the pose
        return []
    joints = scalar_joints(model)
    unlike = []
    of_control = actuator_of_control(model)
    for control in np.flatnonzero(position_controls(model)).tolist():
        actuator = int(of_control[control])
        joint = int(joints[actuator])
        if joint < 0:
            continue
        gear = scalar_gear(model, actuator)
        width = float(np.ptp(model.jnt_range[joint])) if model.jnt_limited[joint] else 1.0
        at = float(model.key_qpos[key, model.jnt_qposadr[joint]])
        told = float(model.key_ctrl[key, control]) / gear if gear else at
        if abs(told - at) > UNLIKE * width:
            unlike.append(f"joint {joint_name(model, joint)} at {at:.3g}, ctrl {told:.3g}")
    return unlike
