"""What functions of a Python program are told while its experiment runs: that jobs have ended, and
how far the others are.

They are called by the client that follows the run: however long they take, no limit of a job waits
for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from orchestrator.client.run_snapshot import Snapshot
from orchestrator.core.job import TERMINAL
from orchestrator.core.pacer import Pace, Pacer
from orchestrator.core.paths import RunPaths
from orchestrator.experiment import run_directory
from orchestrator.ledger import Ledger, SummaryRow
from orchestrator.server.ledger import EventRow
from orchestrator.terminal import jobs_table
from orchestrator.terminal.run_view import RunDisplay

PROGRESS = Pace(every_s=1.0)
ENDS = ("succeeded", "failed", "cancelled")
"""Kinds of the events that a job ends with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgress:
    """A running job at one moment."""

    job_id: str
    xml: str | None
    """The robot's file, or ``"xmls[3]"`` where it was given as MJCF text or ``MjSpec``; None
    without a robot."""
    index: int | None = None
    """Position of the robot in ``xmls``, as :attr:`Result.index`; None in
    :func:`orchestrator.run`."""
    seed: int
    phase: str
    """``"starting"``, ``"training"``, ``"evaluating"`` or ``"stopping"``."""
    env_steps: int
    """Control steps so far, summed over environments and ranks."""
    total_timesteps: int
    ep_rew_mean: float | None
    """Mean return of the last episodes; None before the first has ended."""
    env_steps_per_s: float | None
    remaining_s: float | None
    """Seconds of training to go; None while the speed is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentProgress:
    """An experiment at one moment."""

    elapsed_s: float
    """Seconds since the supervisor started."""
    counts: Mapping[str, int]
    """Number of jobs by state: ``{"SUCCEEDED": 3, "RUNNING": 2, "PENDING": 7}``."""
    running: Sequence[JobProgress]
    """In order of launch."""
    env_steps_per_s: float
    """Of all running jobs together."""
    remaining_s: float | None
    """Seconds until all jobs have been trained at this speed; None while it is not known."""


@dataclass(slots=True, kw_only=True)
class CallbackDisplay:
    """Shows a run with ``inner``, and calls the functions of the program that has started it.

    An exception in one of them stops the experiment as Ctrl-C does; :attr:`error` is raised when
    every worker has exited.
    """

    inner: RunDisplay
    on_end: Callable[[SummaryRow], object] | None = None
    """Called for every job that has ended: at first for those that had ended before."""
    on_progress: Callable[[ExperimentProgress], object] | None = None
    indices: Mapping[str, int] = field(default_factory=dict)
    """Name of jobs → position of their robot in what the program gave."""
    error: BaseException | None = field(default=None, init=False)
    """What one of them raised; none is called after that."""
    _paths: RunPaths | None = field(default=None, init=False)
    _stop: Callable[[str], None] = field(default=lambda _: None, init=False)
    _told: set[tuple[str, int]] = field(default_factory=set, init=False)
    """Jobs of whose ends ``on_end`` was told, each with its number of attempts."""
    _progress: Pacer = field(default_factory=lambda: Pacer(PROGRESS), init=False)

    def begin(self, paths: RunPaths, stop: Callable[[str], None]) -> None:
        self.inner.begin(paths, stop)
        self._paths = paths
        self._stop = stop

    def added(self) -> None:
        self.inner.added()
        if self.on_end is not None:
            with self._ledger() as ledger:
                rows = ledger.summary()
            for row in rows:
                self._tell(row)

    def event(self, event: EventRow) -> None:
        self.inner.event(event)
        if self.on_end is not None and event.kind in ENDS and event.job_id is not None:
            with self._ledger() as ledger:
                row = ledger.summary_of(event.job_id)
            self._tell(row)

    def tick(self) -> None:
        self.inner.tick()
        snapshot = self.inner.snapshot
        if self.on_progress is None or snapshot is None or not snapshot.rows:
            return
        if self._progress.is_due():
            with self._progress.time_block():
                self._call(self.on_progress, progress_of(snapshot, self.indices))

    def _ledger(self) -> AbstractContextManager[Ledger]:
        assert self._paths is not None
        return run_directory.opened_ledger(self._paths, read_only=True, is_sound=True)

    def _tell(self, row: SummaryRow) -> None:
        key = (row["job_id"], row["attempts"])
        if row["state"] in TERMINAL and key not in self._told and self.on_end is not None:
            self._told.add(key)
            self._call(self.on_end, row)

    def _call(self, function: Callable[[Any], object], value: object) -> None:
        if self.error is not None:
            return
        try:
            function(value)
        except BaseException as error:  # whatever it is, workers save a checkpoint first
            self.error = error
            self._stop(f"{type(error).__name__} in a function of the calling program")


def progress_of(snapshot: Snapshot, indices: Mapping[str, int]) -> ExperimentProgress:
    """:param indices: name of jobs → position of their robot in what the program gave."""
    table = jobs_table.of_snapshot(snapshot)
    running = [
        JobProgress(
            job_id=line["job_id"],
            xml=line["xml"],
            index=indices.get(line["name"]),
            seed=line["seed"],
            phase=line["phase"] or "starting",
            env_steps=line["env_steps"] or 0,
            total_timesteps=line["total_timesteps"],
            ep_rew_mean=line["ep_rew_mean"],
            env_steps_per_s=line["env_steps_per_s"],
            remaining_s=line["remaining_s"],
        )
        for line in table.running
    ]
    return ExperimentProgress(
        elapsed_s=table.elapsed_s or 0.0,
        counts={state: number for state, number in table.counts.items() if number},
        running=running,
        env_steps_per_s=table.env_steps_per_s,
        remaining_s=table.remaining_s,
    )
