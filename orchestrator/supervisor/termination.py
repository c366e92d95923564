"""Ends attempts before their training is done: all of them on a stop, one when it is cancelled,
paused or exceeds a limit.

An attempt may save a checkpoint and exit until a deadline; then it is killed. A stop is requested
by signals, by the `stop` command, by a full disk, or by the time that `--until` gives; every
message about stops is written here. So is the request that all attempts save a checkpoint and go
on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from orchestrator.core.errors import DiskFullError, OrchestratorError, SupervisorError
from orchestrator.core.front_end import is_python, option, repeat_call
from orchestrator.core.job import AttemptOutcome, Cause
from orchestrator.core.messages import Progress
from orchestrator.core.text import count
from orchestrator.executors.base import Executor, Handle
from orchestrator.supervisor import retry_policy
from orchestrator.supervisor.active_attempts import ActiveAttempt, ActiveAttempts
from orchestrator.supervisor.events import Reporter

IDLE_S = 0.25
"""How late a signal, a request or a limit may be noticed."""
UNKILLABLE_S = 30.0
"""A worker that is there so long after it was killed is reported."""
AWAY_S = 30.0
"""Longer between two looks at limits means that this process was stopped, with its machine or container
perhaps: what it could not hear then is nobody's silence."""


@dataclass(slots=True, kw_only=True)
class Termination:
    """Asks attempts to end and kills those that do not. Times are monotonic seconds."""

    active: ActiveAttempts
    executor: Executor
    reporter: Reporter
    grace_s: float
    now: Callable[[], float]
    until: float | None = None
    """When every attempt has to have ended, in seconds since the epoch; None: no such time."""
    stops_requested: int = field(default=0, init=False)
    stage: int = field(default=0, init=False)
    """0: no stop; 1: workers may save a checkpoint and exit; 2: they are killed."""
    failure: OrchestratorError | None = field(default=None, init=False)
    """Why the run cannot continue; None if it can, or was only asked to stop."""
    _checkpoint_requested: bool = field(default=False, init=False)
    _reason: str = field(default="", init=False)
    _looked_at: float = field(default=math.inf, init=False)
    """When limits were looked at last."""
    _slow: set[str] = field(default_factory=set, init=False)
    """Names of jobs whose iterations were reported to take longer than the grace time."""
    _outliving: set[Handle] = field(default_factory=set, init=False)
    """Attempts that were reported not to have ended although they were killed."""

    def request_stop(self, reason: str) -> None:
        """Request a stop of the whole experiment. Safe in a signal handler; :meth:`apply_stops`
        acts on it.
        """
        self.stops_requested += 1
        self._reason = reason

    def request_checkpoints(self) -> None:
        """Request a checkpoint of every attempt. Safe in a signal handler;
        :meth:`apply_checkpoints` acts on it.
        """
        self._checkpoint_requested = True

    def apply_checkpoints(self) -> None:
        """Pass the request on. Attempts that were asked to end save one in any case."""
        if not self._checkpoint_requested:
            return
        self._checkpoint_requested = False
        asked = [attempt for attempt in self.active if attempt.kill_at is None]
        for attempt in asked:
            self.executor.checkpoint(attempt.handle)
        if asked:
            jobs = count(len(asked), "job saves", "jobs save")
            text = f"{jobs} a checkpoint at the end of the present iteration (SIGUSR1)"
        else:
            text = "no job runs that could save a checkpoint (SIGUSR1)"
        self.reporter.event("checkpoint", text, running=len(asked))

    def stop_for_full_disk(self, error: DiskFullError) -> None:
        """Request a stop, unless there is one, and let the run end with an error."""
        where = "every job stopped at its last complete checkpoint"
        advice = f"{error.cure} and {repeat_call()}"
        self._stop_for(DiskFullError(f"{error}; {where}. {advice}"), "the disk is full")

    def stop_for_error(self, error: Exception, where: str) -> None:
        """As :meth:`stop_for_full_disk`, for an error that is not of one job.

        :param where: a clause that says where its traceback is.
        """
        what = f"unexpected error of the supervisor ({error!r})"
        if isinstance(error, OrchestratorError):
            what = str(error)
        advice = f"every job was stopped in good order. {repeat_call().capitalize()} to resume"
        self._stop_for(
            SupervisorError(f"{what}; {where}; {advice}"), "the supervisor cannot continue"
        )

    def _stop_for(self, failure: OrchestratorError, reason: str) -> None:
        if self.failure is None:
            self.failure = failure
        if not self.stops_requested:
            self.request_stop(reason)

    def apply_stops(self) -> None:
        """The first stop lets workers save a checkpoint and exit, the second one kills them."""
        self._stop_in_time()
        if self.stops_requested <= self.stage or self.stage == 2:
            return
        self.stage = min(self.stops_requested, 2)
        grace_s = self.grace_s if self.stage == 1 else 0.0
        if self.stage == 1:
            then = f"workers save a checkpoint and exit within {grace_s:g} s, or are killed and lose what is not saved"
            message = f"stopping ({self._reason}): {then}. `stop --now` or a second Ctrl-C kills them now."
        else:
            message = f"killing {count(len(self.active), 'worker')} ({self._reason})"
        self.reporter.event("stopping", message, running=len(self.active))
        reason = AttemptOutcome(cause=Cause.INTERRUPTED, message=self._reason)
        deadline = self.now() + grace_s
        for attempt in self.active:
            self._ask_to_end(attempt, reason, deadline)

    def _stop_in_time(self) -> None:
        """Request a stop when workers have to begin with their ends for :attr:`until`."""
        if self.until is None or self.stops_requested:
            return
        if time.time() >= self.until - self.grace_s:
            self._reason = option("until", time.strftime("%H:%M:%S", time.localtime(self.until)))
            self.stops_requested = 1  # not one more, even if a signal arrives at this moment

    def cancel(self, attempt: ActiveAttempt) -> None:
        """End ``attempt``; its job will not be resumed."""
        reason = AttemptOutcome(cause=Cause.CANCELLED, message="cancelled")
        self._ask_to_end(attempt, reason, self.now() + self.grace_s)

    def pause(self, attempt: ActiveAttempt) -> None:
        """Let ``attempt`` save a checkpoint and exit; its job waits until it is resumed."""
        reason = AttemptOutcome(cause=Cause.PAUSED, message="paused")
        self._ask_to_end(attempt, reason, self.now() + self.grace_s)

    def fail(self, attempt: ActiveAttempt, reason: AttemptOutcome) -> None:
        """Kill ``attempt`` at once: the supervisor cannot handle what it sent."""
        self._ask_to_end(attempt, reason, self.now())

    def check_iteration(self, attempt: ActiveAttempt, progress: Progress) -> None:
        """Warn, once for each name of a job, when an iteration takes longer than the grace time."""
        if (
            attempt.iteration_since is None
            or attempt.progress is None
            or attempt.job.spec.name in self._slow
        ):
            return
        iterations = max(1, progress.iteration - attempt.progress.iteration)
        iteration_s = (self.now() - attempt.iteration_since) / iterations
        if 0.0 < self.grace_s < iteration_s:
            self._slow.add(attempt.job.spec.name)
            cure = (
                "Iterations of fewer steps avoid this"
                if is_python()
                else "A larger --grace, or iterations of fewer steps, avoid this"
            )
            text = (
                f"{attempt.job.job_id}: an iteration takes longer ({iteration_s:.1f} s so far) than the grace time"
                f" ({self.grace_s:g} s), so a stop would kill it and lose that iteration. {cure}"
            )
            self.reporter.event(
                "warning", text, job_id=attempt.job.job_id, iteration_s=round(iteration_s, 3)
            )

    def enforce_limits(self) -> None:
        """Check the attempts that are due against their limits and deadlines."""
        now = self.now()
        if now - self._looked_at > AWAY_S:
            self.active.leave_out(now - self._looked_at, now)
        self._looked_at = now
        for attempt in self.active.due(now):
            exceeded = retry_policy.exceeded_limit(attempt.usage, now)
            if attempt.kill_at is not None:
                self._report_unkillable(attempt, now - attempt.kill_at)
            # One that has to end may be late and silent until its deadline, but not too large.
            if exceeded and (attempt.kill_at is None or exceeded.cause is Cause.MEMORY):
                # An attempt that is only late may checkpoint; one that is hung or too large is
                # killed at once.
                grace_s = self.grace_s if exceeded.cause is Cause.TIMEOUT else 0.0
                self._ask_to_end(attempt, exceeded, now + grace_s)
            elif attempt.kill_at is not None and now >= attempt.kill_at:
                self.executor.cancel(attempt.handle, kill=True)
            next_check = attempt.kill_at
            if next_check is None:
                next_check = retry_policy.next_limit_at(attempt.usage)
            self.active.check_at(attempt, max(next_check, now + IDLE_S))

    def _report_unkillable(self, attempt: ActiveAttempt, killed_for_s: float) -> None:
        """Report once that a worker of this machine outlives SIGKILL: only a wait within the kernel
        does that.
        """
        handle = attempt.handle
        is_local = attempt.node is None
        if not is_local or killed_for_s < UNKILLABLE_S or handle in self._outliving:
            return
        self._outliving.add(handle)
        text = (
            f"{handle.job_id}: its worker (pid {handle.pid}) was killed {killed_for_s:.0f} s ago and has not ended."
            " It waits within the kernel, usually for a disk or a network file system that does not answer. The run"
            " goes on, and ends, when the worker has ended"
        )
        self.reporter.event("warning", text, job_id=handle.job_id)

    def _ask_to_end(self, attempt: ActiveAttempt, reason: AttemptOutcome, deadline: float) -> None:
        now = self.now()
        kill_at = self.active.note_end_request(attempt, reason, now, deadline)
        self.executor.cancel(attempt.handle, kill=kill_at <= now)
