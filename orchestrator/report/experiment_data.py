"""The facts of an experiment, from its ledger and the files of its jobs: what ``report.json`` holds."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.analysis import run_reader
from orchestrator.analysis.statistics import estimate, location
from orchestrator.core.messages import read_exit_record
from orchestrator.core.paths import JobPaths, RunPaths
from orchestrator.core.timing_columns import COLUMNS, PHASES, SUMMABLE
from orchestrator.experiment import run_directory
from orchestrator.ledger import AttemptFacts, JobRow, Ledger, SummaryRow
from orchestrator.report import certificate_page, rank_data
from orchestrator.report.number_format import plain

COPIED = (
    *("job_id", "name", "state", "cause", "message", "task", "seed", "learner", "learner_reason"),
    *("attempts", "env_steps", "total_timesteps", "ep_rew_mean_first", "ep_rew_mean", "eval_mean", "queue_s"),
    *("import_s", "first_step_s", "checkpoint_s", "eval_s", "max_rss_mib", "node", "cpus"),
)
"""Columns of ``summary.json`` that the report repeats."""


def gather(run_dir: Path) -> dict[str, Any]:
    """:raises UsageError: when it is not a run directory or its ledger is damaged."""
    paths, now = run_directory.existing(run_dir), time.time()
    alive = run_directory.holder(paths) is not None
    rows, declared, launches = _ledger(paths, alive)
    varied = list(dict.fromkeys(key for one in declared.values() for key in one.job.point))
    attempts = [_placed(attempt, declared[attempt["job_id"]], paths, alive, now) for attempt in launches]
    jobs = _jobs(rows, declared, attempts, paths, alive)
    return {
        "kind": "experiment",
        "name": plain(run_dir.resolve().name),
        "made_at": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now)),
        "running": alive,
        "totals": _totals(jobs, attempts),
        "varied": varied,
        "robots": [_robot(group) for group in _grouped(jobs)],
        "ranks": rank_data.scaling(jobs, declared),
        "jobs": jobs,
        "attempts": attempts,
        "findings": _findings(run_dir) if rows else [],
        "certificate": certificate_page.read(run_dir),
        "machine": run_reader.last_session(paths.provenance),
    }


def _ledger(paths: RunPaths, alive: bool) -> tuple[list[SummaryRow], dict[str, JobRow], list[AttemptFacts]]:
    """Rows of ``summary.json``, what each job was declared as, and all attempts."""
    if alive and not paths.ledger.exists():
        return [], {}, []  # its robots are being examined
    ledger = Ledger.open(paths.ledger, read_only=True)
    try:
        declared = {row.job.job_id: row for row in ledger.jobs()}
        return ledger.summary(), declared, ledger.attempts()
    finally:
        ledger.abandon()


def _placed(attempt: Mapping[str, Any], declared: JobRow, paths: RunPaths, alive: bool, now: float) -> dict[str, Any]:
    """With ``at_work``, and ``until``: its end, this moment, or for one whose supervisor died the last sign of life.

    Its ``cpu_s`` is that of all ranks.
    """
    until = attempt["ended_at"]
    cpu_s = attempt["cpu_s"]
    if cpu_s is not None and declared.job.resources.ranks > 1:
        files = paths.job(attempt["job_id"]).attempt(attempt["number"])
        records = (read_exit_record(files.exit_of(rank)) for rank in range(1, declared.job.resources.ranks))
        cpu_s += sum(record.cpu_s or 0.0 for record in records if record is not None)
    if until is None:
        until = now if alive else _last_sign(paths.job(attempt["job_id"]), attempt["started_at"])
    at_work = alive and attempt["ended_at"] is None
    return {**attempt, "cpu_s": cpu_s, "at_work": at_work, "until": max(until, attempt["started_at"])}


def _last_sign(job: JobPaths, otherwise: float) -> float:
    try:
        return job.timings_csv.stat().st_mtime
    except OSError:
        return otherwise


def _jobs(
    rows: Sequence[Mapping[str, Any]],
    declared: Mapping[str, JobRow],
    attempts: Iterable[Mapping[str, Any]],
    paths: RunPaths,
    alive: bool,
) -> list[dict[str, Any]]:
    launches: dict[str, list[Mapping[str, Any]]] = {}
    for attempt in attempts:
        launches.setdefault(attempt["job_id"], []).append(attempt)
    return [
        _job(row, declared[row["job_id"]], launches.get(row["job_id"], []), paths.job(row["job_id"]), alive)
        for row in rows
    ]


def _job(
    row: Mapping[str, Any],
    declared: JobRow,
    attempts: Sequence[Mapping[str, Any]],
    paths: JobPaths,
    alive: bool,
) -> dict[str, Any]:
    timings, point = _timings(paths.timings_csv), declared.job.point
    curve = run_reader.learning_curve(paths.progress_csv)
    facts = {key: row[key] for key in COPIED}
    if row["state"] == "RUNNING" and not alive:
        facts["state"] = "INTERRUPTED"
    facts["env_steps"] = max(row["env_steps"], int(timings["env_steps"] or 0))
    # A job at work has not had its last word: its own table knows more than the ledger.
    if curve and row["state"] == "RUNNING":
        facts["ep_rew_mean"] = curve[-1][1]
    if curve and facts["ep_rew_mean_first"] is None:
        facts["ep_rew_mean_first"] = curve[0][1]
    wall_s = timings["wall_s"]
    return {
        **facts,
        "robot": _without_seed(row) if point else row["name"],
        "group": _without_seed(row),
        "point": dict(point),
        "env_steps_per_s": timings["env_steps"] / wall_s if wall_s and timings["env_steps"] else row["env_steps_per_s"],
        "wall_s": sum(attempt["until"] - attempt["started_at"] for attempt in attempts),
        "core_hours": sum(_core_seconds(attempt) for attempt in attempts) / 3600,
        **rank_data.of_job(declared, timings),
        "failures": [
            {"attempt": attempt["number"], "cause": attempt["cause"], "message": attempt["message"] or ""}
            for attempt in attempts
            if attempt["cause"] is not None
        ],
        "timings": timings,
        "curve": curve,
        "evaluation": run_reader.evaluation(paths.eval),
        "preview": paths.preview.is_file(),
    }


def _timings(path: Path) -> dict[str, float | None]:
    """Sums over the iterations of ``timings.csv``, with ``iterations``, ``env_steps`` and the largest ``rss_mib`` and
    ``n_threads``; None for what no row has.
    """
    rows = run_reader.iterations(path)
    columns = dict(zip(COLUMNS, zip(*rows, strict=True), strict=False))
    known = {name: [value for value in values if value is not None] for name, values in columns.items()}
    return {
        "iterations": len(rows),
        "env_steps": rows[-1].env_steps if rows else 0.0,
        **{name: sum(known[name]) if known.get(name) else None for name in SUMMABLE},
        **{name: max(known.get(name, ()), default=None) for name in ("rss_mib", "n_threads")},
    }


def _without_seed(row: Mapping[str, Any]) -> str:
    return str(row["job_id"]).removesuffix(f"-s{row['seed']}")


def _core_seconds(attempt: Mapping[str, Any]) -> float:
    return float(attempt["until"] - attempt["started_at"]) * max(1, len(attempt["cpus"]))


def _totals(jobs: Sequence[Mapping[str, Any]], attempts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    states = [job["state"] for job in jobs]
    busy_s = _covered([(attempt["started_at"], attempt["until"]) for attempt in attempts])
    env_steps = sum(job["env_steps"] for job in jobs)
    return {
        "jobs": len(jobs),
        "states": {state: states.count(state) for state in sorted(set(states))},
        "retries": sum(max(0, job["attempts"] - 1) for job in jobs),
        "busy_s": busy_s,
        "core_hours": sum(job["core_hours"] for job in jobs),
        "env_steps": env_steps,
        "env_steps_per_s": env_steps / busy_s if busy_s else None,
    }


def _covered(spans: Iterable[tuple[float, float]]) -> float:
    """Seconds in which at least one of ``spans`` lasts."""
    total, end = 0.0, float("-inf")
    for begun, until in sorted(spans):
        total += max(0.0, until - max(begun, end))
        end = max(end, until)
    return total


def _grouped(jobs: Iterable[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for job in jobs:
        groups.setdefault(job["group"], []).append(job)
    return list(groups.values())


def _robot(jobs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Jobs that differ in their seed alone; figures are medians over seeds, with an interval where that can be had."""
    sums = {name: [job["timings"][name] for job in jobs] for name in ("env_steps", "wall_s", "run_delay_s", *PHASES)}
    totals = {name: sum(part or 0.0 for part in parts) for name, parts in sums.items()}
    rest = totals["wall_s"] - sum(totals[name] for name in PHASES)
    delays = sums["run_delay_s"]
    first = jobs[0]
    return {
        "robot": first["robot"],
        "group": first["group"],
        "name": first["name"],
        "task": first["task"],
        "point": first["point"],
        "jobs": [job["job_id"] for job in jobs],
        "seeds": [job["seed"] for job in jobs],
        "states": [job["state"] for job in jobs],
        "first": returns(job["ep_rew_mean_first"] for job in jobs),
        "last": returns(job["ep_rew_mean"] for job in jobs),
        "evaluation": _evaluation([job["evaluation"] for job in jobs if job["evaluation"]]),
        "env_steps_per_s": over_seeds(job["env_steps_per_s"] for job in jobs),
        "core_hours": sum(job["core_hours"] for job in jobs),
        "attempts": sum(job["attempts"] for job in jobs),
        "phases": {**{name: totals[name] for name in PHASES}, "rest_s": max(0.0, rest)},
        "run_delay_s": None if all(delay is None for delay in delays) else totals["run_delay_s"],
        "timed_s": totals["wall_s"],
        "timed_env_steps": totals["env_steps"],
    }


