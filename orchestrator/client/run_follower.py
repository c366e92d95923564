"""Looks at a run directory again and again, at little cost: nothing is read of it while nothing has
changed.

As :func:`orchestrator.client.run_snapshot.status`, which reads everything each
time. No file stays open, and the supervisor is never made to wait.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from orchestrator.client import run_snapshot
from orchestrator.client.run_snapshot import Snapshot
from orchestrator.core.errors import LedgerBusyError, OrchestratorError, may_pass
from orchestrator.core.files.file_status import status_of
from orchestrator.core.paths import RunPaths
from orchestrator.experiment import run_directory
from orchestrator.experiment.run_directory import LockHolder
from orchestrator.ledger import Ledger
from orchestrator.ledger.row_reader import RowReader

Condition: TypeAlias = Literal[
    "missing", "empty", "benchmark", "unreadable", "examining", "running", "killed", "ended"
]
"""``missing``: there is no such directory. ``empty``: it is no run directory (yet). ``examining``:
its robots are examined before the first launch. ``running``: a supervisor runs. ``killed``: the
last one was killed. ``ended``: none runs."""
Mark: TypeAlias = tuple[int, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLook:
    """What a look has found."""

    condition: Condition
    snapshot: Snapshot | None = None
    """Its rows are not to be changed. None where there is nothing to read."""
    problem: str = ""
    """Why it cannot be read."""


def mark(path: Path) -> Mark:
    """Differs whenever a file was written or replaced; None while there is none."""
    found = status_of(path)
    return None if found is None else (found.st_ino, found.st_size, found.st_mtime_ns)


def marks(paths: RunPaths, holder: LockHolder | None) -> tuple[object, ...]:
    """Differ whenever there may be something new in a run directory."""
    files = [
        paths.ledger,
        paths.ledger.with_name(f"{paths.ledger.name}-wal"),
        paths.run_end,
    ]
    if holder is not None and holder.is_elsewhere:
        files.append(paths.summary_json)
    key = None if holder is None else holder.key
    return (key, paths.lock.exists(), *map(mark, files))


class RunFollower:
    """Follows one run directory, which may come, go, and be replaced."""

    def __init__(self, run_dir: Path) -> None:
        self.paths = RunPaths(run_dir)
        self.generation = 0
        """Rises whenever nothing that was read before holds any more: the ledger is gone, or is
        another one."""
        self._marks: tuple[object, ...] | None = None
        self._reader = RowReader()
        self._ledger_inode = 0
        """Of the ledger that was found sound."""

    def look(self) -> RunLook | None:
        """What there is now; None where nothing has changed since the last look, or the ledger is
        locked just now.
        """
        holder = run_directory.holder(self.paths)
        found = (self.paths.root.is_dir(), *marks(self.paths, holder))
        if found == self._marks:
            return None
        try:
            seen = self._look(holder)
        except LedgerBusyError:
            return None
        except (OrchestratorError, OSError) as error:
            self._forget()
            self._marks = None if may_pass(error) else found
            return RunLook(condition="unreadable", problem=str(error))
        self._marks = found
        return seen

    def _forget(self) -> None:
        self._reader = RowReader()
        self._ledger_inode = 0
        self.generation += 1

    def _look(self, holder: LockHolder | None) -> RunLook:
        paths = self.paths
        if holder is not None and holder.is_elsewhere:
            snapshot = run_snapshot.snapshot_from_elsewhere(paths, holder)
            condition: Condition = "running" if snapshot.rows else "examining"
            return RunLook(condition=condition, snapshot=snapshot)
        if paths.ledger.exists():
            return self._read(holder)
        self._forget()
        condition = "benchmark" if paths.bench.exists() else "examining"
        if holder is not None:
            snapshot = Snapshot(paths=paths, rows=[], holder=holder)
            return RunLook(condition=condition, snapshot=snapshot)
        if not paths.bench.exists():
            condition = "empty" if paths.root.is_dir() else "missing"
        return RunLook(condition=condition)

    def _read(self, holder: LockHolder | None) -> RunLook:
        paths = self.paths
        inode = paths.ledger.stat().st_ino
        if inode != self._ledger_inode:
            self._forget()
        ledger = Ledger.open(paths.ledger, read_only=True, is_sound=inode == self._ledger_inode)
        try:
            self._reader.update(ledger)
            self._ledger_inode = inode
            snapshot = run_snapshot.snapshot_of(
                ledger, paths, holder, list(self._reader.rows.values())
            )
        finally:
            ledger.abandon()
        if holder is not None:
            return RunLook(condition="running", snapshot=snapshot)
        condition: Condition = "killed" if snapshot.was_killed else "ended"
        return RunLook(
            condition=condition,
            snapshot=replace(snapshot, rows=list(map(run_snapshot.as_left, snapshot.rows))),
        )
