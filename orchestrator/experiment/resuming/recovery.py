"""What an earlier supervisor left behind: attempts in state RUNNING, unread requests, or a ledger
that is lost.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from orchestrator.core.errors import LedgerError, LedgerUnavailableError, RunDirError
from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.exit_record import ExitRecord, read_exit_record
from orchestrator.core.files.regular_files import read_regular
from orchestrator.core.front_end import repeat_call
from orchestrator.core.job import (
    Attempt,
    AttemptOutcome,
    Cancelled,
    Cause,
    Failed,
    Job,
    Paused,
    Pending,
    Running,
    State,
    Succeeded,
    move,
)
from orchestrator.core.paths import AttemptPaths, JobPaths, RunPaths
from orchestrator.core.processes.procfs import is_zombie
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.experiment.directory import run_directory
from orchestrator.ledger import JobRow, Ledger, Request, Verb, summary
from orchestrator.ledger.rows import DeclaredJob
from orchestrator.machine.process_identity import same_process
from orchestrator.supervisor import retry_policy
from orchestrator.supervisor.events import Reporter
from orchestrator.supervisor.requested_state import promoted_job, requested_state

StatesOfSummary: TypeAlias = Mapping[str, Failed | Paused | Cancelled | None]
"""Of jobs by their ids. None: they wait or run."""


def recorded_jobs(
    paths: RunPaths, jobs: Sequence[Job], known: StatesOfSummary
) -> list[DeclaredJob]:
    """Those of ``jobs`` that have started, as their directories have them, and those that are
    paused or cancelled.

    :param known: as :func:`states_of_summary` gives them.
    :raises RunDirError: a directory is not readable.
    """
    recorded: list[DeclaredJob] = []
    held = {job_id for job_id, state in known.items() if isinstance(state, Paused | Cancelled)}
    for position, job in enumerate(jobs):
        directory = paths.job(job.job_id)
        if _has_started(directory):
            try:
                spec = WorkerSpec.from_json(read_regular(directory.spec))
                robot_hash = read_regular(directory.robot_hash).decode() or None
            except (OSError, ValueError) as error:
                advice = f"move {directory.root} away to train that job again, and {repeat_call()}"
                raise RunDirError(
                    f"{directory.spec}: cannot be read ({error}); {advice}"
                ) from error
            resources = dataclasses.replace(job.resources, ranks=spec.ranks)
            trained = dataclasses.replace(job, spec=spec, resources=resources)
            recorded.append(DeclaredJob(position=position, job=trained, robot_hash=robot_hash))
        elif job.job_id in held:
            recorded.append(DeclaredJob(position=position, job=job))
    return recorded


def _has_started(directory: JobPaths) -> bool:
    """Whether a job was ever launched: the directory of an attempt comes before what is needed for
    that.
    """
    return directory.spec.exists() and directory.robot_hash.exists()


def states_of_summary(paths: RunPaths) -> StatesOfSummary:
    """The jobs that have not succeeded and are not undeclared, according to ``summary.json``: their
    directories do not tell why they do not run.

    :raises RunDirError: its file system fails to read it.
    """
    try:
        rows = summary.read(paths)[0]
    except LedgerUnavailableError as error:
        advice = f"{repeat_call()}, or move it away to have its jobs queued"
        raise RunDirError(f"{error}; {advice}") from error
    except LedgerError:
        return {}
    states: dict[str, Failed | Paused | Cancelled | None] = {}
    for row in rows:
        job_id = row["job_id"]
        cause = row["cause"]
        match row["state"]:
            case "PENDING" | "RUNNING":
                states[job_id] = None
            case "PAUSED":
                states[job_id] = Paused(at_rung=cause == Cause.RUNG)
            case "CANCELLED" if cause != Cause.UNDECLARED:
                states[job_id] = Cancelled()
            case "FAILED" if cause is not None and cause in [*Cause]:
                states[job_id] = Failed(cause=Cause(cause), message=row["message"] or "")
    return states


def rebuild(
    ledger: Ledger, paths: RunPaths, jobs: Sequence[DeclaredJob], known: StatesOfSummary
) -> list[str]:
    """Enter ``jobs`` and their attempts into an empty ledger.

    :param known: as :func:`states_of_summary` gives them.

    Returns those that have begun and are queued anew, although ``summary.json`` does not say that
    they waited or ran: it is missing, for example, or their results are.
    """
    ledger.put_jobs(jobs)
    queued: list[str] = []
    for job in (recorded.job for recorded in jobs):
        directory = paths.job(job.job_id)
        has_started = _has_started(directory)
        is_done = has_started and _enter_attempts(ledger, job, directory)
        state = Succeeded() if is_done else known.get(job.job_id)
        if state is not None:
            ledger.set_state(job.job_id, state)
        elif has_started and job.job_id not in known:
            queued.append(job.job_id)
    ledger.commit()
    return queued


def _enter_attempts(ledger: Ledger, job: Job, directory: JobPaths) -> bool:
    """Enter the attempts that have a directory. Returns whether the job has succeeded."""
    is_done = False
    names = [entry.name for entry in directory.attempts.glob("*")]
    for number in sorted(int(name) for name in names if name.isdecimal()):
        paths_of_attempt = directory.attempt(number)
        begun = paths_of_attempt.root.stat().st_mtime
        attempt = Attempt(job_id=job.job_id, number=number, cpus=(), gpus=(), started_at=begun)
        ledger.start_attempt(attempt, queue_s=0.0)
        _, record = decisive_record(paths_of_attempt, job.spec.ranks)
        succeeded = record is not None and record.code == ExitCode.SUCCEEDED
        cause = None if succeeded else Cause.SUPERVISOR_DIED
        outcome = AttemptOutcome(cause=cause, message="taken from the job directory")
        _end_attempt(ledger, attempt, outcome, record)
        # The last attempt decides: those before an extension were for fewer env_steps.
        is_done = succeeded and directory.model.exists()
    return is_done


JOB_VERBS = ("cancel", "retry", "pause", "resume")
"""Of requests about one job, whoever has made them."""


def apply_late_requests(ledger: Ledger, holder: str) -> bool:
    """Apply the requests that the previous supervisor did not read, except ``stop``, which was
    meant for it alone. Those about jobs that are not entered yet, as a ledger was made anew, are
    left to the supervisor.

    Returns whether ``holder``, the supervisor that starts now, is already requested to stop.
    """
    requests = ledger.take_requests()
    noted = ledger.noted_verbs()
    rows = {row.job_id: row for row in ledger.jobs(decoded=False)} if requests or noted else {}
    # Their attempts ended otherwise, as the disk was full.
    late = [
        Request(verb=verb, job_id=job_id)
        for job_id, verb in noted.items()
        if job_id in rows and isinstance(rows[job_id].state, Pending)
    ]
    for request in [*late, *requests]:
        job_id = request.job_id if request.promotion is None else request.promotion[0]
        if job_id in rows:
            rows[job_id] = _apply_late(request, rows[job_id], ledger)
    for request in requests:
        ledger.mark_handled(request)
    unknown = [
        request for request in requests if request.verb in JOB_VERBS and request.job_id not in rows
    ]
    ledger.add_requests(unknown)
    return any(request.verb == "stop" and request.job_id == holder for request in requests)


def _apply_late(request: Request, row: JobRow, ledger: Ledger) -> JobRow:
    """Enter what a request makes of a job. Returns its row after that."""
    if request.promotion is not None:
        return _promote(row, request.promotion[1], ledger)
    if isinstance(row.state, Running):
        if request.verb in ("pause", "cancel"):
            ledger.note(request.verb, row.job_id)  # for :func:`settle`
        elif request.verb == "resume" and ledger.noted_verbs().get(row.job_id) == "pause":
            ledger.withdraw_notes(row.job_id)
        return row
    new = move_as_requested(row, request.verb, ledger)
    return row if new is None else dataclasses.replace(row, state=new)


def move_as_requested(row: JobRow, verb: Verb, ledger: Ledger) -> State | None:
    """Enter what a request makes of a job that no worker trains. Returns its new state; None if the
    request has no effect.
    """
    new = requested_state(verb, row.state)
    if new is None:
        return None
    ledger.set_state(row.job_id, move(row.job_id, row.state, new))
    if verb == "retry":
        ledger.withdraw_notes(row.job_id)  # it was invalid, and held back before
    return new


def _promote(row: JobRow, pause_at: int | None, ledger: Ledger) -> JobRow:
    if isinstance(row.state, Succeeded):  # its spec is not read for that
        return row
    after = promoted_job(row.job, row.state, pause_at)
    if after is None:
        return row
    job, new = after
    ledger.update_spec(job)
    if new is not row.state:
        ledger.set_state(row.job_id, move(row.job_id, row.state, new))
    return dataclasses.replace(row, declared=job, state=new)


def decisive_record(
    attempt: AttemptPaths, ranks: int, warn: Callable[[str], object] = lambda _: None
) -> tuple[int | None, ExitRecord | None]:
    """Rank (None with one rank only) and exit record that give the cause of an end that no
    supervisor saw.

    That is rank 0, unless another rank has failed in a way that would happen again.

    :param warn: called with a text for every record that cannot be read.
    """

    def read(path: Path) -> ExitRecord | None:
        what = "the attempt counts as interrupted"
        return read_exit_record(
            path, lambda error: warn(f"{path}: cannot be read ({error}); {what}")
        )

    records = {rank: read(path) for rank, path in attempt.exits().items() if rank < ranks}
    errors = (ExitCode.ERROR, ExitCode.DIVERGED)
    rank = next((rank for rank, record in records.items() if record and record.code in errors), 0)
    return (rank if ranks > 1 else None), records.get(rank)


def settle(row: JobRow, paths: RunPaths, ledger: Ledger, reporter: Reporter) -> JobRow:
    """Kill the processes of a job whose supervisor died while it was RUNNING, and record how its
    attempt ended.
    """
    if not isinstance(row.state, Running):
        return row
    attempt = row.state.attempt
    directory = paths.job(row.job_id)
    _kill_leftover_of(attempt)
    of_attempt = directory.attempt(attempt.number)
    warn = functools.partial(reporter.event, "warning", job_id=row.job_id)
    rank, record = decisive_record(of_attempt, row.job.resources.ranks, warn)
    outcome = _outcome_unseen(row, record, rank, directory)
    files = (of_attempt.worker_log, of_attempt.exit, directory.timings_csv)
    last_write = max((path.stat().st_mtime for path in files if path.exists()), default=None)
    _end_attempt(ledger, attempt, outcome, record, last_write)
    new = retry_policy.next_state(
        outcome,
        failures=row.state.failures,
        max_retries=row.job.max_retries,
        now=time.monotonic(),
    )
    if isinstance(new, Pending | Paused):
        noted_verb = ledger.noted_verbs().get(row.job_id)
        if noted_verb:
            new = Paused(failures=new.failures) if noted_verb == "pause" else Cancelled()
    ledger.set_state(row.job_id, move(row.job_id, row.state, new))
    return dataclasses.replace(row, state=new)


def _outcome_unseen(
    row: JobRow, record: ExitRecord | None, rank: int | None, directory: JobPaths
) -> AttemptOutcome:
    """How the last attempt of a job ended, which no supervisor saw.

    :param record: as of :func:`decisive_record`, and so is ``rank``.
    """
    rung = row.job.spec.pause_at
    ends = [ExitCode.SUCCEEDED, ExitCode.ERROR, ExitCode.DIVERGED]
    is_at_rung = rung is not None and record is not None and record.env_steps >= rung
    if is_at_rung:  # otherwise it has been promoted meanwhile, and trains on
        ends.append(ExitCode.PAUSED)
    if record is None or record.code not in ends:
        text = "its supervisor ended before the attempt did"
        return AttemptOutcome(cause=Cause.SUPERVISOR_DIED, message=text)
    if record.code == ExitCode.SUCCEEDED and not directory.has_results(normalize=row.normalize):
        text = "it had succeeded; its results were removed before the next supervisor began"
        return AttemptOutcome(cause=Cause.SUPERVISOR_DIED, message=text)
    return retry_policy.judge(
        record.code, record, end_reason=None, oom_killed=False, rank=rank, rung=rung
    )


def _end_attempt(
    ledger: Ledger,
    attempt: Attempt,
    outcome: AttemptOutcome,
    record: ExitRecord | None,
    ended_at: float | None = None,
) -> None:
    wall_s = None if record is None else record.wall_s
    if wall_s is None and ended_at is not None:
        wall_s = max(0.0, ended_at - attempt.started_at)
    ledger.end_attempt(
        attempt.job_id,
        attempt.number,
        ended_at=ended_at,
        wall_s=wall_s,
        returncode=None if record is None else record.code,
        outcome=outcome,
        record=record,
    )


def kill_leftovers(paths: RunPaths) -> None:
    """Kill what a supervisor that died has left running, before its ledger is moved away: whoever
    goes on without it does not know of these processes. Where it cannot be read for good, nothing is
    done.

    :raises LedgerUnavailableError: it cannot be read now.
    """
    try:
        with run_directory.opened_ledger(paths, read_only=True) as old:
            for row in old.jobs(decoded=False):
                if isinstance(row.state, Running):
                    _kill_leftover_of(row.state.attempt)
    except LedgerUnavailableError:
        raise
    except LedgerError:  # it is damaged
        return


def _kill_leftover_of(attempt: Attempt) -> None:
    if attempt.node is None and attempt.pid is not None and attempt.pid_start is not None:
        kill_leftover(attempt.pid, attempt.pid_start)


def kill_leftover(pid: int, pid_start: float) -> None:
    """Kill the process group of rank 0, which alone writes the job's files; other ranks end when it
    is gone.
    """
    deadline = time.monotonic() + 5.0
    while same_process(pid, pid_start) and time.monotonic() < deadline:
        try:
            os.killpg(pid, signal.SIGKILL)
        except PermissionError:  # it is another user's, and none of ours
            return
        except ProcessLookupError:
            pass
        if is_zombie(pid):
            return  # not every container has a first process that reaps zombies
        time.sleep(0.01)
