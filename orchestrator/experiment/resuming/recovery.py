"""What an earlier supervisor left behind: attempts in state RUNNING, unread requests, or a ledger
that is lost.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from orchestrator.core.errors import LedgerError, LedgerUnavailableError
from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.exit_record import ExitRecord, read_exit_record
from orchestrator.core.job import (
    Attempt,
    AttemptOutcome,
    Cause,
    Running,
    move,
)
from orchestrator.core.paths import AttemptPaths, JobPaths, RunPaths
from orchestrator.core.processes.procfs import is_zombie
from orchestrator.experiment.directory import run_directory
from orchestrator.ledger import JobRow, Ledger
from orchestrator.machine.process_identity import same_process
from orchestrator.supervisor import retry_policy
from orchestrator.supervisor.events import Reporter


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
    if record.code == ExitCode.SUCCEEDED and not directory.has_results(
        normalize=row.job.spec.normalize
    ):
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
            for row in old.jobs():
                if isinstance(row.state, Running):
                    _kill_leftover_of(row.state.attempt)
    except LedgerUnavailableError:
        raise
    except LedgerError:  # it is damaged
        return


def _kill_leftover_of(attempt: Attempt) -> None:
    if attempt.node is not None or attempt.pid is None or attempt.pid_start is None:
        return
    # Where the system does not identify its boots, the pid may be a stranger's after a reboot.
    if not attempt.pid_start.is_integer():
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
