"""Looks at a run directory from another process: its jobs, and the supervisor that runs them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from orchestrator.client.events import Note
from orchestrator.core import job_patterns
from orchestrator.core.errors import UsageError
from orchestrator.core.job import TERMINAL, Cause
from orchestrator.core.paths import JobPaths, RunPaths
from orchestrator.experiment import begun_source, run_directory, run_end
from orchestrator.experiment.begun_source import Standing
from orchestrator.experiment.run_directory import LockHolder
from orchestrator.ledger import Ledger, SummaryRow, job_figures, summary
from orchestrator.ledger.rows import OF_RUNNING


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A run directory at one moment."""

    paths: RunPaths
    rows: Sequence[SummaryRow]
    holder: LockHolder | None
    written: float | None = None
    """When the rows were written to ``summary.json``, which they are from if the supervisor runs on
    another host."""
    goals: Mapping[str, int] = field(default_factory=dict)
    """env_steps at which running and queued jobs pause at a rung, by ``job_id``."""
    standing: Standing = "none"
    """Whether more jobs may come, or paused ones go on."""
    notes: Sequence[Note] = ()
    """What features say of it; whoever shows the snapshot fills this in."""
    was_killed: bool = False
    """Whether its last supervisor was killed while jobs ran, and none has run since."""

    @property
    def over(self) -> bool:
        have_ended = bool(self.rows) and all(row["state"] in TERMINAL for row in self.rows)
        return self.holder is None or (have_ended and self.standing != "underway")


def status(run_dir: Path) -> Snapshot:
    """What the files of a run directory say, read as of now: without a supervisor no job is
    RUNNING.

    :raises UsageError: it is not a run directory, or its ledger is damaged.
    """
    paths = run_directory.existing_run(run_dir)
    refuse_benchmark(paths)
    holder = run_directory.holder(paths)
    if holder is not None and holder.is_elsewhere:
        snapshot = snapshot_from_elsewhere(paths, holder)
    elif holder is not None and not paths.ledger.exists():
        return Snapshot(paths=paths, rows=[], holder=holder)  # it examines the robots first
    else:
        with run_directory.opened_ledger(paths, read_only=True) as ledger:
            snapshot = snapshot_of(ledger, paths, holder, ledger.summary())
    return replace(snapshot, rows=[as_of_now(row, holder) for row in snapshot.rows])


def snapshot_from_elsewhere(paths: RunPaths, holder: LockHolder) -> Snapshot:
    """The snapshot of a run directory whose supervisor runs on another host: from the files that it
    writes beside its ledger.
    """
    rows, written = summary.read(paths)
    return Snapshot(paths=paths, rows=rows, holder=holder, written=written)


def snapshot_of(
    ledger: Ledger, paths: RunPaths, holder: LockHolder | None, rows: Sequence[SummaryRow]
) -> Snapshot:
    """The snapshot of a run directory whose ledger is on this host. :param rows: of the ledger, as
    they are there.
    """
    is_left_running = holder is None and any(row["state"] == "RUNNING" for row in rows)
    standing = begun_source.standing_of(paths, ledger)
    return Snapshot(
        paths=paths,
        rows=rows,
        holder=holder,
        was_killed=is_left_running and run_end.read(paths) is None,
        standing=standing,
        goals=job_figures.goals(ledger) if standing == "underway" else {},
    )


def as_of_now(row: SummaryRow, holder: LockHolder | None) -> SummaryRow:
    """The time of a running job counts up to now; one that a supervisor left RUNNING when it was
    killed is PENDING.
    """
    if holder is None:
        return as_left(row)
    if row["state"] != "RUNNING" or row["started_at"] is None:
        return row
    running_s = max(0.0, time.time() - row["started_at"])
    return cast(SummaryRow, {**row, "wall_s": (row["wall_s"] or 0.0) + running_s})


