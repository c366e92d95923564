"""Rows of the ledger as typed values, and typed values as rows."""

from __future__ import annotations

import contextlib
import functools
import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, cast

from orchestrator.core import job_parts
from orchestrator.core.decoding import (
    LARGEST,
    FilePath,
    Natural,
    Positive,
    checked_row,
    decode,
    field_values,
    from_values,
    parsed_json,
)
from orchestrator.core.job import (
    Attempt,
    Cancelled,
    Cause,
    Failed,
    Job,
    Paused,
    Pending,
    Resources,
    Running,
    State,
    StateName,
    Succeeded,
)
from orchestrator.core.text import listed
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.ledger import lineage


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredJob:
    """A job to be entered into the ledger."""

    position: int
    """In the job file."""
    job: Job
    robot_hash: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """A job in the ledger."""

    job: Job
    fingerprint: str
    robot_hash: str | None
    state: State
    attempts: int
    """Number of attempts so far, and the number of the next one."""
    env_steps: int = 0
    position: int = 0
    """Its place in the job file."""

    @property
    def refusal(self) -> str | None:
        """Why the job was found invalid before it ever began; None where it was not."""
        state = self.state
        if isinstance(state, Failed) and state.cause is Cause.INVALID and not self.attempts:
            return state.message
        return None

    @property
    def job_id(self) -> str:
        return self.job.job_id


class SummaryRow(TypedDict):
    """A row of ``summary.json``; keys that a matrix of the experiment varies follow these. None:
    not known (yet).

    Times and memory are those of the last attempt, except that ``wall_s`` is the sum over all
    attempts.
    """

    job_id: str
    name: str
    state: StateName
    cause: str | None
    message: str | None
    traceback: str | None
    """The traceback of a FAILED job; not in ``summary.csv``."""
    xml: FilePath | None
    task: str
    algo: str
    seed: int
    learner: str | None
    learner_reason: str | None
    attempts: Natural
    env_steps: int
    total_timesteps: Positive
    ep_rew_mean_first: float | None
    ep_rew_mean: float | None
    eval_mean: float | None
    eval_length: float | None
    """Mean length of the evaluation's episodes in control steps."""
    eval_finding: str | None
    """What is wrong with the policy although its return may be high."""
    env_steps_per_s: float | None
    """Mean of the attempt's training; of a RUNNING job, and of one that was killed, that of its
    last iteration."""
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
    ranks: Positive
    node: str | None
    cpus: list[int] | None
    pid: int | None
    """Set only for a RUNNING job."""
    robot_hash: str | None
    weights_sha256: str | None
    divergences: int | None
    """Episodes that ended because physics diverged, with on_divergence = "end-episode"."""
    waits_for: str | None
    """Of a PENDING job: the jobs that have not succeeded and have to before its launch; not in
    ``summary.csv``."""
    measures: dict[str, float | None] | None
    """Means of the task's measures over the deterministic episodes; in ``summary.csv`` each is a
    column of its own."""
    parent: str | None
    """The job of the same run directory whose policy it started from."""
    lineage_env_steps: int | None
    """``env_steps``, and those of the policies that it started from one after another, each up to
    the checkpoint that was taken over."""
    phase: str | None
    """Of a RUNNING job: starting, training, evaluating or stopping. This key and the following ones
    are not in ``summary.csv``."""
    cpu_share: float | None
    """Of a RUNNING job, as its worker has reported last, and so is ``run_delay_share``; see
    :class:`~orchestrator.core.messages.Progress`."""
    run_delay_share: float | None
    reported_at: float | None
    """When that was."""
    competitors: list[str]
    """Who else used the CPUs of the last attempt, for people."""
    waiting: str | None
    """Why a PENDING job waits although there are slots."""


OF_RUNNING = ("pid", "phase", "cpu_share", "run_delay_share", "reported_at")
"""Keys of a row that only a RUNNING job has."""


def fitness(eval_mean: float | None, ep_rew_mean: float | None) -> float | None:
    """The return by which policies are compared: that of the evaluation, or that of training where
    there was none.
    """
    return ep_rew_mean if eval_mean is None else eval_mean


class CpuSpan(TypedDict):
    """CPUs that an attempt had for some time."""

    since: float
    """Seconds since the epoch; it lasted until the next one began, or the attempt ended."""
    cpus: list[int]


class AttemptRow(TypedDict):
    """An attempt with its end, for reports. None: not known (yet)."""

    job_id: str
    number: Natural
    node: str | None
    cpus: list[int]
    """Where it ran last."""
    cpu_spans: list[CpuSpan]
    """Where it ran, and since when."""
    competitors: list[str]
    """Who else used these CPUs, for people."""
    queue_s: float
    started_at: float
    ended_at: float | None
    wall_s: float | None
    cpu_s: float | None
    cause: str | None
    message: str | None
    start: str | None
    """``exec`` or ``fork``: how its worker was started."""
    why_exec: str | None
    """Why it was exec'ed, as far as its worker knows: although it was to be forked."""


