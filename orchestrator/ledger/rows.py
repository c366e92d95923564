"""What a row of the ledger means: SQL values to records, and records to the values of a row."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypedDict, cast

from orchestrator.core.decoding import decode
from orchestrator.core.job import Attempt, Cancelled, Cause, Failed, Job, Pending, Resources, Running, State, Succeeded
from orchestrator.core.worker_spec import WorkerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """A job as the ledger holds it."""

    job: Job
    fingerprint: str
    robot_hash: str | None
    state: State
    attempts: int
    """How many were launched; the next one's number."""
    env_steps: int = 0
    """Done so far, as last heard."""


class SummaryRow(TypedDict):
    """A job in ``summary.json``, where keys that a matrix of the experiment varies follow these.

    What is not known (yet) is None; seconds and memory are those of the last attempt, ``wall_s`` is the sum of all.
    """

    job_id: str
    name: str
    state: str
    cause: str | None
    message: str | None
    traceback: str | None
    """Of a FAILED job; not in ``summary.csv``."""
    xml: str | None
    task: str
    algo: str
    seed: int
    learner: str | None
    learner_reason: str | None
    attempts: int
    env_steps: int
    total_timesteps: int
    ep_rew_mean_first: float | None
    ep_rew_mean: float | None
    eval_mean: float | None
    env_steps_per_s: float | None
    queue_s: float | None
    wall_s: float | None
    cpu_s: float | None
    import_s: float | None
    first_step_s: float | None
    checkpoint_s: float | None
    eval_s: float | None
    max_rss_mib: float | None
    started_at: float | None
    ended_at: float | None
    ranks: int
    node: str | None
    cpus: list[int] | None
    pid: int | None
    """Of a RUNNING job."""
    robot_hash: str | None
    weights_sha256: str | None


class AttemptFacts(TypedDict):
    """An attempt with its end, for reports. What is not known (yet) is None."""

    job_id: str
    number: int
    node: str | None
    cpus: list[int]
    queue_s: float
    started_at: float
    ended_at: float | None
    wall_s: float | None
    cpu_s: float | None
    cause: str | None
    message: str | None


def job_values(position: int, job: Job, robot_hash: str | None) -> dict[str, Any]:
    """The columns of a job that are declared, not experienced."""
    return {
        "job_id": job.job_id,
        "position": position,
        "where_": job.where,
        "name": job.spec.name,
        "spec": job.spec.to_json(),
        "resources": json.dumps(asdict(job.resources)),
        "max_retries": job.max_retries,
        "xml_source": None if job.xml_source is None else str(job.xml_source),
        "fingerprint": job.spec.fingerprint(),
        "robot_hash": robot_hash,
        "point": json.dumps(dict(job.point)),
    }


def job_row(row: sqlite3.Row, last_attempt: Attempt | None) -> JobRow:
    """:param last_attempt: of a RUNNING job.

    :raises ValueError, KeyError, TypeError: for values that are none of ours.
    """
    return JobRow(
        job=Job(
            job_id=row["job_id"],
            where=row["where_"],
            spec=WorkerSpec.from_json(row["spec"]),
            resources=decode(Resources, row["resources"]),
            max_retries=row["max_retries"],
            xml_source=None if row["xml_source"] is None else Path(row["xml_source"]),
            point=json.loads(row["point"]),
        ),
        fingerprint=row["fingerprint"],
        robot_hash=row["robot_hash"],
        state=_state(row, last_attempt),
        attempts=row["attempts"],
        env_steps=row["env_steps"],
    )


def _state(row: sqlite3.Row, last_attempt: Attempt | None) -> State:
    match row["state"]:
        case "PENDING":
            return Pending(failures=row["failures"])
        case "RUNNING":
            if last_attempt is None:
                raise ValueError("RUNNING without an attempt")
            return Running(attempt=last_attempt, failures=row["failures"])
        case "SUCCEEDED":
            return Succeeded()
        case "FAILED":
            return Failed(cause=Cause(row["cause"]), message=row["message"])
        case "CANCELLED":
            return Cancelled()
        case other:
            raise ValueError(f"unknown state {other!r}")


def attempt_row(row: sqlite3.Row) -> Attempt:
    return Attempt(
        job_id=row["job_id"],
        number=row["number"],
        cpus=tuple(json.loads(row["cpus"])),
        gpus=tuple(json.loads(row["gpus"])),
        pid=row["pid"],
        pid_start=row["pid_start"],
        started_at=row["started_at"],
        node=row["node"],
    )


def attempt_facts(row: sqlite3.Row) -> AttemptFacts:
    record = json.loads(row["record"]) if row["record"] else {}
    return {
        "job_id": row["job_id"],
        "number": row["number"],
        "node": row["node"],
        "cpus": json.loads(row["cpus"]),
        "queue_s": row["queue_s"],
        "started_at": row["started_at"],
        "ended_at": row["ended_at"],
        "wall_s": row["wall_s"],
        "cpu_s": record.get("cpu_s"),
        "cause": row["cause"],
        "message": row["message"],
    }


def summary_row(row: sqlite3.Row, varied: Sequence[str]) -> SummaryRow:
    """A row of ``summary.json``.

    :param varied: keys that a matrix of the experiment varies; each is a column, unless there is one of its name.
    """
    point = json.loads(row["point"])
    spec = json.loads(row["spec"])
    record = json.loads(row["record"]) if row["record"] else {}
    running = row["state"] == "RUNNING"
    figures: SummaryRow = {
        "job_id": row["job_id"],
        "name": row["name"],
        "state": row["state"],
        "cause": row["cause"],
        "message": row["message"],
        "traceback": (record.get("traceback") or None) if row["state"] == "FAILED" else None,
        "xml": row["xml_source"],
        "task": spec["task"] or spec["env"] or spec["entry_point"],
        "algo": spec["algo"],
        "seed": spec["seed"],
        "learner": row["learner"],
        "learner_reason": row["learner_reason"],
        "attempts": row["attempts"],
        "env_steps": row["env_steps"],
        "total_timesteps": spec["total_timesteps"],
        "ep_rew_mean_first": row["ep_rew_mean_first"],
        "ep_rew_mean": row["ep_rew_mean"],
        "eval_mean": row["eval_mean"],
        "env_steps_per_s": row["env_steps_per_s"],
        "queue_s": row["queue_s"],
        "wall_s": row["wall_s"],
        "cpu_s": record.get("cpu_s"),
        "import_s": record.get("import_s"),
        "first_step_s": record.get("first_step_s"),
        "checkpoint_s": record.get("checkpoint_s"),
        "eval_s": record.get("eval_s"),
        "max_rss_mib": row["max_rss_mib"],
        "started_at": row["started_at"],
        "ended_at": row["ended_at"],
        "ranks": spec.get("ranks", 1),
        "node": row["node"],
        "cpus": json.loads(row["cpus"]) if row["cpus"] else None,
        "pid": row["pid"] if running else None,
        "robot_hash": row["robot_hash"],
        "weights_sha256": record.get("weights_sha256"),
    }
    return cast(SummaryRow, {**figures, **{key: point.get(key) for key in varied if key not in figures}})
