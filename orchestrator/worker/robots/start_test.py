"""Test of the start of an episode: its first two seconds with zero action.

A robot that falls at once, or whose keyframe commands another pose than its own, trains without an
error and learns to stand still at best.
"""

from __future__ import annotations

import contextlib
import time

import numpy as np

from orchestrator.worker.envs.simulation import Simulation
from orchestrator.worker.mjmodel.actuators import position_controls
from orchestrator.worker.mjmodel.root import NoRootError, find_root
from orchestrator.worker.robots.model_checks import ModelFindings
from orchestrator.worker.robots.stability_test import MOST_TIMES, step_cost_s
from orchestrator.worker.tasks.health import Health
from orchestrator.worker.tasks.task_options import TaskError

SIMULATED_S = 2.0
AT_ONCE_S = 0.4
"""A robot without servos that stands takes longer to fall over."""


def check_start(simulation: Simulation, findings: ModelFindings, most_s: float) -> None:
    """Simulate the start of an episode with zero action; warn if the task ends the episode.

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
    touches = 0
    cost_s = 0.0
    latest = time.thread_time() + MOST_TIMES * most_s
    most_steps = min(max(1, round(SIMULATED_S / task.step_s)), task.max_episode_steps)
    while steps < most_steps and cost_s <= most_s and not ends:
        ends = step_with_zero_action(simulation)
        steps += 1
        data = simulation.data(0)
        cost_s += task.frame_skip * step_cost_s(task.model, data)
        touches += 0 if ends else data.ncon
        if time.thread_time() > latest:
            break
    if not ends:
        return
    time_s = steps * task.step_s
    sunk_m = 0.0
    can_fall = False
    with contextlib.suppress(NoRootError):
        root = find_root(task.model, task.pose)
        sunk_m = float(start.xpos[root.body, 2] - data.xpos[root.body, 2])
        can_fall = root.z is not None
    text = f"with zero action the task ends the episode after {time_s:.2g} s"
    health = getattr(task, "healthy", None)
    if isinstance(health, Health):
        options = task.options
        reasons = {
            "height": f"height below min_height = {options.min_height:g}",
            "tilt": f"tilt beyond max_tilt = {options.max_tilt:g}",
        }
        violated = [reasons[name] for name in health.violations(simulation.states.qpos)]
        text += f" ({', '.join(violated)})" if violated else ""
    if sunk_m > 0 and not touches:
        findings.warnings.append(
            f"{text}: the robot starts in the air; lower its start (the keyframe, or the pos of its root body)"
        )
    elif position_controls(task.model).any() or (can_fall and time_s <= AT_ONCE_S):
        cure = "correct the starting pose"
        if task.key >= 0:
            cure += " and the ctrl of its keyframe, which has a value for each actuator in the order of <actuator>"
        names = ["min_height", "max_tilt", "healthy_z_range", "terminate_when_unhealthy"]
        ending = [name for name in names if hasattr(task.options, name)]
        if ending:
            cure += f", or change what ends an episode ({', '.join(ending)})"
        findings.warnings.append(f"{text}; {cure}")


def step_with_zero_action(simulation: Simulation) -> bool:
    """Make one control step; return whether the task ends the episode.

    :raises TaskError: an observation or reward is not finite.
    """
    result = simulation.step(np.zeros((1, len(simulation.task.actions.low))))
    if not (np.isfinite(result.observations).all() and np.isfinite(result.rewards).all()):
        text = "observation or reward is not finite after a step with an action of zeros"
        raise TaskError(text, is_certain=False)
    return any(not episode.truncated for episode in result.ended)
