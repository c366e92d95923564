"""Estimates how long trainings take.

Physics counts as preflight or ``check`` has measured it on this machine. Everything else (the
policy, observations, rewards, start and end of a worker) counts as on the machine of
docs/results.md, since it depends little on the robot.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.core.job import Job
from orchestrator.core.numbers.evaluation_grid import number_of_points
from orchestrator.core.worker_spec import WorkerSpec

if TYPE_CHECKING:
    from orchestrator.examination.robot_check import RobotCheck

STEP_S = 18e-6
"""Seconds per env_step outside of physics with the fast learner: what remains of the speeds in
docs/results.md ("The main job")."""
STOCK_STEP_S: Mapping[str, float] = {
    "ppo": 125e-6,
    "a2c": 250e-6,
    "sac": 8e-3,
    "td3": 5e-3,
}
"""The same with the learners of Stable-Baselines3. PPO: the quadruped of docs/results.md.
The others are estimates, not measured: the order of launch needs no more than their size. A class
counts as ``sac``."""
UNMEASURED_S = 60e-6
"""Seconds of physics in an env_step where it was not measured: of environments that are no task,
and where a run directory is resumed without examining its robots again. As gymnasium's Hopper-v5."""
JOB_S = 2.0
"""Seconds per job for its imports, its files and its evaluation, without the physics of that."""
EPISODE_STEPS = 1_000
"""env_steps of an episode of the evaluation, if it does not end early."""
SHORT_EPISODE_STEPS = 100
"""The same of ``reach``."""
EPISODES = 10
"""``eval_episodes`` of the settings that ``init`` writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTime:
    """An estimate for all robots."""

    seconds: float
    """Until the last one is trained, ``jobs_at_once`` at a time."""
    physics_share: float
    """Share of the CPU time that is physics, the part measured on this machine."""
    longest_s: float
    """Of one robot."""
    jobs_at_once: int


def physics_s(figures: Mapping[str, Any]) -> float:
    """Seconds of physics in one env_step, of a robot's figures; 0 where it was not measured."""
    period_s = figures.get("control_period_s")
    speed = figures.get("steps_per_s")
    return period_s / figures["timestep_s"] / speed if period_s and speed else 0.0


def of_job(job: Job, physics_s: float) -> float:
    """Seconds of training and evaluation on the job's own cores, for comparison with other jobs.

    :param physics_s: of one env_step; 0 where it was not measured.
    """
    spec = job.spec
    cores = max(1, min(spec.cores, spec.n_envs // spec.ranks))
    physics_s = (physics_s or UNMEASURED_S) / cores
    training_s = spec.total_timesteps * (_step_s(spec) + physics_s) / spec.ranks
    grid = number_of_points(spec.evaluate) * spec.eval_episodes
    return training_s + _evaluation_steps(spec.task, spec.eval_episodes + grid) * physics_s


def estimate(robots: Sequence[RobotCheck], env_steps: int, jobs_at_once: int) -> TrainingTime:
    """With the settings that ``init`` writes. :param jobs_at_once: of the machine."""
    physics = [
        (env_steps + _evaluation_steps(robot.task, EPISODES)) * physics_s(robot.figures)
        for robot in robots
    ]
    of_each = [of_physics + env_steps * STEP_S + JOB_S for of_physics in physics]
    jobs_at_once = min(jobs_at_once, len(robots))
    return TrainingTime(
        seconds=max(*of_each, math.fsum(of_each) / jobs_at_once),
        physics_share=math.fsum(physics) / math.fsum(of_each),
        longest_s=max(of_each),
        jobs_at_once=jobs_at_once,
    )


def _evaluation_steps(task: str | None, episodes: int) -> int:
    return episodes * (SHORT_EPISODE_STEPS if task == "reach" else EPISODE_STEPS)


def _step_s(spec: WorkerSpec) -> float:
    """Seconds per env_step outside of physics."""
    is_stock = spec.learner == "sb3" or bool(spec.why_not_fast())
    return STOCK_STEP_S.get(spec.algo, STOCK_STEP_S["sac"]) if is_stock else STEP_S
