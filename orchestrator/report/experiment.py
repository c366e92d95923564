"""What a report tells of an experiment, read from its ledger and the files of its jobs: the content
of ``report.json``. None: not known.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from orchestrator.analysis import contention, run_reader
from orchestrator.analysis.contention import ContentionFinding
from orchestrator.analysis.run_reader import EvaluationFile, LearningCurve
from orchestrator.analysis.statistics import EstimateFacts, known_estimate
from orchestrator.core.files.file_status import status_of
from orchestrator.core.paths import RunPaths
from orchestrator.core.timing_columns import PHASES, SUMMABLE, Iteration
from orchestrator.experiment import run_directory
from orchestrator.jobfile.job_names import without_seed
from orchestrator.ledger import AttemptRow, JobRow, SummaryRow
from orchestrator.ledger.lineage import env_steps_before
from orchestrator.ledger.rows import fitness

MOST_JOBS = 400
"""Of more jobs, those with the highest returns are shown."""
INTERRUPTED = ("interrupted", "paused", "rung", "cancelled", "supervisor-died")
"""Causes of ends of attempts that are no failures."""


class ReportedAttempt(AttemptRow):
    until: float
    """Its end; now while it is running, and else when its timings were written last."""
    outcome: str


class ReportedJob(SummaryRow):
    """A row of ``summary.json`` with what the job's files say. RUNNING: its supervisor runs."""

    robot: str
    group: str
    """Its ``job_id`` without the seed."""
    point: Mapping[str, Any]
    """Keys that a matrix or a program varies → their values."""
    core_hours: float
    timings: Mapping[str, float | None]
    """``iterations`` (their number), ``env_steps``, and columns of ``timings.csv`` → sum or maximum."""
    curve: LearningCurve
    evaluation: EvaluationFile | None


class ReportedRobot(TypedDict):
    """Jobs that differ in their seed alone. Estimates are over the seeds."""

    robot: str
    group: str
    task: str
    point: Mapping[str, Any]
    jobs: Sequence[str]
    seeds: Sequence[int]
    states: Sequence[str]
    first: EstimateFacts | None
    last: EstimateFacts | None
    evaluation: Mapping[str, Any] | None
    """``mean``, ``measures`` by name; of a single seed also ``std``, over its episodes."""
    grid: Sequence[Mapping[str, Any]]
    """``at`` (key → value) and ``mean`` of each point of the final evaluation."""
    env_steps_per_s: EstimateFacts | None
    core_hours: float
    attempts: int
    phases: Mapping[str, float | None]
    """Phase, or ``rest_s`` → seconds."""
    run_delay_s: float | None
    timed_s: float
    timed_env_steps: float


class ExperimentFacts(TypedDict):
    kind: str
    running: bool
    totals: Mapping[str, Any]
    """Of all jobs, shown or not."""
    varied: Sequence[str]
    robots: Sequence[ReportedRobot]
    jobs: Sequence[ReportedJob]
    """The shown ones."""
    attempts: Sequence[ReportedAttempt]
    """Of all jobs."""
    findings: Sequence[ContentionFinding]
    machine: Mapping[str, Any]


def read(run_dir: Path) -> ExperimentFacts:
    """Read the facts of an experiment from its run directory.

    :raises OrchestratorError: it is no run directory, or its ledger is damaged.
    """
    paths = run_directory.existing_run(run_dir)
    now = time.time()
    running = run_directory.holder(paths) is not None
    rows: list[SummaryRow] = []
    declared: dict[str, JobRow] = {}
    attempts: dict[str, list[ReportedAttempt]] = {}
    if paths.ledger.exists() or not running:  # otherwise robots are being examined
        with run_directory.reading_ledger(paths) as ledger:
            declared = {row.job_id: row for row in ledger.jobs()}
            # A run that begins meanwhile may restart jobs.
            rows = [row for row in ledger.summary() if row["job_id"] in declared]
            attempts = {row["job_id"]: [] for row in rows}
            for attempt in ledger.attempts():
                if attempt["job_id"] in attempts:
                    attempts[attempt["job_id"]].append(_attempt(attempt, paths, running, now))
    jobs = [
        _job(row, declared[row["job_id"]], attempts[row["job_id"]], paths, running)
        for row in _shown(rows)
    ]
    robots: dict[str, list[ReportedJob]] = {}
    for job in jobs:
        robots.setdefault(job["group"], []).append(job)
    job_ids = {job["job_id"] for job in jobs}
    return {
        "kind": "experiment",
        "running": running,
        "totals": _totals(rows, attempts, running),
        "varied": list(dict.fromkeys(key for job in jobs for key in job["point"])),
        "robots": [_robot(group) for group in robots.values()],
        "jobs": jobs,
        "attempts": [attempt for of_job in attempts.values() for attempt in of_job],
        "findings": [*contention.find(run_dir, job_ids), *_policy_findings(jobs)],
        "machine": run_reader.last_session(paths.provenance),
    }