def as_left(row: SummaryRow) -> SummaryRow:
    """A job as a killed supervisor has left it: without a supervisor none runs, or waits for space."""
    if row["state"] == "RUNNING":
        return cast(SummaryRow, {**row, **dict.fromkeys(OF_RUNNING), "state": "PENDING"})
    return cast(SummaryRow, {**row, "waiting": None}) if row["waiting"] else row


def exit_code(rows: Iterable[SummaryRow]) -> int:
    """Like that of `run`.

    0: all jobs SUCCEEDED. 1: some FAILED or are CANCELLED. 130: none of these, but jobs run, wait
    or are paused.
    """
    states = {row["state"] for row in rows if row["cause"] != Cause.RUNG}
    if states & {"FAILED", "CANCELLED"}:
        return 1
    return 0 if states == {"SUCCEEDED"} else 130


def find(run_dir: Path, job: str) -> JobPaths:
    """The directory of the one job that has the id ``job``, begins with it or matches it as a
    pattern.

    :raises UsageError: there is no such job or there are several, or it has not been launched yet.
    """
    snapshot = status(run_dir)
    (job_id,) = resolve(snapshot, [job], one=True)
    paths = snapshot.paths.job(job_id)
    if not paths.spec.exists():
        raise UsageError(
            f"{run_dir}: {job_id} has not been launched yet ({row_of(snapshot, job_id)['state']})"
        )
    return paths


def refuse_benchmark(paths: RunPaths) -> None:
    """:raises UsageError: it is the directory of a benchmark, which has no jobs to show or to
    follow.
    """
    if paths.bench.exists() and not paths.ledger.exists():
        advice = f"`report {paths.root}` shows it when it has ended; Ctrl-C where it runs stops it"
        raise UsageError(
            f"{paths.root}: this is a benchmark, which has no jobs of an experiment; {advice}"
        )


def row_of(snapshot: Snapshot, job_id: str) -> SummaryRow:
    for row in snapshot.rows:
        if row["job_id"] == job_id:
            return row
    raise UsageError(f"{snapshot.paths.root}: job {job_id} has been removed")


def resolve(snapshot: Snapshot, names: Sequence[str], *, one: bool = False) -> list[str]:
    """Return the ids of the jobs that ``names`` stand for (:func:`.job_patterns.resolve`).

    :raises UsageError: no job fits a name, or several fit one that may have a single one.
    """
    refuse_examining(snapshot, names)
    root = snapshot.paths.root
    try:
        return job_patterns.resolve(
            names, {row["job_id"]: row["name"] for row in snapshot.rows}, one=one
        )
    except UsageError as error:
        raise UsageError(f"{root}: {error}") from None


def refuse_examining(snapshot: Snapshot, names: Sequence[str]) -> None:
    """:raises UsageError: jobs are named, and none have been entered yet."""
    if names and not snapshot.rows and snapshot.holder is not None:
        what = "still examines the robots; call this command again later"
        raise UsageError(f"{snapshot.paths.root}: its supervisor ({snapshot.holder}) {what}")


def exit_code_of(snapshot: Snapshot) -> int:
    """The exit code for the jobs of ``snapshot``. As with `run`, those that are CANCELLED since the
    job file no longer declares them do not count; and where something makes the jobs, it is that of
    `run`, as far as it is known.
    """
    declared = [row for row in snapshot.rows if row["cause"] != Cause.UNDECLARED]
    if snapshot.standing == "none":
        return exit_code(declared)
    with run_directory.opened_ledger(snapshot.paths, read_only=True) as ledger:
        outcome = begun_source.outcome(snapshot.paths, ledger)
    if outcome == "as its jobs":
        return exit_code(declared)
    states = {row["state"] for row in snapshot.rows if row["cause"] != Cause.RUNG}
    if outcome != "underway" and not states & {"PENDING", "RUNNING", "PAUSED"}:
        return 0 if outcome == "succeeded" else 1
    end = run_end.read(snapshot.paths) if snapshot.holder is None else None
    return 130 if end is None or end.exit_code == 0 else end.exit_code
