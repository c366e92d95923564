"""`attach`: follows the supervisor that holds a run directory to its end, from its files alone."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.errors import (
    UNAVAILABLE,
    DiskFullError,
    LedgerBusyError,
    LedgerError,
    RunDirError,
)
from orchestrator.core.job import TERMINAL
from orchestrator.core.pacer import Pace, Pacer
from orchestrator.core.paths import RunPaths
from orchestrator.experiment.directory import left_batch_jobs, resume_advice, run_directory, run_end
from orchestrator.experiment.directory.run_directory import LockHolder
from orchestrator.experiment.directory.run_end import RunEnd
from orchestrator.experiment.from_outside import control, run_snapshot
from orchestrator.experiment.from_outside.run_snapshot import Snapshot
from orchestrator.ledger import SummaryRow
from orchestrator.supervisor.events import returns

LOOK_EVERY_S = 0.25
"""How late the end of the supervisor may be noticed."""
READING = Pace(every_s=1.0, share=0.05)
"""How often the ledger is read, which takes long where there are many jobs."""
PATIENCE_S = 30.0
"""So long who follows bears with a file system that fails to read the ledger, if it was read
before."""
KILLED = "the supervisor was killed, or its machine restarted"
REMOVED = "the run directory has been removed or renamed, so its end is not known"
TIMED_OUT = 124
"""Exit code of `wait` when its time is over, as that of timeout(1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitEnd:
    """Why `wait` returns."""

    rows: Sequence[SummaryRow]
    """The jobs that were waited for, as they are now."""
    exit_code: int
    """As that of `run`; or :data:`TIMED_OUT`."""
    problem: str = ""
    """Why they have not all ended, or the error that ended the run."""


def supervisor_to_follow(run_dir: Path) -> tuple[RunPaths, LockHolder | None]:
    """The supervisor to follow; None when none runs.

    :raises RunDirError: none runs, and none has; or the lock names a process that does not run.
    """
    paths = run_directory.existing_run(run_dir)
    run_snapshot.refuse_benchmark(paths)
    holder = _current_holder(paths)
    if holder is None and run_end.read(paths) is None and not paths.ledger.exists():
        raise RunDirError(
            f"{run_dir}: no supervisor is running, and none has planned jobs here; nothing to follow"
        )
    return paths, holder


def _current_holder(paths: RunPaths) -> LockHolder | None:
    """:raises RunDirError: the lock names a process that does not run."""
    holder = run_directory.holder(paths)
    patience = time.monotonic() + control.UNKNOWN_S
    while holder is not None and not holder.is_current:
        # It has just taken the lock, and writes its name.
        if time.monotonic() > patience:
            what = f"is locked, but the process that its lock names does not run here ({holder})"
            advice = f"It may run in another container, or be left over. `status {paths.root}` shows the jobs"
            raise RunDirError(f"{paths.root}: {what}. {advice}")
        time.sleep(LOOK_EVERY_S)
        holder = run_directory.holder(paths)
    return holder


def follow(
    paths: RunPaths, holder: LockHolder | None, until: float = math.inf
) -> Iterator[Snapshot]:
    """What the ledger shows, as often as it may be read; for the last time after the end of
    ``holder``.

    :param until: a moment of :func:`time.monotonic`, from which on a reading is not waited for any
        longer.
    :raises LedgerBusyError: the ledger is locked, also at ``until``.
    :raises LedgerFailingError, DiskFullError: its file system fails at the first reading, at
        ``until``, or for :data:`PATIENCE_S`.
    """
    readings = Pacer(READING)
    was_read = False
    give_up_at: float | None = None  # of a file system that fails
    while True:
        # Before the ledger is read: afterwards nothing is written.
        is_over = holder is None or run_directory.holder(paths) != holder
        with readings.time_block():
            try:
                snapshot = run_snapshot.status(paths.root)
            except LedgerBusyError:
                if time.monotonic() >= until:
                    raise
                continue
            except (LedgerError, RunDirError, DiskFullError) as error:
                if isinstance(error, UNAVAILABLE) and paths.ledger.exists():
                    now = time.monotonic()
                    give_up_at = give_up_at or min(until, now + PATIENCE_S)
                    if now >= give_up_at or not was_read:
                        raise
                    time.sleep(LOOK_EVERY_S)
                    continue
                # It was moved away or replaced: `--fresh`, `--rebuild-ledger`.
                if not is_over and run_directory.holder(paths) == holder:
                    raise
                return
            was_read = True
            give_up_at = None
            yield snapshot
        if is_over:
            return
        while not readings.is_due() and time.monotonic() < until:
            if run_directory.holder(paths) != holder:
                break
            time.sleep(LOOK_EVERY_S)


def end_of(paths: RunPaths, holder: LockHolder | None) -> RunEnd:
    """How the run that was followed ended."""
    end = run_end.read(paths)
    if end is not None and (holder is None or end.holder == holder.key):
        return end
    message = REMOVED
    if run_directory.is_run_directory(paths):
        message = f"{KILLED}. {resume_advice.how_to_resume(paths, left_batch_jobs.of(paths))}"
    return RunEnd(holder="", exit_code=1, message=f"{paths.root}: {message}", ended_at=time.time())


def wait(run_dir: Path, names: Sequence[str], *, timeout_s: float) -> WaitEnd:
    """Return when the experiment has ended or, if there are ``names``, when those jobs have.

    :raises UsageError: not a run directory, or no such job.
    """
    paths = run_directory.existing_run(run_dir)
    until = time.monotonic() + timeout_s
    holder = _current_holder(paths)
    rows: Sequence[SummaryRow] = []
    late = f"{run_dir}: has not ended within {timeout_s:g} s; the experiment continues"
    try:
        for snapshot in follow(paths, holder, until):
            rows = snapshot.rows
            if names and rows:
                jobs = set(run_snapshot.resolve(snapshot, names))
                rows = [row for row in rows if row["job_id"] in jobs]
                if _are_over(rows):
                    return WaitEnd(rows=rows, exit_code=run_snapshot.exit_code(rows))
            if snapshot.holder is not None and time.monotonic() >= until:
                return WaitEnd(rows=rows, exit_code=TIMED_OUT, problem=late)
    except UNAVAILABLE as error:
        if not isinstance(error, LedgerBusyError) and time.monotonic() < until:
            raise
        return WaitEnd(rows=rows, exit_code=TIMED_OUT, problem=late)
    end = end_of(paths, holder)
    if end.message:
        return WaitEnd(rows=rows, exit_code=end.exit_code, problem=end.message)
    return WaitEnd(rows=rows, exit_code=_exit_code_of_jobs(rows, end) if names else end.exit_code)


def _exit_code_of_jobs(rows: Sequence[SummaryRow], end: RunEnd) -> int:
    """Of some jobs of a run that has ended. One that this has left PENDING, though it was not stopped,
    waits for a job that did not succeed: to run it again changes nothing.
    """
    code = run_snapshot.exit_code(rows)
    is_left = any(row["state"] == "PENDING" for row in rows)
    return 1 if code == 130 and is_left and end.exit_code == 1 else code


def _are_over(rows: Sequence[SummaryRow]) -> bool:
    return bool(rows) and all(row["state"] in TERMINAL for row in rows)


def changes(before: Snapshot, now: Snapshot) -> Iterator[tuple[SummaryRow, str, str]]:
    """What happened between two readings, in the order of the job file: the job, the kind of event,
    a message.
    """
    earlier = {row["job_id"]: row for row in before.rows}
    for row in now.rows:
        old = earlier.get(row["job_id"])
        if old is not None and (old["state"], old["attempts"]) != (row["state"], row["attempts"]):
            for kind, text in _changes_of(old, row):
                yield row, kind, f"{row['job_id']} {text}"


def _changes_of(old: SummaryRow, row: SummaryRow) -> Iterator[tuple[str, str]]:
    if row["attempts"] > old["attempts"]:
        number = row["attempts"]
        yield "launched", "launched" + (f", attempt {number}" if number > 1 else "")
    match row["state"]:
        case "RUNNING":
            return
        case "FAILED":
            yield "failed", f"failed: {row['message'] or row['cause']}"
        case "SUCCEEDED":
            outcome = returns(row["ep_rew_mean_first"], row["ep_rew_mean"], row["eval_mean"])
            outcome += f" ({row['eval_finding']})" if row["eval_finding"] else ""
            yield "succeeded", f"succeeded{outcome}"
        case "CANCELLED":
            yield "cancelled", "cancelled"
        case "PAUSED":
            yield "paused", row["message"] or "paused; `resume` queues it again"
        case _ if old["state"] == "PAUSED":
            yield "resumed", "is queued again"
        case _ if old["state"] in ("FAILED", "CANCELLED"):
            yield "retrying", "is queued again"
        case _:
            yield "retrying", "has ended, and waits for its next attempt"