def to_json(facts: ExperimentFacts) -> dict[str, Any]:
    return {**facts, "findings": [dataclasses.asdict(finding) for finding in facts["findings"]]}


def _shown(rows: Sequence[SummaryRow]) -> Sequence[SummaryRow]:
    """Return the jobs with the highest returns, in the order of the job file."""
    if len(rows) <= MOST_JOBS:
        return rows

    def rating(row: SummaryRow) -> float:
        value = fitness(row["eval_mean"], row["ep_rew_mean"])
        return -math.inf if value is None else value

    best = {row["job_id"] for row in sorted(rows, key=rating, reverse=True)[:MOST_JOBS]}
    return [row for row in rows if row["job_id"] in best]


def _policy_findings(jobs: Iterable[ReportedJob]) -> list[ContentionFinding]:
    """Return what is wrong with policies although their return may be high."""
    return [
        ContentionFinding(
            kind="policy",
            job_ids=(job["job_id"],),
            what=job["eval_finding"],
            evidence=f"its evaluation: return {job['eval_mean'] or 0.0:.4g}, {job['eval_length'] or 0.0:,.0f} steps"
            " an episode",
            cure="`check` the robot, whose start may be wrong; `play` shows what the policy does",
        )
        for job in jobs
        if job["eval_finding"]
    ]


# -- attempts


def attempt_outcome(attempt: AttemptRow, *, running: bool = False) -> str:
    """Return ``succeeded``, ``running``, ``failed`` or ``interrupted``: by a stop, at a rung, or with
    its supervisor.

    :param running: whether its supervisor runs.
    """
    if attempt["ended_at"] is None:
        return "running" if running else "interrupted"
    if attempt["cause"] is None:
        return "succeeded"
    return "interrupted" if attempt["cause"] in INTERRUPTED else "failed"


def _attempt(row: AttemptRow, paths: RunPaths, running: bool, now: float) -> ReportedAttempt:
    until = row["ended_at"]
    if until is None and running:
        until = now
    if until is None:
        status = status_of(paths.job(row["job_id"]).timings_csv)
        until = row["started_at"] if status is None else status.st_mtime
    outcome = attempt_outcome(row, running=running)
    return {**row, "until": max(until, row["started_at"]), "outcome": outcome}


def _core_hours(attempts: Iterable[ReportedAttempt]) -> float:
    return sum(
        (attempt["until"] - attempt["started_at"]) * max(1, len(attempt["cpus"])) / 3600
        for attempt in attempts
    )


def _totals(
    rows: Sequence[SummaryRow], attempts: Mapping[str, Sequence[ReportedAttempt]], running: bool
) -> dict[str, Any]:
    states = [_state(row, running) for row in rows]
    every_attempt = [attempt for of_job in attempts.values() for attempt in of_job]
    busy_s = 0.0
    covered_until = float("-inf")
    for attempt in sorted(every_attempt, key=lambda attempt: attempt["started_at"]):
        busy_s += max(0.0, attempt["until"] - max(attempt["started_at"], covered_until))
        covered_until = max(covered_until, attempt["until"])
    env_steps = sum(row["env_steps"] for row in rows)
    return {
        "jobs": len(rows),
        "states": {state: states.count(state) for state in sorted(set(states))},
        "retries": sum(
            attempt["outcome"] == "failed"
            and attempt["number"] + 1 < len(attempts[attempt["job_id"]])
            for attempt in every_attempt
        ),
        "busy_s": busy_s,
        "core_hours": _core_hours(every_attempt),
        "env_steps": env_steps,
        "env_steps_per_s": env_steps / busy_s if busy_s else None,
    }


def _state(row: SummaryRow, running: bool) -> Any:
    """Return the state of a job: one whose supervisor died waits to be resumed."""
    return "PENDING" if row["state"] == "RUNNING" and not running else row["state"]


# -- jobs


