"""A run directory and a job file brought together: what is new, what goes on, what changed, what was left behind."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from orchestrator.core.atomic_files import write_whole
from orchestrator.core.errors import ChangedError, RunDirError
from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.job import (
    Attempt,
    AttemptOutcome,
    Cancelled,
    Cause,
    Failed,
    Job,
    Pending,
    Running,
    State,
    Succeeded,
    move,
)
from orchestrator.core.messages import ExitRecord, read_exit_record
from orchestrator.core.paths import AttemptPaths, JobPaths, RunPaths
from orchestrator.core.procfs import is_zombie
from orchestrator.core.text import listed
from orchestrator.core.worker_spec import NOT_IN_FINGERPRINT, WorkerSpec
from orchestrator.experiment import run_directory
from orchestrator.experiment.preflight import JobVerdict
from orchestrator.ledger import JobRow, Ledger
from orchestrator.machine.process_identity import same_process
from orchestrator.supervisor import retry_policy
from orchestrator.supervisor.events import Reporter

OnChange: TypeAlias = Literal["refuse", "restart", "keep"]

SHOWN = 10
"""How many jobs or differences a message lists."""
JOB_FILE_KEYS = {
    "threads": "resources.threads",
    "device": "resources.gpus (device)",
    "ranks": "resources.ranks",
    "backend": "distributed.backend",
    "mode": "distributed.mode",
}
"""Fields of a spec whose key in the job file is another."""


RecordedJob: TypeAlias = tuple[int, Job, str | None]
"""Place in the job file, the job as it was trained, hash of its robot."""


def recorded_jobs(paths: RunPaths, jobs: Sequence[Job]) -> list[RecordedJob]:
    """Those of ``jobs`` that have begun, as their directories tell.

    :raises RunDirError: naming what cannot be read; nothing was changed.
    """
    found: list[RecordedJob] = []
    for position, job in enumerate(jobs):
        directory = paths.job(job.job_id)
        if directory.spec.exists() and directory.robot_hash.exists():
            try:
                spec = WorkerSpec.from_json(directory.spec.read_text())
                robot_hash = directory.robot_hash.read_text() or None
            except (OSError, ValueError, TypeError) as error:
                raise RunDirError(
                    f"{directory.spec}: cannot be read ({error}); move {directory.root} away to train that job anew,"
                    " and give the same command again"
                ) from error
            resources = dataclasses.replace(job.resources, ranks=spec.ranks)
            found.append((position, dataclasses.replace(job, spec=spec, resources=resources), robot_hash))
    return found


def rebuild(ledger: Ledger, paths: RunPaths, jobs: Sequence[RecordedJob]) -> None:
    """Take finished and begun jobs back into an empty ledger."""
    ledger.put_jobs(jobs)
    for _, job, _ in jobs:
        directory = paths.job(job.job_id)
        numbers = sorted(int(entry.name) for entry in directory.attempts.glob("*") if entry.name.isdecimal())
        last: ExitRecord | None = None
        for number in numbers:
            attempt = directory.attempt(number)
            started_at = attempt.root.stat().st_mtime
            ledger.start_attempt(
                Attempt(
                    job_id=job.job_id, number=number, cpus=(), gpus=(), pid=None, pid_start=None, started_at=started_at
                ),
                queue_s=0.0,
            )
            _, last = last_word(attempt, job.spec.ranks)
            well = last is not None and last.code == ExitCode.SUCCEEDED
            ledger.end_attempt(
                job.job_id,
                number,
                ended_at=None,
                wall_s=None if last is None else last.wall_s,
                returncode=None if last is None else last.code,
                ending=AttemptOutcome(
                    cause=None if well else Cause.SUPERVISOR_DIED, message="taken from the job directory"
                ),
                max_rss_mib=None,
                record=last,
            )
            if well and directory.model.exists():
                ledger.set_state(job.job_id, Succeeded())
    ledger.commit()


def take_late_requests(ledger: Ledger) -> None:
    """Requests that the supervisor before did not live to read. A ``stop`` was meant for that one, and has come true.

    To be called before anybody can have asked the new supervisor for anything.
    """
    requests = ledger.take_requests()
    states = {row.job.job_id: row.state for row in ledger.jobs()} if requests else {}
    for request in requests:
        job_id = request.job_id or ""
        state = states.get(job_id)
        new: State
        match request.verb, state:
            case "retry", Failed() | Cancelled():
                new = Pending()
            case "cancel", Pending() | Running():
                new = Cancelled()
            case _:
                continue
        states[job_id] = move(job_id, state, new)
        ledger.set_state(job_id, new)
    ledger.commit()


def last_word(attempt: AttemptPaths, ranks: int) -> tuple[int | None, ExitRecord | None]:
    """What an attempt that nobody saw end had to say, and of several ranks the one that said it.

    That is rank 0, unless another knows of what would happen again.
    """
    records = [read_exit_record(attempt.exit_of(rank)) for rank in range(ranks)]
    failed = (rank for rank, one in enumerate(records) if one and one.code in (ExitCode.ERROR, ExitCode.DIVERGED))
    rank = next(failed, 0)
    return (rank if ranks > 1 else None), records[rank]


def reconcile(
    jobs: Sequence[Job],
    verdicts: Mapping[str, JobVerdict],
    position: Mapping[str, int],
    on_change: OnChange,
    paths: RunPaths,
    ledger: Ledger,
    reporter: Reporter,
) -> list[JobRow]:
    """Bring ledger and job directories in line with what is declared now.

    :param jobs: in order of launch; the rows are returned in the same order.
    :param position: place of each ``job_id`` in the job file.
    :raises ChangedError: when jobs that have run would now be others.
    """
    known = {row.job.job_id: row for row in ledger.jobs()}
    changed = {
        job.job_id: difference
        for job in jobs
        if (row := known.get(job.job_id)) is not None
        and row.attempts > 0
        and verdicts[job.job_id].problem is None
        and (difference := _difference(row, job, verdicts[job.job_id]))
    }
    if changed and on_change == "refuse":
        raise ChangedError(_changed_message(paths, changed))
    if changed and on_change == "keep":
        text = f"declared differently now, but kept as before: {listed(list(changed), SHOWN)}"
        reporter.event("warning", text, jobs=list(changed))
    for job in jobs:
        job_id = job.job_id
        row = known.get(job_id)
        verdict = verdicts[job_id]
        if row is not None and row.attempts > 0 and not (job_id in changed and on_change == "restart"):
            if job_id not in changed and verdict.problem is None:
                ledger.update_limits(position[job_id], job)
            continue
        if row is not None and isinstance(row.state, Cancelled) and row.fingerprint == job.spec.fingerprint():
            ledger.update_limits(position[job_id], job)
            continue
        if row is not None and row.attempts > 0:
            aside = run_directory.set_aside(paths.job(job_id).root, paths.replaced)
            reporter.event("restarted", f"{job_id} changed and starts over; what it had is in {aside}", job_id=job_id)
            ledger.delete_job(job_id)
        ledger.put_jobs([(position[job_id], job, verdict.robot_hash)])
        if verdict.problem is None:
            _place_robot(paths, job_id, verdict)
        else:
            failed = move(job_id, Pending(), Failed(cause=Cause.INVALID, message=verdict.problem.message))
            ledger.set_state(job_id, failed)
    _drop_undeclared(known, position, ledger, reporter)
    rows = {row.job.job_id: row for row in ledger.jobs()}
    settled = [_settle(rows[job.job_id], paths, ledger) for job in jobs]
    ledger.commit()
    _tell_earlier(settled, reporter)
    return settled


def _difference(row: JobRow, job: Job, verdict: JobVerdict) -> list[str]:
    lines = []
    if row.fingerprint != job.spec.fingerprint():
        before, after = _keys(row.job), _keys(job)
        lines += [
            f"{key}: {_shown(before, key)} → {_shown(after, key)}"
            for key in {**before, **after}
            if _shown(before, key) != _shown(after, key)
        ]
    if row.robot_hash != verdict.robot_hash:
        lines.append(f"robot: the contents of {job.xml_source} changed")
    return lines


def _keys(job: Job) -> dict[str, object]:
    """What decides the result, under the job file's own dotted keys."""
    keys: dict[str, object] = {}
    for name, value in dataclasses.asdict(job.spec).items():
        key = job.spec.algo if name == "hyperparameters" else JOB_FILE_KEYS.get(name, name)
        if isinstance(value, Mapping):
            keys |= {f"{key}.{inner}": part for inner, part in value.items()}
        elif name not in NOT_IN_FINGERPRINT:
            keys[key] = value
    return keys


