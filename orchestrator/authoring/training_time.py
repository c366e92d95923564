"""Estimates how long robots take to train with the settings that ``init`` writes.

Physics counts as ``check`` has measured it on this machine. Everything else (the policy, observations, rewards, start
and end of a worker) counts as on the machine of docs/performance.md, since it depends little on the robot.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.experiment.robot_check import RobotCheck

STEP_S = 18e-6
"""Seconds per env_step outside of physics: what remains of the speeds in docs/performance.md ("The main job")."""
JOB_S = 2.0
"""Seconds per job for its imports, its files and its evaluation, without the physics of that."""
EVALUATION_STEPS, SHORT_EVALUATION_STEPS = 20_000, 2_000
"""env_steps of the evaluation, if no episode ends early: of most tasks, and of ``reach`` with its short episodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTime:
    """An estimate for all robots."""

    seconds: float
    """Until the last one is trained, ``at_once`` at a time."""
    physics_share: float
    """Share of the CPU time that is physics, the part measured on this machine."""
    longest_s: float
    """Of one robot."""
    at_once: int


def physics_s(robot: RobotCheck) -> float:
    """Seconds of physics in one env_step; 0 where it was not measured."""
    figures = robot.figures
    period_s, speed = figures.get("control_period_s"), figures.get("steps_per_s")
    return period_s / figures["timestep_s"] / speed if period_s and speed else 0.0


def estimate(robots: Sequence[RobotCheck], env_steps: int, at_once: int) -> TrainingTime:
    """:param at_once: number of jobs that the machine runs at the same time."""
    physics, others = [], []
    for robot in robots:
        evaluation = SHORT_EVALUATION_STEPS if robot.task == "reach" else EVALUATION_STEPS
        physics.append((env_steps + evaluation) * physics_s(robot))
        others.append(env_steps * STEP_S + JOB_S)
    of_each = [of_physics + other for of_physics, other in zip(physics, others, strict=True)]
    at_once = min(at_once, len(robots))
    return TrainingTime(
        seconds=max(*of_each, math.fsum(of_each) / at_once),
        physics_share=math.fsum(physics) / math.fsum(of_each),
        longest_s=max(of_each),
        at_once=at_once,
    )