class JobColumns(TypedDict):
    """What :func:`job_row` reads of :data:`JOBS`. SQLite itself stores anything in any column."""

    job_id: str
    position: int
    where_: str
    spec: str
    resources: str
    max_retries: int
    xml_source: FilePath | None
    point: str
    fingerprint: str
    robot_hash: str | None
    state: StateName
    failures: int
    cause: str | None
    message: str | None
    attempts: int
    env_steps: int


JOBS = "SELECT * FROM declared d JOIN jobs j USING (job_id)"
"""What :func:`job_row` reads; ends where conditions begin."""
IN_ORDER = "ORDER BY d.position, d.job_id"
SUMMARY = """
SELECT d.*, j.*, a.cpus AS cpus, a.queue_s AS queue_s, a.started_at AS started_at, a.ended_at AS ended_at,
    a.node AS node, a.pid AS pid, a.record AS record, a.max_rss_mib AS max_rss_mib, a.competitors AS competitors,
    CASE WHEN j.state = 'PENDING' THEN
        (SELECT text FROM waits WHERE least_mib <= json_extract(d.resources, '$.min_free_disk_mib')) END AS waiting,
    (SELECT sum(wall_s) FROM attempts WHERE job_id = j.job_id) AS wall_s,
    CASE WHEN j.state = 'PENDING' AND j.attempts = 0 THEN
        (SELECT group_concat(p.job_id) FROM json_each(d.spec, '$.after') JOIN jobs p ON p.job_id = value
        WHERE p.state != 'SUCCEEDED') END AS waits_for
FROM declared d JOIN jobs j ON j.job_id = d.job_id
LEFT JOIN attempts a ON a.job_id = j.job_id AND a.number = j.attempts - 1
"""
"""What :func:`summary_row` reads; ends where conditions begin."""
RECORDED = (
    "eval_length",
    "eval_finding",
    "cpu_s",
    "import_s",
    "first_step_s",
    "checkpoint_s",
    "eval_s",
    "weights_sha256",
    "divergences",
)
"""Columns of the summary that come from the exit record of the last attempt."""
PARENTS_SHOWN = 3
"""Jobs that a job waits for, in the summary."""


class LatestFigures(NamedTuple):
    """The latest progress of a running job; None where it has told no other figure than before."""

    job_id: str
    env_steps: int
    ep_rew_mean: float | None
    env_steps_per_s: float | None
    learner: str | None


class LiveReport(NamedTuple):
    """What the worker of a running job has reported beside its progress."""

    job_id: str
    phase: str
    cpu_share: float | None
    run_delay_share: float | None
    parts: str
    """Facts of job parts, as JSON."""
    reported_at: float


def job_values(declared: DeclaredJob) -> dict[str, Any]:
    """A job as a row of the table ``declared``."""
    job = declared.job
    return {
        "job_id": job.job_id,
        "position": declared.position,
        "where_": job.where,
        "name": job.spec.name,
        "spec": job.spec.to_json(),
        "resources": json.dumps(field_values(job.resources)),
        "max_retries": job.max_retries,
        "xml_source": None if job.xml_source is None else str(job.xml_source),
        "fingerprint": job.spec.fingerprint(),
        "robot_hash": declared.robot_hash,
        "point": json.dumps(dict(job.point)),
    }


@functools.lru_cache(maxsize=64)
def _resources(text: str) -> Resources:
    """The resources of a job. They are kept: most jobs have the same."""
    return decode(Resources, text)


def job_row(row: sqlite3.Row, last_attempt: Attempt | None) -> JobRow:
    """:param row: of :data:`JOBS`.
    :param last_attempt: that of a RUNNING job.
    """
    columns = checked_row(JobColumns, dict(row))
    xml_source = columns["xml_source"]
    return JobRow(
        job=Job(
            job_id=columns["job_id"],
            where=columns["where_"],
            spec=WorkerSpec.from_json(columns["spec"]),
            resources=_resources(columns["resources"]),
            max_retries=columns["max_retries"],
            xml_source=None if xml_source is None else Path(xml_source),
            point=parsed_object(columns["point"]),
        ),
        fingerprint=columns["fingerprint"],
        robot_hash=columns["robot_hash"],
        state=_state(columns, last_attempt),
        attempts=columns["attempts"],
        env_steps=columns["env_steps"],
        position=columns["position"],
    )


def _state(row: Mapping[str, Any], last_attempt: Attempt | None) -> State:
    match row["state"]:
        case "PENDING":
            return Pending(failures=row["failures"])
        case "RUNNING":
            if last_attempt is None:
                raise ValueError("RUNNING without an attempt")
            return Running(attempt=last_attempt, failures=row["failures"])
        case "PAUSED":
            return Paused(failures=row["failures"], at_rung=row["cause"] == Cause.RUNG)
        case "SUCCEEDED":
            return Succeeded()
        case "FAILED":
            return Failed(cause=Cause(row["cause"]), message=row["message"])
        case "CANCELLED":
            return Cancelled(is_undeclared=row["cause"] == Cause.UNDECLARED)
        case other:
            raise ValueError(f"unknown state {other!r}")


