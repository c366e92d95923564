"""The running attempts, and how they are ended: by a stop, by their users, or at a limit.

An attempt is asked to save a checkpoint and exit, and killed at its deadline. Times are monotonic
seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from orchestrator.core.job import AttemptOutcome, Cause, Job
from orchestrator.core.messages import Progress
from orchestrator.executors.executor import AttemptId, Executor
from orchestrator.server import retry_policy
from orchestrator.server.jobs import JobEntry, Report

AWAY_S = 30.0
"""A longer pause between two looks at the limits means that the machine or this process was
suspended. Limits leave that time out."""
UNKILLABLE_S = 30.0
"""An attempt that is there so long after it was killed is reported."""


@dataclass(slots=True, kw_only=True, eq=False)
class RunningAttempt:
    """An attempt that was launched and has not ended. Only :class:`Attempts` changes it."""

    id: AttemptId
    entry: JobEntry
    job: Job
    """As it was at the launch."""
    started: float
    last_progress: float
    cpus: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()
    node: str | None = None
    pid: int | None = None
    is_placed: bool = False
    """Whether it runs on its machine. No time limit counts until then."""
    progress: Progress | None = None
    rss_mib: float = 0.0
    max_rss_mib: float = 0.0
    end_reason: AttemptOutcome | None = None
    """Why it was asked to end; None if it was not."""
    asked_at: float | None = None
    kill_at: float | None = None
    """When it is killed if it still runs then."""
    iteration_since: float | None = None
    """When its iteration began; None outside of training."""
    competitors: tuple[str, ...] = ()
    """Who else uses, or has used, its CPUs."""

    @property
    def phase(self) -> str:
        """What it does: ``starting``, ``training``, ``evaluating`` or ``stopping``."""
        if self.end_reason is not None:
            return "stopping"
        return "starting" if self.progress is None else self.progress.phase


@dataclass(slots=True, kw_only=True)
class Attempts:
    """Every running attempt, at most one for each job."""

    executor: Executor
    report: Report
    now: Callable[[], float]
    grace_s: float
    _by_id: dict[AttemptId, RunningAttempt] = field(default_factory=dict, init=False)
    _by_job: dict[str, RunningAttempt] = field(default_factory=dict, init=False)
    _looked_at: float = field(default=math.inf, init=False)
    _slow: set[str] = field(default_factory=set, init=False)
    """Names of jobs whose iterations were reported to take longer than the grace time."""
    _outliving: set[AttemptId] = field(default_factory=set, init=False)
    """Attempts that were reported to outlive SIGKILL."""

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[RunningAttempt]:
        return iter(list(self._by_id.values()))

    def get(self, id_: AttemptId) -> RunningAttempt | None:
        return self._by_id.get(id_)

    def of_job(self, job_id: str) -> RunningAttempt | None:
        return self._by_job.get(job_id)

    def add(self, entry: JobEntry, number: int) -> RunningAttempt:
        """Add the attempt that is launched now."""
        id_ = AttemptId(entry.job.job_id, number)
        now = self.now()
        attempt = RunningAttempt(id=id_, entry=entry, job=entry.job, started=now, last_progress=now)
        self._by_id[id_] = attempt
        self._by_job[id_.job_id] = attempt
        return attempt

    def remove(self, attempt: RunningAttempt) -> None:
        """Leave out an attempt that is over. May be called again."""
        self._by_id.pop(attempt.id, None)
        self._by_job.pop(attempt.id.job_id, None)

    def note_placed(self, attempt: RunningAttempt) -> None:
        """Its time limits count from now: it may have waited for its machine."""
        attempt.is_placed = True
        attempt.started = attempt.last_progress = self.now()

    def note_progress(self, attempt: RunningAttempt, progress: Progress) -> None:
        now = self.now()
        before = attempt.progress
        if progress.phase != "training":
            attempt.iteration_since = None
        elif before is None or (before.phase, before.iteration) != (
            progress.phase,
            progress.iteration,
        ):
            self._warn_of_slow_iteration(attempt, progress, now)
            attempt.iteration_since = now
        attempt.progress = progress
        attempt.last_progress = now

    def _warn_of_slow_iteration(
        self, attempt: RunningAttempt, progress: Progress, now: float
    ) -> None:
        """Warn once for each name of a job if an iteration takes longer than the grace time."""
        name = attempt.entry.job.spec.name
        before = attempt.progress
        if attempt.iteration_since is None or before is None or name in self._slow:
            return
        iteration_s = (now - attempt.iteration_since) / max(
            1, progress.iteration - before.iteration
        )
        if 0.0 < self.grace_s < iteration_s:
            self._slow.add(name)
            job_id = attempt.id.job_id
            text = (
                f"{job_id}: an iteration takes {iteration_s:.1f} s, longer than the grace time"
                f" ({self.grace_s:g} s), so a stop would kill it and lose that iteration."
                " Raise --grace, or use iterations of fewer steps"
            )
            self.report("warning", text, job_id=job_id, iteration_s=round(iteration_s, 3))

    # -- ends

    def ask_to_end(self, attempt: RunningAttempt, reason: AttemptOutcome, grace_s: float) -> None:
        """Ask an attempt to save a checkpoint and exit within ``grace_s``; 0 kills it now. The first
        reason counts, the earliest deadline too.
        """
        now = self.now()
        deadline = now + grace_s
        attempt.end_reason = attempt.end_reason or reason
        attempt.asked_at = attempt.asked_at or now
        attempt.kill_at = deadline if attempt.kill_at is None else min(deadline, attempt.kill_at)
        self.executor.cancel(attempt.id, kill=attempt.kill_at <= now)

    def stop_all(self, reason: str, grace_s: float) -> None:
        """Ask every attempt to end because the run stops."""
        outcome = AttemptOutcome(cause=Cause.INTERRUPTED, message=reason)
        for attempt in self:
            self.ask_to_end(attempt, outcome, grace_s)

    def enforce_limits(self) -> None:
        """End attempts that exceed a limit, and kill those whose deadline is over."""
        now = self.now()
        if now - self._looked_at > AWAY_S:
            self._leave_out(now - self._looked_at)
        self._looked_at = now
        for attempt in self:
            exceeded = retry_policy.exceeded_limit(_usage(attempt), now)
            if exceeded is not None and (attempt.kill_at is None or exceeded.cause is Cause.MEMORY):
                # One that is only late may save a checkpoint; one that hangs or is too large is killed.
                grace_s = self.grace_s if exceeded.cause is Cause.TIMEOUT else 0.0
                self.ask_to_end(attempt, exceeded, grace_s)
            elif attempt.kill_at is not None and now >= attempt.kill_at:
                self.executor.cancel(attempt.id, kill=True)
                self._report_unkillable(attempt, now - attempt.kill_at)

    def _leave_out(self, seconds: float) -> None:
        """Leave a time in which nothing ran out of all limits and deadlines."""
        now = self.now()
        for attempt in self:
            attempt.started = min(now, attempt.started + seconds)
            attempt.last_progress = min(now, attempt.last_progress + seconds)
            if attempt.kill_at is not None and attempt.asked_at is not None:
                attempt.kill_at += min(seconds, now - attempt.asked_at)
            if attempt.iteration_since is not None:
                attempt.iteration_since = min(now, attempt.iteration_since + seconds)

    def _report_unkillable(self, attempt: RunningAttempt, killed_for_s: float) -> None:
        if (
            attempt.node is None
            and killed_for_s > UNKILLABLE_S
            and attempt.id not in self._outliving
        ):
            self._outliving.add(attempt.id)
            job_id = attempt.id.job_id
            text = (
                f"{job_id}: its worker (pid {attempt.pid}) was killed {killed_for_s:.0f} s ago and has not ended."
                " It waits for a disk or a network file system that does not answer. The run goes on, and ends"
                " when the worker has ended"
            )
            self.report("warning", text, job_id=job_id)


def _usage(attempt: RunningAttempt) -> retry_policy.AttemptUsage:
    return retry_policy.AttemptUsage(
        resources=attempt.job.resources,
        started=attempt.started if attempt.is_placed else math.inf,
        last_progress=attempt.last_progress if attempt.is_placed else math.inf,
        rss_mib=attempt.rss_mib,
    )
