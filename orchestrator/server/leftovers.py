"""What an earlier supervisor has left: processes, jobs in state RUNNING, and job directories that no
ledger knows.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from orchestrator.core.errors import LedgerError, LedgerUnavailableError
from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.exit_record import ExitRecord, read_exit_record
from orchestrator.core.files.regular_files import read_regular
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
from orchestrator.examination.preflight import JobVerdict
from orchestrator.experiment import run_directory
from orchestrator.ledger import JobRow, summary
from orchestrator.machine.process_identity import same_process, writes_elsewhere
from orchestrator.server import job_directory, retry_policy
from orchestrator.server.decide import FoundDirectory, KnownJob, Training
from orchestrator.server.jobs import Report
from orchestrator.server.ledger import ServerLedger, Wanted

StatesOfSummary: TypeAlias = Mapping[str, Paused | Cancelled | Failed]
"""By ``job_id``."""
KILL_S = 5.0
"""How long a process may take to end when it is killed."""


# -- processes


def kill_leftovers(paths: RunPaths) -> None:
    """Kill what a supervisor that died has left running, before its ledger is moved away: whoever
    goes on without it does not know of these processes. Nothing is done if the ledger is damaged.

    :raises LedgerUnavailableError: it cannot be read now.
    """
    try:
        with run_directory.opened_ledger(paths, read_only=True) as old:
            for row in old.jobs():
                if isinstance(row.state, Running):
                    _kill_attempt(row.state.attempt, paths.job(row.job_id))
    except LedgerUnavailableError:
        raise
    except LedgerError:
        return


def _kill_attempt(attempt: Attempt, directory: JobPaths) -> None:
    if attempt.node is not None or attempt.pid is None or attempt.pid_start is None:
        return
    # Where the system does not identify its boots, the pid may be a stranger's after a reboot.
    if not attempt.pid_start.is_integer():
        log = directory.attempt(attempt.number).worker_log
        kill_leftover(attempt.pid, attempt.pid_start, log)


def kill_leftover(pid: int, pid_start: float, log: Path) -> None:
    """Kill the process group of rank 0, which alone writes the job's files; other ranks end when it
    is gone. In a copy of a run directory it is left alone: it writes to the log of the original.
    """
    if writes_elsewhere(pid, log):
        return
    deadline = time.monotonic() + KILL_S
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


# -- jobs in state RUNNING


def settle_left_attempts(paths: RunPaths, ledger: ServerLedger, report: Report) -> None:
    """Kill what a dead supervisor has left running, and record how these attempts ended."""
    rows = ledger.jobs()
    put_back_directories(paths, rows)
    for row in rows:
        if isinstance(row.state, Running):
            _settle(row, row.state, paths, ledger, report)


def _settle(
    row: JobRow, state: Running, paths: RunPaths, ledger: ServerLedger, report: Report
) -> None:
    attempt = state.attempt
    directory = paths.job(row.job_id)
    _kill_attempt(attempt, directory)
    of_attempt = directory.attempt(attempt.number)
    warn = functools.partial(report, "warning", job_id=row.job_id)
    rank, record = decisive_record(of_attempt, row.job.resources.ranks, warn)
    outcome = _outcome_unseen(row, record, rank, directory)
    files = (of_attempt.worker_log, of_attempt.exit, directory.timings_csv)
    last_write = max((path.stat().st_mtime for path in files if path.exists()), default=None)
    wall_s = None if record is None else record.wall_s
    if wall_s is None and last_write is not None:
        wall_s = max(0.0, last_write - attempt.started_at)
    _end_attempt(ledger, attempt, outcome, record, wall_s=wall_s, ended_at=last_write)
    new = retry_policy.next_state(
        outcome, failures=state.failures, max_retries=row.job.max_retries, now=time.monotonic()
    )
    ledger.set_state(row.job_id, move(row.job_id, state, new))


def decisive_record(
    attempt: AttemptPaths, ranks: int, warn: Callable[[str], object] = lambda _: None
) -> tuple[int | None, ExitRecord | None]:
    """Return rank (None with one rank only) and exit record that give the cause of an end that no
    supervisor saw: those of rank 0, unless another rank has failed in a way that would happen
    again.

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


