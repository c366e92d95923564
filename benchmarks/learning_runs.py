"""Final returns and learning curves of experiments that differ only in their learner, for
``benchmarks.learning``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.analysis import run_reader
from orchestrator.core.errors import UsageError
from orchestrator.core.text import joined, listed
from orchestrator.core.worker_spec import NOT_IN_FINGERPRINT, WorkerSpec
from orchestrator.experiment import run_directory
from orchestrator.jobfile.job_names import without_seed

MEASURES = {
    "final": "Final return of training: `rollout/ep_rew_mean` at its end, the mean over the last 100 episodes",
    "evaluated": "Mean deterministic return of 10 episodes after training",
}
"""Field of :class:`Trained` → what it is."""
LEAST_SEEDS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A job that has succeeded."""

    seed: int
    env_steps: int
    final: float
    evaluated: float | None
    """None where the job file asks for no evaluation."""
    curve: Sequence[tuple[float, float]]
    """``(env_steps, ep_rew_mean)``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The results of one run directory."""

    learner: str
    robots: Mapping[str, Sequence[Trained]]
    """Robot (name of the job, with its matrix point) → results in ascending order of seeds."""
    work: Mapping[str, Mapping[str, Any]]
    """job_id → everything that determines the result except the learner."""
    unfinished: Sequence[str]
    """Jobs that have not succeeded."""


def read(run_dir: Path) -> Side:
    """:raises UsageError: not a run directory, nothing in it has succeeded, or several learners
    have trained in it."""
    paths = run_directory.existing_run(run_dir)
    with run_directory.reading_ledger(paths) as ledger:
        rows = ledger.summary()
        jobs = {row.job_id: row for row in ledger.jobs()}
    robots: dict[str, list[Trained]] = {}
    learners = set()
    work = {}
    unfinished = []
    for row in rows:
        job_id = row["job_id"]
        job = jobs[row["job_id"]]
        if row["state"] != "SUCCEEDED" or row["ep_rew_mean"] is None:
            unfinished.append(job_id)
            continue
        learners.add(row["learner"])
        work[job_id] = {**_work(job.job.spec), "robot_hash": job.robot_hash}
        robots.setdefault(without_seed(job_id, row["seed"]), []).append(
            Trained(
                seed=row["seed"],
                env_steps=row["env_steps"],
                final=row["ep_rew_mean"],
                evaluated=row["eval_mean"],
                curve=run_reader.learning_curve(paths.job(job_id).progress_csv),
            )
        )
    if len(learners) != 1:
        problem = (
            f"trained with {joined(sorted(map(str, learners)))}"
            if learners
            else "no job has succeeded yet"
        )
        raise UsageError(
            f"{run_dir}: {problem}; runs of one learner are compared: run the job file with --learner"
        )
    ordered = {
        robot: sorted(trained, key=lambda one: one.seed) for robot, trained in robots.items()
    }
    return Side(learner=str(learners.pop()), robots=ordered, work=work, unfinished=unfinished)


def _work(spec: WorkerSpec) -> dict[str, Any]:
    values = spec.values()
    return {
        key: value for key, value in values.items() if key not in {*NOT_IN_FINGERPRINT, "learner"}
    }


def in_common(a: Side, b: Side) -> list[str]:
    """Robots with at least two seeds on both sides.

    :raises UsageError: there is none, or a common job was not the same work.
    """
    for job_id in a.work.keys() & b.work.keys():
        for key, value in a.work[job_id].items():
            if value != b.work[job_id].get(key, value):
                raise UsageError(
                    f"{job_id}: {key} is {value} in A and {b.work[job_id][key]} in B; only the learner may differ"
                )
    common = [
        robot
        for robot, trained in a.robots.items()
        if min(len(trained), len(b.robots.get(robot, ()))) >= LEAST_SEEDS
    ]
    if not common:
        raise UsageError(
            f"no robot has {LEAST_SEEDS} finished seeds in both runs: A has {listed(list(a.robots), 5) or 'none'}, "
            f"B {listed(list(b.robots), 5) or 'none'}"
        )
    return common


def values(trained: Sequence[Trained], measure: str) -> list[float]:
    """One value per seed; empty where a seed has none."""
    measured = [getattr(one, measure) for one in trained]
    return [] if None in measured else measured
