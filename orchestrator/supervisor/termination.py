"""Attempts that end before their training is done: all when a stop is asked for, one when it is cancelled or too much.

Each may checkpoint and leave until a deadline; then it is killed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from orchestrator.core.errors import DiskFullError
from orchestrator.core.job import AttemptOutcome, Cause
from orchestrator.executors.base import Executor
from orchestrator.supervisor import retry_policy
from orchestrator.supervisor.active_attempts import ActiveAttempts
from orchestrator.supervisor.events import Live, Reporter

IDLE_S = 0.25
"""How late a signal, a request or a limit may be noticed."""


@dataclass(slots=True, kw_only=True)
class Leaving:
    """Times are monotonic seconds."""

    running: ActiveAttempts
    executor: Executor
    reporter: Reporter
    grace_s: float
    """How long workers that were asked to leave may take, all together."""
    now: Callable[[], float]
    stops_asked: int = field(default=0, init=False)
    stage: int = field(default=0, init=False)
    """0: going on; 1: workers may checkpoint and leave; 2: they are killed."""
    disk_full: DiskFullError | None = field(default=None, init=False)
    _reason: str = field(default="", init=False)

    def request_stop(self, reason: str) -> None:
        """Of everything. Safe in a signal handler; :meth:`heed_stops` does it."""
        self.stops_asked += 1
        self._reason = reason

    def stop_for_full_disk(self, error: DiskFullError) -> None:
        if self.disk_full is None:
            text = f"{error}; every job stopped at its last whole checkpoint. Make room and give the same command again"
            self.disk_full = DiskFullError(text)
        if not self.stops_asked:
            self.request_stop("the disk is full")

    def heed_stops(self) -> None:
        """The first stop lets workers checkpoint and leave, the second kills."""
        if self.stops_asked <= self.stage or self.stage == 2:
            return
        self.stage = min(self.stops_asked, 2)
        patience = self.grace_s if self.stage == 1 else 0.0
        if self.stage == 1:
            text = f"stopping ({self._reason}): workers checkpoint and leave within {patience:.0f} s"
            self.reporter.event("stopping", text + "; once more kills them", running=len(self.running))
        else:
            text = f"killing {len(self.running)} workers ({self._reason})"
            self.reporter.event("stopping", text, running=len(self.running))
        deadline = self.now() + patience
        for live in self.running:
            self._ask(live, AttemptOutcome(cause=Cause.INTERRUPTED, message=self._reason), deadline)

    def cancel(self, live: Live) -> None:
        """For good."""
        if live.asked is not None and live.asked.cause is Cause.INTERRUPTED:
            live.asked = None  # it leaves already, but is not to be resumed
        self._ask(live, AttemptOutcome(cause=Cause.CANCELLED, message="cancelled"), self.now() + self.grace_s)

    def police(self) -> None:
        """Limits and deadlines. Those are looked at whose moment has come: not all of them, however many run."""
        now = self.now()
        for live in self.running.due(now):
            if live.kill_at is None:
                ending = retry_policy.overstepped(live.watched(), now)
                if ending is not None:
                    # Only one that is late may still checkpoint; one too big or hung is ended at once.
                    patience = self.grace_s if ending.cause is Cause.TIMEOUT else 0.0
                    self._ask(live, ending, now + patience)
            elif now >= live.kill_at:
                self.executor.cancel(live.handle, kill=True)
            next_look = retry_policy.next_look(live.watched()) if live.kill_at is None else live.kill_at
            self.running.look_at(live, max(next_look, now + IDLE_S))

    def _ask(self, live: Live, why: AttemptOutcome, deadline: float) -> None:
        live.asked = live.asked or why
        live.kill_at = min(deadline, live.kill_at) if live.kill_at is not None else deadline
        self.running.look_at(live, live.kill_at)
        self.executor.cancel(live.handle, kill=live.kill_at <= self.now())
