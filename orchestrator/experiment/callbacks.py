"""Functions of a Python program that are called while its experiment runs: for every job that ends,
and for progress.

They are called in the thread that runs the supervisor, between two turns of its loop. While one
runs, jobs train on, but nothing is launched, recorded or retried.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.core.errors import UNAVAILABLE, LedgerDamagedError
from orchestrator.core.job import TERMINAL
from orchestrator.core.messages import Progress
from orchestrator.core.pacer import Pace, Pacer
from orchestrator.core.processes import users_code
from orchestrator.core.text import listed
from orchestrator.ledger import JobRow, Ledger, SummaryRow
from orchestrator.supervisor.active_attempts import ActiveAttempt
from orchestrator.supervisor.events import Reporter, SilentReporter, View

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
class CallbackReporter:
    """Passes events on, and calls the functions of the program that started the experiment.

    An exception in one of them stops the experiment as Ctrl-C does, and is raised when every worker
    has exited.
    """

    on_end: Callable[[SummaryRow], object] | None = None
    """Called for every job that has ended: at first for those that had ended before."""
    on_progress: Callable[[ExperimentProgress], object] | None = None
    indices: Mapping[str, int] = field(default_factory=dict)
    """Name of jobs → position of their robot in what the program gave."""
    inner: Reporter = field(default_factory=SilentReporter)
    error: BaseException | None = field(default=None, init=False)
    """What one of them raised; none is called after that."""
    _ended: dict[str, None] = field(default_factory=dict, init=False)
    """Jobs that have ended, and that ``on_end`` has not been called for yet."""
    _progress: Pacer = field(default_factory=lambda: Pacer(PROGRESS), init=False)
    _ledger: Ledger | None = field(default=None, init=False)
    _request_stop: Callable[[str], None] | None = field(default=None, init=False)

    def begin(
        self, rows: Sequence[JobRow], ledger: Ledger, request_stop: Callable[[str], None]
    ) -> None:
        """The supervisor is about to run. :param rows: the jobs as it finds them."""
        self._ledger = ledger
        self._request_stop = request_stop
        self._ended.update((row.job_id, None) for row in rows if row.state.name in TERMINAL)

    def event(self, kind: str, message: str, **facts: Any) -> None:
        self.inner.event(kind, message, **facts)
        if kind in ENDS and "job_id" in facts:
            self._ended[facts["job_id"]] = None

    def tick(self, view: Callable[[], View]) -> None:
        self.inner.tick(view)
        with contextlib.suppress(*UNAVAILABLE):  # the next turn reports it
            self._report_ended(most=1)
        if self.on_progress is not None and self._progress.is_due():
            with self._progress.time_block():
                self._call(self.on_progress, progress_of(view(), self.indices))

    def report_last(self) -> None:
        """Call ``on_end`` for all jobs that are left: the supervisor has ended. Where the ledger
        cannot be read, :attr:`error` names them.
        """
        try:
            self._report_ended()
        except UNAVAILABLE as error:
            left = f"the calling program was not told how {listed(list(self._ended))} ended"
            self.error = type(error)(f"{error}; {left}")
            self.error.__cause__ = error

    def _report_ended(self, most: float = math.inf) -> None:
        """Call ``on_end`` for jobs that have ended.

        :param most: so many; the loop goes on between two of them.
        :raises LedgerUnavailableError, DiskFullError: the next call goes on with the same job.
        """
        if self.on_end is None or self._ledger is None:
            return
        done = 0
        while self._ended and done < most and self.error is None:
            job_id = next(iter(self._ended))
            done += 1
            try:
                row = self._ledger.summary_of(job_id)
            except LedgerDamagedError:
                del self._ended[job_id]  # the run ends with this error; others are reported
                continue
            del self._ended[job_id]
            if row["state"] in TERMINAL:  # it may have been queued again already
                self._call(self.on_end, row)

    def _call(self, function: Callable[[Any], object], value: object) -> None:
        if self.error is not None:
            return
        try:
            with users_code.in_this_process():
                function(value)
        except BaseException as error:  # whatever it is, workers save a checkpoint first
            self.error = error
            if self._request_stop is not None:
                self._request_stop(f"{type(error).__name__} in a function of the calling program")


def progress_of(view: View, indices: Mapping[str, int]) -> ExperimentProgress:
    """:param indices: name of jobs → position of their robot in what the program gave."""
    speed = view.env_steps_per_s
    return ExperimentProgress(
        elapsed_s=view.elapsed_s,
        counts={state: number for state, number in view.counts.items() if number},
        running=tuple(_progress_of(attempt, indices) for attempt in view.active),
        env_steps_per_s=speed,
        remaining_s=view.remaining_s,
    )


def _progress_of(attempt: ActiveAttempt, indices: Mapping[str, int]) -> JobProgress:
    job = attempt.job
    progress = attempt.progress or Progress(phase="starting")
    to_go = max(0, job.spec.total_timesteps - progress.env_steps)
    speed = progress.env_steps_per_s
    return JobProgress(
        job_id=job.job_id,
        xml=None if job.xml_source is None else str(job.xml_source),
        index=indices.get(job.spec.name),
        seed=job.spec.seed,
        phase=attempt.phase,
        env_steps=progress.env_steps,
        total_timesteps=job.spec.total_timesteps,
        ep_rew_mean=progress.ep_rew_mean,
        env_steps_per_s=speed,
        remaining_s=to_go / speed if speed else None,
    )