def state_values(state: State) -> tuple[str, int | None, Cause | None, str | None]:
    """Name, number of failures, cause and message; None for failures that stay as they are."""
    failures = state.failures if isinstance(state, Pending | Running | Paused) else None
    match state:
        case Failed():
            return state.name, failures, state.cause, state.message
        case Cancelled(is_undeclared=True):
            return (
                state.name,
                failures,
                Cause.UNDECLARED,
                "the job file or program no longer declares it",
            )
        case Paused(at_rung=True):
            return (
                state.name,
                failures,
                Cause.RUNG,
                "waits at a rung, to be compared with other jobs",
            )
        case _:
            return state.name, failures, None, None


def attempt_values(attempt: Attempt) -> dict[str, Any]:
    """An attempt as a row of the table ``attempts``, without its end."""
    return {
        **field_values(attempt),
        "cpus": json.dumps(attempt.cpus),
        "gpus": json.dumps(attempt.gpus),
    }


def attempt_of(row: sqlite3.Row) -> Attempt:
    """The reverse."""
    values = {field.name: row[field.name] for field in fields(Attempt)}
    values["cpus"] = parsed_json(row["cpus"])
    values["gpus"] = parsed_json(row["gpus"])
    return from_values(Attempt, values)


def attempt_row(row: sqlite3.Row) -> AttemptRow:
    record = _record(row)
    moves = parsed_json(row["moves"])
    starts = [row["started_at"], *(at for at, _ in moves)]
    places = [*(before for _, before in moves), parsed_json(row["cpus"])]
    values = {
        "cpus": places[-1],
        "cpu_spans": [
            CpuSpan(since=since, cpus=cpus) for since, cpus in zip(starts, places, strict=True)
        ],
        "competitors": parsed_json(row["competitors"]),
        "cpu_s": record.get("cpu_s"),
        "start": record.get("start"),
        "why_exec": record.get("why_exec") or None,
    }
    return cast(AttemptRow, checked_row(AttemptRow, {**row, **values}))


def summary_row(row: sqlite3.Row, varied: Iterable[str], run_dir: Path) -> SummaryRow:
    """:param varied: keys that a matrix of the experiment varies; each is a column, unless there is
    one of its name.
    :param run_dir: that of the ledger.
    """
    point = parsed_object(row["point"])
    spec = parsed_object(row["spec"])
    record = _record(row)
    traceback = record.get("traceback") if row["state"] == "FAILED" else None
    parents = row["waits_for"]
    earlier = lineage.earlier_env_steps(spec["init"], spec["init_env_steps"])
    values = {key: record.get(key) for key in RECORDED} | {
        "traceback": traceback,
        "xml": row["xml_source"],
        "task": spec["task"] or spec["env"] or spec["entry_point"],
        "algo": spec["algo"],
        "seed": spec["seed"],
        "total_timesteps": spec["total_timesteps"],
        "ranks": spec["ranks"],
        "cpus": parsed_json(row["cpus"]) if row["cpus"] else None,
        "competitors": parsed_json(row["competitors"] or "[]"),
        "measures": _measures(record),
        "waits_for": listed(parents.split(","), PARENTS_SHOWN) if parents else None,
        "parent": lineage.parent(run_dir, spec),
        "lineage_env_steps": None if earlier is None else row["env_steps"] + earlier,
    }
    facts = job_parts.read_facts(record.get("parts", {}))
    if row["state"] != "RUNNING":
        values |= dict.fromkeys(OF_RUNNING)
    elif row["parts"]:
        facts = job_parts.read_facts(parsed_object(row["parts"]))
    columns = checked_row(SummaryRow, {**row, **values})
    of_features = job_parts.columns(facts)
    columns |= {name: value for name, value in of_features.items() if name not in columns}
    return cast(SummaryRow, columns | {key: point.get(key) for key in varied if key not in columns})


def _record(row: sqlite3.Row) -> dict[str, Any]:
    """The exit record of an attempt; empty where it has none."""
    return parsed_object(row["record"]) if row["record"] else {}


def _measures(record: Mapping[str, Any], field: str = "measures") -> dict[str, float | None] | None:
    """The measures of an exit record, None where it has none; the mean of one is None where it is
    no number, or counts as infinite.
    """
    measures = record.get(field)
    if not isinstance(measures, dict):
        return None
    numbers = {
        name: float(mean)
        for name, mean in measures.items()
        if type(mean) in (int, float) and abs(mean) <= LARGEST
    }
    return {str(name): numbers.get(name) for name in measures}


def training_measures(record: str) -> dict[str, float | None]:
    """Those of the last episodes of training in an exit record, as the ledger holds it; none of a
    damaged one.
    """
    with contextlib.suppress(ValueError):
        return _measures(parsed_object(record), "training_measures") or {}
    return {}


def parsed_object(text: str) -> dict[str, Any]:
    """:raises ValueError: for anything but a JSON object."""
    if not isinstance(content := parsed_json(text), dict):
        raise ValueError("expected an object")  # noqa: TRY004 - the ledger is wrong, no call
    return content
