"""What an earlier supervisor has left: jobs in state RUNNING, and job directories that no ledger
knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from orchestrator.core.errors import LedgerError
from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.job import (
    Attempt,
    AttemptOutcome,
    Cancelled,
    Cause,
    Failed,
    Job,
    Paused,
    Pending,
    State,
    Succeeded,
)
from orchestrator.core.paths import RunPaths
from orchestrator.experiment.resuming import recovery
from orchestrator.ledger import summary
from orchestrator.server.ledger import ServerLedger
from orchestrator.supervisor.events import Reporter

StatesOfSummary: TypeAlias = Mapping[str, Paused | Cancelled | Failed]
"""By ``job_id``."""


def settle_left_attempts(paths: RunPaths, ledger: ServerLedger, reporter: Reporter) -> None:
    """Kill what a dead supervisor has left running, and record how these attempts ended."""
    for row in ledger.jobs():
        recovery.settle(row, paths, ledger, reporter)


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


def adopt(
    ledger: ServerLedger, job: Job, paths: RunPaths, known: Paused | Cancelled | Failed | None
) -> State:
    """Enter the attempts of a job that are in its directory. Return its state: SUCCEEDED or FAILED by
    the last exit record, otherwise the one that is ``known``, or PENDING.
    """
    directory = paths.job(job.job_id)
    state: State = known or Pending()
    names = [entry.name for entry in directory.attempts.glob("*")]
    for number in sorted(int(name) for name in names if name.isdecimal()):
        attempt_paths = directory.attempt(number)
        begun = attempt_paths.root.stat().st_mtime
        attempt = Attempt(job_id=job.job_id, number=number, cpus=(), gpus=(), started_at=begun)
        ledger.start_attempt(attempt, queue_s=0.0)
        _, record = recovery.decisive_record(attempt_paths, job.spec.ranks)
        state = known or Pending()
        cause: Cause | None = Cause.SUPERVISOR_DIED
        if record is not None and record.code == ExitCode.SUCCEEDED:
            cause = None
            if directory.has_results(normalize=job.spec.normalize):
                state = Succeeded()
        elif record is not None and record.code in (ExitCode.ERROR, ExitCode.DIVERGED):
            cause = Cause.ERROR if record.code == ExitCode.ERROR else Cause.DIVERGED
            state = Failed(cause=cause, message=record.message)
        ledger.end_attempt(
            job.job_id,
            number,
            ended_at=None,
            wall_s=None if record is None else record.wall_s,
            returncode=None if record is None else record.code,
            outcome=AttemptOutcome(cause=cause, message="taken from the job directory"),
            record=record,
        )
    if isinstance(state, Paused) and not state.at_rung:
        ledger.set_wanted(job.job_id, "pause")
    return state