def _shown(keys: Mapping[str, object], key: str) -> str:
    return json.dumps(keys[key], ensure_ascii=False) if keys.get(key) is not None else "not set"


def _changed_message(paths: RunPaths, changed: Mapping[str, Sequence[str]]) -> str:
    jobs_with: dict[str, list[str]] = {}
    for job_id, lines in changed.items():
        jobs_with.setdefault("\n".join(f"    {line}" for line in lines), []).append(job_id)
    shown = [f"  {listed(jobs, SHOWN)}\n{lines}" for lines, jobs in list(jobs_with.items())[:SHOWN]]
    more = f"\n  … and {len(jobs_with) - SHOWN} more differences" if len(jobs_with) > SHOWN else ""
    count = "1 job that has run here is" if len(changed) == 1 else f"{len(changed)} jobs that have run here are"
    return (
        f"{paths.root}: {count} declared differently now:\n"
        + "\n".join(shown)
        + more
        + "\n--on-change=restart trains anew (what was there is set aside), --on-change=keep goes on with what was"
        " declared before, another --run-dir leaves all of it alone"
    )


def _place_robot(paths: RunPaths, job_id: str, verdict: JobVerdict) -> None:
    job = paths.job(job_id)
    job.root.mkdir(parents=True, exist_ok=True)
    if verdict.bundle is not None:
        shutil.rmtree(job.robot, ignore_errors=True)
        shutil.copytree(verdict.bundle, job.robot)
    write_whole(job.robot_hash, verdict.robot_hash or "", durable=False)