def _job(
    row: SummaryRow,
    declared: JobRow,
    attempts: Sequence[ReportedAttempt],
    run: RunPaths,
    running: bool,
) -> ReportedJob:
    paths = run.job(row["job_id"])
    timings = _sums(run_reader.iterations(paths.timings_csv))
    curve = run_reader.learning_curve(paths.progress_csv)
    point = declared.job.point
    group = without_seed(row["job_id"], row["seed"])
    wall_s = timings["wall_s"]
    env_steps = timings["env_steps"] or 0.0
    # The files of a running job are newer than the ledger.
    reached = max(row["env_steps"], int(env_steps))
    before = env_steps_before(row["env_steps"], row["lineage_env_steps"])
    first = row["ep_rew_mean_first"]
    return {
        **row,
        "traceback": None,
        "state": _state(row, running),
        "env_steps": reached,
        "lineage_env_steps": None if before is None else before + reached,
        "ep_rew_mean": curve[-1][1] if curve and row["state"] == "RUNNING" else row["ep_rew_mean"],
        "ep_rew_mean_first": curve[0][1] if curve and first is None else first,
        "env_steps_per_s": env_steps / wall_s if wall_s and env_steps else row["env_steps_per_s"],
        "wall_s": sum(attempt["until"] - attempt["started_at"] for attempt in attempts),
        "robot": group if point else row["name"],
        "group": group,
        "point": dict(point),
        "core_hours": _core_hours(attempts),
        "timings": timings,
        "curve": curve,
        "evaluation": run_reader.evaluation(paths.eval),
    }


def _sums(rows: Sequence[Iteration]) -> dict[str, float | None]:
    """Return sums and maxima over the rows of ``timings.csv``; None for what no row has."""
    found: dict[str, float | None] = {
        "iterations": len(rows),
        "env_steps": rows[-1].env_steps if rows else 0.0,
    }
    for column in (*SUMMABLE, "rss_mib", "n_threads"):
        values = [value for row in rows if (value := getattr(row, column)) is not None]
        combine = sum if column in SUMMABLE else max
        found[column] = combine(values) if values else None
    return found


def cpu_share(attempt: ReportedAttempt, job: ReportedJob) -> float:
    """Return the CPUs that an attempt kept busy: those of rank 0, as it told at its end or in its
    iterations, times the number of ranks; 0 if not known.
    """
    cpu_s = attempt["cpu_s"]
    wall_s = attempt["wall_s"]
    if not cpu_s or not wall_s:
        cpu_s = job["timings"]["cpu_s"]
        wall_s = job["timings"]["wall_s"]
    return job["ranks"] * cpu_s / wall_s if cpu_s and wall_s else 0.0


# -- robots


def _robot(jobs: Sequence[ReportedJob]) -> ReportedRobot:
    phases = {phase: _total(jobs, phase) for phase in PHASES}
    timed_s = _total(jobs, "wall_s") or 0.0
    rest_s = max(0.0, timed_s - sum(seconds or 0.0 for seconds in phases.values()))
    evaluations = [job["evaluation"] for job in jobs if job["evaluation"]]
    return {
        "robot": jobs[0]["robot"],
        "group": jobs[0]["group"],
        "task": jobs[0]["task"],
        "point": jobs[0]["point"],
        "jobs": [job["job_id"] for job in jobs],
        "seeds": [job["seed"] for job in jobs],
        "states": [job["state"] for job in jobs],
        "first": known_estimate(job["ep_rew_mean_first"] for job in jobs),
        "last": known_estimate(job["ep_rew_mean"] for job in jobs),
        "evaluation": _episodes(evaluations),
        "grid": _grid(evaluations),
        "env_steps_per_s": known_estimate(job["env_steps_per_s"] for job in jobs),
        "core_hours": sum(job["core_hours"] for job in jobs),
        "attempts": sum(job["attempts"] for job in jobs),
        "phases": {**phases, "rest_s": rest_s},
        "run_delay_s": _total(jobs, "run_delay_s"),
        "timed_s": timed_s,
        "timed_env_steps": _total(jobs, "env_steps") or 0.0,
    }


def _total(jobs: Sequence[ReportedJob], column: str) -> float | None:
    """Return the sum of a column of timings over jobs, or None if none of them has measured it."""
    known = [value for job in jobs if (value := job["timings"][column]) is not None]
    return sum(known) if known else None


def _episodes(evaluations: Sequence[EvaluationFile]) -> dict[str, Any] | None:
    parts = [one["deterministic"] for one in evaluations if "deterministic" in one]
    if not parts:
        return None
    measures = dict.fromkeys(name for part in parts for name in part["measures"])
    return {
        "mean": known_estimate(part["mean"] for part in parts),
        "std": parts[0]["std"] if len(parts) == 1 else None,
        "measures": {
            name: known_estimate(part["measures"].get(name) for part in parts) for name in measures
        },
    }


def _grid(evaluations: Sequence[EvaluationFile]) -> list[dict[str, Any]]:
    means: dict[str, list[float | None]] = {}
    for one in evaluations:
        for point in one.get("grid", ()):
            means.setdefault(json.dumps(point["at"]), []).append(point["mean"])
    return [{"at": json.loads(at), "mean": known_estimate(values)} for at, values in means.items()]