def over_seeds(values: Iterable[float | None]) -> dict[str, Any] | None:
    """Median of what is known, with its interval where there is more than one; None where nothing is."""
    known = [value for value in values if value is not None]
    return estimate(known).facts() if known else None


def returns(values: Iterable[float | None]) -> dict[str, Any] | None:
    """The same for returns and measures: numbers without a natural zero."""
    known = [value for value in values if value is not None]
    return location(known).facts() if known else None


def _evaluation(found: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    if not found:
        return None
    result: dict[str, Any] = {}
    for kind in ("deterministic", "stochastic"):
        parts = [one[kind] for one in found if kind in one]
        measures = dict.fromkeys(name for part in parts for name in part["measures"])
        result[kind] = {
            "mean": returns(part["mean"] for part in parts),
            "std": parts[0]["std"] if len(parts) == 1 else None,
            "measures": {name: returns(part["measures"].get(name) for part in parts) for name in measures},
        }
    return result


def _findings(run_dir: Path) -> list[dict[str, Any]]:
    from orchestrator.analysis import contention

    return [
        {
            "kind": finding.kind,
            "job_ids": list(finding.job_ids),
            "what": finding.what,
            "evidence": finding.evidence,
            "cure": finding.cure,
        }
        for finding in contention.find(run_dir)
    ]
