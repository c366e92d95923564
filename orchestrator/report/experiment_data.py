"""The facts of an experiment, from its ledger and the files of its jobs: the content of
``report.json``.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.analysis import contention, run_reader
from orchestrator.analysis.contention import ContentionFinding
from orchestrator.analysis.equal_trainings import seeds_trained_otherwise
from orchestrator.analysis.job_metrics import COST_NEUTRAL_KEYS
from orchestrator.analysis.run_reader import EvaluationFile
from orchestrator.analysis.statistics import Estimate, known_estimate, ratio
from orchestrator.core import job_parts
from orchestrator.core.exit_record import read_exit_record
from orchestrator.core.files.file_status import status_of
from orchestrator.core.paths import JobPaths, RunPaths
from orchestrator.core.timing_columns import PHASES, SUMMABLE, Iteration
from orchestrator.experiment.directory import run_directory
from orchestrator.jobfile.job_names import without_seed
from orchestrator.ledger import AttemptRow, JobRow, SummaryRow
from orchestrator.ledger.lineage import env_steps_before
from orchestrator.report.experiment_facts import (
    EpisodeEstimates,
    ExperimentFacts,
    RanksOfRobot,
    RanksRow,
    ReportedAttempt,
    ReportedJob,
    ReportedPoint,
    ReportedRobot,
    Timings,
    Totals,
    attempt_outcome,
)
from orchestrator.report.number_format import one_line
from orchestrator.supervisor import start_choice

COPIED = (
    "job_id",
    "name",
    "state",
    "cause",
    "message",
    "task",
    "seed",
    "learner",
    "learner_reason",
    "attempts",
    "env_steps",
    "total_timesteps",
    "ep_rew_mean_first",
    "ep_rew_mean",
    "eval_mean",
    "eval_length",
    "eval_finding",
    "env_steps_per_s",
    "queue_s",
    "wall_s",
    "import_s",
    "first_step_s",
    "checkpoint_s",
    "eval_s",
    "max_rss_mib",
    "ranks",
    "node",
    "cpus",
    "parent",
    "lineage_env_steps",
)
"""Columns of ``summary.json`` that the report repeats."""
MAY_DIFFER = {*COST_NEUTRAL_KEYS, "cores", "ranks", "backend", "mode", "total_timesteps"}
"""Keys of the specs of jobs that do the same work with different numbers of ranks or cores."""


def gather(
    run_dir: Path, shown_jobs: Collection[str] | None = None, *, has_varied: bool = True
) -> ExperimentFacts:
    """Read the facts of an experiment from its run directory.

    :param shown_jobs: ids of the jobs whose files are read; None: of all of them.
    :param has_varied: whether the keys are named that the job file varies.
    :raises OrchestratorError: it is no run directory, or its ledger is damaged.
    """
    paths = run_directory.existing_run(run_dir)
    now = time.time()
    running = run_directory.holder(paths) is not None
    rows, declared, launches = _ledger(paths, running)
    attempts = [_attempt(row, declared[row["job_id"]], paths, running, now) for row in launches]
    of_job: dict[str, list[ReportedAttempt]] = {row["job_id"]: [] for row in rows}
    for attempt in attempts:
        of_job[attempt["job_id"]].append(attempt)
    shown = set(of_job if shown_jobs is None else shown_jobs)
    every_job = [
        _job(
            row,
            declared[row["job_id"]],
            of_job[row["job_id"]],
            paths,
            running,
            read=row["job_id"] in shown,
        )
        for row in rows
    ]
    jobs = [job for job in every_job if job["job_id"] in shown]
    robots: dict[str, list[ReportedJob]] = {}
    for job in jobs:
        robots.setdefault(job["group"], []).append(job)
    varied = _varied_keys(declared.values()) if has_varied else []
    return {
        "kind": "experiment",
        "name": one_line(_title(run_dir.resolve())),
        "made_at": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now)),
        "running": running,
        "totals": _totals(every_job, attempts),
        "varied": varied,
        "robots": [_robot(group, declared) for group in robots.values()],
        "ranks": _scaling(jobs, declared),
        "jobs": jobs,
        "attempts": attempts,
        "findings": [*_policy_findings(jobs), *contention.find(run_dir, shown)] if rows else [],
        "machine": run_reader.last_session(paths.provenance),
    }


def _policy_findings(jobs: Iterable[ReportedJob]) -> list[ContentionFinding]:
    return [
        ContentionFinding(
            kind="policy",
            job_ids=(job["job_id"],),
            what=job["eval_finding"],
            evidence=f"the evaluation: return {job['eval_mean']:.4g}, {job['eval_length']:,.0f} steps an episode",
            cure="`check` the robot, whose start may be wrong; `play` shows what the policy does",
        )
        for job in jobs
        if job["eval_finding"] and job["eval_mean"] is not None and job["eval_length"] is not None
    ]


def _marks(declared: JobRow, paths: JobPaths) -> dict[str, Sequence[float]]:
    """What features mark on its learning curve, in env_steps, by its meaning."""
    marks = [job_parts.job_parts()[name].mark for name in declared.job.spec.parts]
    return {
        mark.meaning: run_reader.rises(paths.progress_csv, mark.column)
        for mark in marks
        if mark is not None
    }


def _varied_keys(declared: Iterable[JobRow]) -> list[str]:
    return list(dict.fromkeys(key for row in declared for key in row.job.point))


def _title(run_dir: Path) -> str:
    """The name of the folder, with that above it where it is only a number: ``evolve/0``."""
    return f"{run_dir.parent.name}/{run_dir.name}" if run_dir.name.isdecimal() else run_dir.name


def to_json(facts: ExperimentFacts) -> dict[str, Any]:
    """The content of ``report.json``."""
    of_report = ReportedJob.__annotations__.keys() - SummaryRow.__annotations__.keys()
    kept = {*COPIED, *job_parts.column_names(), *of_report}
    jobs = [{key: value for key, value in job.items() if key in kept} for job in facts["jobs"]]
    return {**facts, "jobs": jobs, "findings": list(map(dataclasses.asdict, facts["findings"]))}


def _ledger(
    paths: RunPaths, running: bool
) -> tuple[list[SummaryRow], dict[str, JobRow], list[AttemptRow]]:
    """Rows of ``summary.json``, jobs as declared, all attempts; nothing while robots are
    examined.
    """
    if running and not paths.ledger.exists():
        return [], {}, []
    with run_directory.reading_ledger(paths) as ledger:
        rows = ledger.summary()
        declared = {row.job_id: row for row in ledger.jobs()}
        # A run that begins meanwhile may restart jobs.
        known = declared.keys() & {row["job_id"] for row in rows}
        rows = [row for row in rows if row["job_id"] in known]
        attempts = [row for row in ledger.attempts() if row["job_id"] in known]
        return rows, declared, attempts


def _attempt(
    row: AttemptRow, declared: JobRow, paths: RunPaths, running: bool, now: float
) -> ReportedAttempt:
    job = paths.job(row["job_id"])
    cpu_s = row["cpu_s"]
    until = row["ended_at"]
    if cpu_s is not None:
        cpu_s += _cpu_s_of_other_ranks(job, row["number"], declared.job.resources.ranks)
    if until is None:
        until = now if running else _last_written(job.timings_csv, row["started_at"])
    at_work = running and row["ended_at"] is None
    # On another machine, its executor may be one that never forks.
    has_reason = row["start"] == "exec" and (row["node"] is None or row["why_exec"] is not None)
    why_exec = start_choice.why_execed(declared.job, row["why_exec"]) if has_reason else None
    return {
        **row,
        "why_exec": why_exec,
        "cpu_s": cpu_s,
        "at_work": at_work,
        "until": max(until, row["started_at"]),
    }


def _cpu_s_of_other_ranks(job: JobPaths, number: int, ranks: int) -> float:
    """CPU seconds of the ranks from 1 on of an attempt, as far as they have written them."""
    exits = job.attempt(number).exits()
    records = (read_exit_record(path) for rank, path in exits.items() if 0 < rank < ranks)
    return sum(record.cpu_s or 0.0 for record in records if record is not None)


def _last_written(path: Path, otherwise: float) -> float:
    status = status_of(path)
    return otherwise if status is None else status.st_mtime


def _job(
    row: SummaryRow,
    declared: JobRow,
    attempts: Sequence[ReportedAttempt],
    run: RunPaths,
    running: bool,
    *,
    read: bool,
) -> ReportedJob:
    """The facts of a job. :param read: whether its files are read; else it has what the ledger
    knows.
    """
    paths = run.job(row["job_id"])
    timings = _timings(paths.timings_csv) if read else _sums([])
    point = declared.job.point
    curve = run_reader.learning_curve(paths.progress_csv) if read else []
    group = without_seed(row["job_id"], row["seed"])
    wall_s = timings["wall_s"]
    env_steps = timings["env_steps"] or 0.0
    is_running = row["state"] == "RUNNING"
    several = row["ranks"] > 1
    allreduce_s = timings["allreduce_s"] if several else None
    first = row["ep_rew_mean_first"]
    earlier = env_steps_before(row["env_steps"], row["lineage_env_steps"])
    # The files of a running job are newer than the ledger.
    reached = max(row["env_steps"], int(env_steps))
    return {
        **row,
        "state": "PENDING" if is_running and not running else row["state"],
        "env_steps": reached,
        "lineage_env_steps": None if earlier is None else earlier + reached,
        "ep_rew_mean": curve[-1][1] if curve and is_running else row["ep_rew_mean"],
        "ep_rew_mean_first": curve[0][1] if curve and first is None else first,
        "robot": group if point else row["name"],
        "group": group,
        "point": dict(point),
        "env_steps_per_s": env_steps / wall_s if wall_s and env_steps else row["env_steps_per_s"],
        "wall_s": sum(_length_s(attempt) for attempt in attempts),
        "core_hours": sum(_length_s(attempt) * max(1, len(attempt["cpus"])) for attempt in attempts)
        / 3600,
        "mode": declared.job.spec.mode if several else None,
        "allreduce": allreduce_s / wall_s if allreduce_s is not None and wall_s else None,
        "failures": [
            {
                "attempt": attempt["number"],
                "cause": str(attempt["cause"]),
                "message": attempt["message"] or "",
            }
            for attempt in attempts
            if attempt_outcome(attempt) == "failed"
        ],
        "timings": timings,
        "curve": curve,
        "marks": _marks(declared, paths) if read else {},
        "evaluation": run_reader.evaluation(paths.eval) if read else None,
        "preview": read and paths.preview.is_file(),
    }


def _length_s(attempt: ReportedAttempt) -> float:
    return float(attempt["until"] - attempt["started_at"])


def _timings(path: Path) -> Timings:
    return _sums(run_reader.iterations(path))


def _sums(rows: Sequence[Iteration]) -> Timings:
    """Sums and maxima over the rows of ``timings.csv``; a figure that no row has is None."""

    def known(column: str) -> list[float]:
        values = (getattr(row, column) for row in rows)
        return [value for value in values if value is not None]

    def total(column: str) -> float | None:
        values = known(column)
        return sum(values) if values else None

    return {
        "iterations": len(rows),
        "env_steps": rows[-1].env_steps if rows else 0.0,
        **{column: total(column) for column in SUMMABLE},
        **{column: max(known(column), default=None) for column in ("rss_mib", "n_threads")},
    }


def _totals(jobs: Sequence[ReportedJob], attempts: Sequence[ReportedAttempt]) -> Totals:
    states = [job["state"] for job in jobs]
    busy_s = _covered_s((attempt["started_at"], attempt["until"]) for attempt in attempts)
    env_steps = sum(job["env_steps"] for job in jobs)
    return {
        "jobs": len(jobs),
        "states": {state: states.count(state) for state in sorted(set(states))},
        "retries": sum(
            failed["attempt"] + 1 < job["attempts"] for job in jobs for failed in job["failures"]
        ),
        "busy_s": busy_s,
        "core_hours": sum(job["core_hours"] for job in jobs),
        "env_steps": env_steps,
        "env_steps_per_s": env_steps / busy_s if busy_s else None,
    }


def _covered_s(spans: Iterable[tuple[float, float]]) -> float:
    """Seconds that at least one of ``spans`` covers."""
    total = 0.0
    covered_until = float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, covered_until))
        covered_until = max(covered_until, end)
    return total


def _robot(jobs: Sequence[ReportedJob], declared: Mapping[str, JobRow]) -> ReportedRobot:
    """:param declared: by ``job_id``."""
    summed = ("env_steps", "wall_s", "run_delay_s", *PHASES)
    totals = {name: sum(job["timings"][name] or 0.0 for job in jobs) for name in summed}
    phases = {name: totals[name] for name in PHASES}
    measured = any(job["timings"]["run_delay_s"] is not None for job in jobs)
    evaluations = [job["evaluation"] for job in jobs if job["evaluation"]]
    return {
        "robot": jobs[0]["robot"],
        "group": jobs[0]["group"],
        "name": jobs[0]["name"],
        "task": jobs[0]["task"],
        "point": jobs[0]["point"],
        "jobs": [job["job_id"] for job in jobs],
        "seeds": [job["seed"] for job in jobs],
        "unlike_seeds": seeds_trained_otherwise([declared[job["job_id"]] for job in jobs]),
        "states": [job["state"] for job in jobs],
        "env_steps": [job["env_steps"] for job in jobs],
        "lineage_env_steps": [job["lineage_env_steps"] for job in jobs],
        "parents": [job["parent"] for job in jobs],
        "first": known_estimate(job["ep_rew_mean_first"] for job in jobs),
        "last": known_estimate(job["ep_rew_mean"] for job in jobs),
        "evaluation": _episodes(evaluations) if evaluations else None,
        "grid": _grid(evaluations),
        "env_steps_per_s": known_estimate(job["env_steps_per_s"] for job in jobs),
        "core_hours": sum(job["core_hours"] for job in jobs),
        "attempts": sum(job["attempts"] for job in jobs),
        "phases": {**phases, "rest_s": max(0.0, totals["wall_s"] - sum(phases.values()))},
        "run_delay_s": totals["run_delay_s"] if measured else None,
        "timed_s": totals["wall_s"],
        "timed_env_steps": totals["env_steps"],
    }


def _episodes(evaluations: Sequence[EvaluationFile]) -> EpisodeEstimates:
    parts = [
        evaluation["deterministic"] for evaluation in evaluations if "deterministic" in evaluation
    ]
    measures = dict.fromkeys(name for part in parts for name in part["measures"])
    return {
        "mean": known_estimate(part["mean"] for part in parts),
        "std": parts[0]["std"] if len(parts) == 1 else None,
        "measures": {
            name: known_estimate(part["measures"].get(name) for part in parts) for name in measures
        },
    }


def _grid(evaluations: Sequence[EvaluationFile]) -> list[ReportedPoint]:
    means: dict[tuple[tuple[str, float | str], ...], list[float | None]] = {}
    for evaluation in evaluations:
        for point in evaluation.get("grid", ()):
            means.setdefault(tuple(point["at"].items()), []).append(point["mean"])
    return [{"at": dict(at), "mean": known_estimate(values)} for at, values in means.items()]


# -- jobs of several ranks


def _scaling(jobs: Sequence[ReportedJob], declared: Mapping[str, JobRow]) -> list[RanksOfRobot]:
    """Robots that several ranks trained."""
    groups: dict[str, list[ReportedJob]] = {}
    for job in jobs:
        groups.setdefault(_work(declared[job["job_id"]]), []).append(job)
    return [
        _ranks_of_robot(group)
        for group in groups.values()
        if any(job["ranks"] > 1 for job in group)
    ]


def _work(declared: JobRow) -> str:
    spec = declared.job.spec.flat()
    return json.dumps(
        [declared.robot_hash, {key: spec[key] for key in spec if key not in MAY_DIFFER}],
        sort_keys=True,
    )


def _ranks_of_robot(jobs: Sequence[ReportedJob]) -> RanksOfRobot:
    groups: dict[tuple[int, str], dict[int, ReportedJob]] = {}
    for job in jobs:
        groups.setdefault((job["ranks"], job["mode"] or ""), {}).setdefault(job["seed"], job)
    base = min(groups)
    rows: list[RanksRow] = []
    for (ranks, mode), by_seed in sorted(groups.items()):
        speedup = _speedup(by_seed, groups[base]) if (ranks, mode) != base else None
        rows.append(
            {
                "ranks": ranks,
                "mode": mode or None,
                "jobs": [job["job_id"] for job in by_seed.values()],
                "env_steps_per_s": known_estimate(
                    job["env_steps_per_s"] for job in by_seed.values()
                ),
                "allreduce": known_estimate(job["allreduce"] for job in by_seed.values()),
                "speedup": None if speedup is None else speedup.facts(),
                "efficiency": None if speedup is None else speedup.scaled(base[0] / ranks).facts(),
            }
        )
    return {"robot": jobs[0]["robot"], "task": jobs[0]["task"], "base": base[0], "rows": rows}


def _speedup(jobs: Mapping[int, ReportedJob], base: Mapping[int, ReportedJob]) -> Estimate | None:
    """Over the seeds that both have."""
    pairs = [
        (jobs[seed]["env_steps_per_s"], base[seed]["env_steps_per_s"])
        for seed in jobs.keys() & base.keys()
    ]
    speeds: list[float] = []
    base_speeds: list[float] = []
    for speed, base_speed in pairs:
        if speed and base_speed and min(speed, base_speed) > 0:
            speeds.append(speed)
            base_speeds.append(base_speed)
    return ratio(speeds, base_speeds, paired=True) if speeds else None