def _drop_undeclared(
    known: Mapping[str, JobRow], position: Mapping[str, int], ledger: Ledger, reporter: Reporter
) -> None:
    """Jobs that the file no longer declares: forgotten if they never ran, otherwise kept as they are."""
    for job_id, row in known.items():
        if job_id in position:
            continue
        if row.attempts == 0:
            ledger.delete_job(job_id)
        elif isinstance(row.state, Pending | Running):
            reporter.event("warning", f"{job_id} is no longer in the job file; it is not continued", job_id=job_id)
            ledger.set_state(job_id, move(job_id, row.state, Cancelled()))


def _settle(row: JobRow, paths: RunPaths, ledger: Ledger) -> JobRow:
    """A job left RUNNING by a supervisor that is gone: end what may still live, then an explicit verdict."""
    if not isinstance(row.state, Running):
        return row
    attempt = row.state.attempt
    if attempt.node is None and attempt.pid is not None and attempt.pid_start is not None:
        _end_leftover(attempt.pid, attempt.pid_start)
    rank, record = last_word(paths.job(row.job.job_id).attempt(attempt.number), row.job.resources.ranks)
    if record is not None and record.code in (ExitCode.SUCCEEDED, ExitCode.ERROR, ExitCode.DIVERGED):
        ending = retry_policy.judge(record.code, record, asked=None, oom_killed=False, rank=rank)
    else:
        ending = AttemptOutcome(cause=Cause.SUPERVISOR_DIED, message="its supervisor ended before it did")
    ended_at = _last_sign_of_life(paths.job(row.job.job_id), attempt.number)
    ledger.end_attempt(
        row.job.job_id,
        attempt.number,
        ended_at=ended_at,
        wall_s=_wall_s(record, attempt, ended_at),
        returncode=None if record is None else record.code,
        ending=ending,
        max_rss_mib=None,
        record=record,
    )
    failures = row.state.failures
    new = retry_policy.next_state(ending, failures=failures, max_retries=row.job.max_retries, now=time.monotonic())
    state = move(row.job.job_id, row.state, new)
    ledger.set_state(row.job.job_id, state)
    return dataclasses.replace(row, state=state)


def _wall_s(record: ExitRecord | None, attempt: Attempt, ended_at: float | None) -> float | None:
    if record is not None and record.wall_s is not None:
        return record.wall_s
    return None if ended_at is None else max(0.0, ended_at - attempt.started_at)


def _last_sign_of_life(job: JobPaths, number: int) -> float | None:
    """When an attempt that nobody saw end wrote last: to about an iteration, when it ended. Seconds since the epoch.

    None where nothing that it wrote is left.
    """
    attempt = job.attempt(number)
    signs = (attempt.worker_log, attempt.exit, job.timings_csv)
    return max((path.stat().st_mtime for path in signs if path.exists()), default=None)


def _end_leftover(pid: int, pid_start: float) -> None:
    """Pid and start time together are an identity: nobody else is ever hit.

    Of several ranks it is rank 0, which alone writes the job's files: the others end for want of it.
    """
    deadline = time.monotonic() + 5.0
    while same_process(pid, pid_start) and time.monotonic() < deadline:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        if is_zombie(pid):
            return  # in a container whose first process waits for nobody it stays one
        time.sleep(0.01)


def _tell_earlier(rows: Sequence[JobRow], reporter: Reporter) -> None:
    done = sum(row.state.name == "SUCCEEDED" for row in rows)
    begun = sum(isinstance(row.state, Pending) and row.attempts > 0 for row in rows)
    dead = [row for row in rows if row.state.name in ("FAILED", "CANCELLED") and row.attempts > 0]
    if done or begun:
        were, go = ("job was" if done == 1 else "jobs were"), ("goes" if begun == 1 else "go")
        reporter.event("resumed", f"{done} {were} finished before, {begun} {go} on from the last checkpoint")
    if dead:
        jobs = listed([row.job.job_id for row in dead], SHOWN)
        text = f"failed or cancelled before, and not run again until `retry` puts them back: {jobs}"
        reporter.event("warning", text, jobs=[row.job.job_id for row in dead])
