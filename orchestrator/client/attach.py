"""Follows the supervisor of a run directory to its end: `attach` and `wait`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.client import run_snapshot
from orchestrator.client.follow import Display, Follower, end_of
from orchestrator.client.run_follower import RunFollower
from orchestrator.core.errors import RunDirError
from orchestrator.core.job import TERMINAL
from orchestrator.core.paths import RunPaths
from orchestrator.experiment import run_directory, run_end
from orchestrator.experiment.run_directory import LockHolder
from orchestrator.ledger import SummaryRow
from orchestrator.server.ledger import INTERNAL

LOOK_EVERY_S = 0.25
"""How late the end of the supervisor may be noticed."""
LOCK_PATIENCE_S = 5.0
"""How long a supervisor that has just started may take to write its name into the lock."""
READ_EVERY_S = 1.0
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
    """Return the supervisor to follow, or None if the last one has ended.

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
    give_up_at = time.monotonic() + LOCK_PATIENCE_S
    while (holder := run_directory.holder(paths)) is not None and not holder.is_current:
        if time.monotonic() > give_up_at:
            raise RunDirError(
                f"{paths.root}: is locked, but the process that its lock names does not run here ({holder})."
                f" It may run in another container, or be left over. `status {paths.root}` shows the jobs"
            )
        time.sleep(LOOK_EVERY_S)
    return holder


def follow(paths: RunPaths, holder: LockHolder | None, display: Display) -> run_end.RunEnd:
    """Show a supervisor to its end. Return how it has ended.

    One on another host is shown by its files: what happens to single jobs is not told.
    """
    follower = None
    if holder is not None and not holder.is_elsewhere:
        follower = _follower(paths, holder)  # before it is shown: no event in between is missed
    display.begin(paths, lambda _: None)
    display.added()
    display.tick()
    if holder is not None and holder.is_elsewhere:
        while run_directory.holder(paths) == holder:
            display.tick()
            time.sleep(LOOK_EVERY_S)
        display.tick()
    elif holder is not None and follower is not None:
        with contextlib.closing(follower):
            for event in follower.to_end(holder.key):
                if event is None:
                    display.tick()
                elif event.kind not in INTERNAL:
                    display.event(event)
    return _end_of(paths, holder)


def _follower(paths: RunPaths, holder: LockHolder) -> Follower | None:
    """Follow the events of a supervisor, which may just have begun, unless it has ended."""
    while run_directory.holder(paths) == holder:
        if paths.ledger.exists():
            return Follower(paths.root)
        time.sleep(LOOK_EVERY_S)
    return None


def _end_of(paths: RunPaths, holder: LockHolder | None) -> run_end.RunEnd:
    if holder is None:
        last = run_end.read(paths)
        return end_of(paths, "") if last is None else last
    return end_of(paths, holder.key)


def wait(run_dir: Path, names: Sequence[str], *, timeout_s: float) -> WaitEnd:
    """Return when the experiment has ended or, if there are names, when those jobs have.

    :raises UsageError: not a run directory, or no such job.
    """
    paths = run_directory.existing_run(run_dir)
    holder = _current_holder(paths)
    until = time.monotonic() + timeout_s
    follower = RunFollower(run_dir)
    rows: Sequence[SummaryRow] = []
    read_at = -READ_EVERY_S
    while True:
        is_over = holder is None or run_directory.holder(paths) != holder
        if is_over or time.monotonic() - read_at > READ_EVERY_S:
            read_at = time.monotonic()
            look = follower.look()
            if look is not None and look.problem and is_over:
                raise RunDirError(look.problem)
            if look is not None and look.snapshot is not None:
                rows = look.snapshot.rows
                if names and rows:
                    jobs = set(run_snapshot.resolve(look.snapshot, names))
                    rows = [row for row in rows if row["job_id"] in jobs]
        if names and rows and all(row["state"] in TERMINAL for row in rows):
            return WaitEnd(rows=rows, exit_code=run_snapshot.exit_code(rows))
        if is_over:
            break
        if time.monotonic() >= until:
            problem = f"{run_dir}: has not ended within {timeout_s:g} s; the experiment continues"
            return WaitEnd(rows=rows, exit_code=TIMED_OUT, problem=problem)
        time.sleep(min(LOOK_EVERY_S, max(0.0, until - time.monotonic())))
    end = _end_of(paths, holder)
    if end.message:
        return WaitEnd(rows=rows, exit_code=end.exit_code, problem=end.message)
    return WaitEnd(rows=rows, exit_code=_exit_code_of_jobs(rows, end) if names else end.exit_code)


def _exit_code_of_jobs(rows: Sequence[SummaryRow], end: run_end.RunEnd) -> int:
    """Return that of some jobs of a run that has ended. One that this has left PENDING, though it was
    not stopped, waits for a job that did not succeed: to run it again changes nothing.
    """
    code = run_snapshot.exit_code(rows)
    is_left = any(row["state"] == "PENDING" for row in rows)
    return 1 if code == 130 and is_left and end.exit_code == 1 else code