def _outcome_unseen(
    row: JobRow, record: ExitRecord | None, rank: int | None, directory: JobPaths
) -> AttemptOutcome:
    """Return how the last attempt of a job ended, which no supervisor saw.

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
    if record.code == ExitCode.SUCCEEDED and not directory.has_results(
        normalize=row.job.spec.normalize
    ):
        text = "it had succeeded; its results were removed before the next supervisor began"
        return AttemptOutcome(cause=Cause.SUPERVISOR_DIED, message=text)
    return retry_policy.judge(
        record.code, record, end_reason=None, oom_killed=False, rank=rank, rung=rung
    )


def _end_attempt(
    ledger: ServerLedger,
    attempt: Attempt,
    outcome: AttemptOutcome,
    record: ExitRecord | None,
    *,
    wall_s: float | None,
    ended_at: float | None = None,
) -> None:
    ledger.end_attempt(
        attempt.job_id,
        attempt.number,
        ended_at=ended_at,
        wall_s=wall_s,
        returncode=None if record is None else record.code,
        outcome=outcome,
        record=record,
    )


# -- job directories


def put_back_directories(paths: RunPaths, rows: Sequence[JobRow]) -> None:
    """Put directories back that a supervisor had set aside for jobs to start over, if it died before
    it recorded that.
    """
    for row in rows:
        directory = paths.job(row.job_id)
        if not row.attempts or directory.attempts.exists():
            continue
        training = Training(fingerprint=row.fingerprint, robot_hash=row.robot_hash)
        for aside in paths.replaced.glob(f"{row.job_id}.*"):
            if find(JobPaths(aside), None).training == training:
                shutil.rmtree(directory.root, ignore_errors=True)
                aside.rename(directory.root)
                break


def states_of_summary(paths: RunPaths) -> StatesOfSummary:
    """Return the jobs that are paused, cancelled or failed according to ``summary.json``."""
    try:
        rows, _ = summary.read(paths)
    except LedgerError:
        return {}
    states: dict[str, Paused | Cancelled | Failed] = {}
    for row in rows:
        job_id = row["job_id"]
        cause = row["cause"]
        match row["state"]:
            case "PAUSED":
                states[job_id] = Paused(at_rung=cause == Cause.RUNG)
            case "CANCELLED" if cause != Cause.UNDECLARED:
                states[job_id] = Cancelled()
            case "FAILED" if cause is not None and cause in [*Cause]:
                states[job_id] = Failed(cause=Cause(cause), message=row["message"] or "")
    return states


def find(
    directory: JobPaths, row: JobRow | None, known: Paused | Cancelled | Failed | None = None
) -> FoundDirectory:
    """Return what is in the directory of a job, as far as that decides what becomes of it.

    :param known: the state of the job according to ``summary.json``, if its ledger is gone.
    """
    if row is not None and row.attempts:
        return FoundDirectory(
            exists=directory.root.exists(),
            has_results=directory.has_results(normalize=row.job.spec.normalize),
            has_replay_buffer=job_directory.has_replay_buffer(directory, row.job.spec),
        )
    spec = _spec_in(directory)
    if spec is None:  # usually it has not been launched
        return FoundDirectory()
    try:
        robot_hash = read_regular(directory.robot_hash).decode() or None
    except (OSError, ValueError):
        return FoundDirectory()
    state: State = known or Pending()
    for number in _attempts_in(directory):
        state = _state_after(directory, spec, number) or known or Pending()
    training = Training(fingerprint=spec.fingerprint(), robot_hash=robot_hash)
    return FoundDirectory(exists=True, training=training, state=state)


def known_jobs(
    paths: RunPaths,
    jobs: Sequence[Job],
    verdicts: Mapping[str, JobVerdict],
    rows: Mapping[str, JobRow],
    wanted: Mapping[str, Wanted],
    of_summary: StatesOfSummary,
) -> list[KnownJob]:
    """Return declared jobs with what ledger and directories have of them."""
    return [
        KnownJob(
            job=job,
            verdict=verdicts[job.job_id],
            row=rows.get(job.job_id),
            wanted=wanted.get(job.job_id, "run"),
            found=find(paths.job(job.job_id), rows.get(job.job_id), of_summary.get(job.job_id)),
        )
        for job in jobs
    ]


def recorded_jobs(
    paths: RunPaths, rows: Mapping[str, JobRow], verdicts: Mapping[str, JobVerdict]
) -> list[KnownJob]:
    """Return the jobs of a run directory that goes on without its job file: only what is in the
    directory of a job can be trained again.
    """
    known = []
    for job_id, row in rows.items():
        directory = paths.job(job_id)
        is_complete = directory.has_results(normalize=row.job.spec.normalize)
        found = FoundDirectory(
            exists=True, has_results=is_complete or not directory.robot_hash.exists()
        )
        known.append(KnownJob(job=row.job, verdict=verdicts[job_id], row=row, found=found))
    return known


def _spec_in(directory: JobPaths) -> WorkerSpec | None:
    try:
        return WorkerSpec.from_json(read_regular(directory.spec))
    except (OSError, ValueError):
        return None


def _attempts_in(directory: JobPaths) -> list[int]:
    names = [entry.name for entry in directory.attempts.glob("*")]
    return sorted(int(name) for name in names if name.isdecimal())


def _state_after(directory: JobPaths, spec: WorkerSpec, number: int) -> State | None:
    """Return the state of a job after an attempt in its directory, or None if its exit record does
    not decide that.
    """
    _, record = decisive_record(directory.attempt(number), spec.ranks)
    if record is None:
        return None
    if record.code == ExitCode.SUCCEEDED:
        has_results = directory.has_results(normalize=spec.normalize)
        return Succeeded() if has_results else None
    if record.code in (ExitCode.ERROR, ExitCode.DIVERGED):
        return Failed(cause=_cause_of(record), message=record.message)
    return None


def _cause_of(record: ExitRecord) -> Cause:
    return Cause.ERROR if record.code == ExitCode.ERROR else Cause.DIVERGED


def adopt_attempts(ledger: ServerLedger, job: Job, directory: JobPaths) -> None:
    """Enter the attempts that are in the directory of a job."""
    for number in _attempts_in(directory):
        paths = directory.attempt(number)
        begun = paths.root.stat().st_mtime
        attempt = Attempt(job_id=job.job_id, number=number, cpus=(), gpus=(), started_at=begun)
        ledger.start_attempt(attempt, queue_s=0.0)
        _, record = decisive_record(paths, job.spec.ranks)
        cause: Cause | None = Cause.SUPERVISOR_DIED
        if record is not None and record.code == ExitCode.SUCCEEDED:
            cause = None
        elif record is not None and record.code in (ExitCode.ERROR, ExitCode.DIVERGED):
            cause = _cause_of(record)
        outcome = AttemptOutcome(cause=cause, message="taken from the job directory")
        wall_s = None if record is None else record.wall_s
        _end_attempt(ledger, attempt, outcome, record, wall_s=wall_s)
