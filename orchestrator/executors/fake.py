"""An executor without processes, on a clock of its own: for the supervisor's tests and for simulation.

``behave`` says what becomes of each launch; time passes only in :meth:`FakeExecutor.poll`.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from orchestrator.contract import ExitCode, Progress
from orchestrator.executors.base import Event, Exited, Handle, Launch, Progressed, Sampled

NEVER = float("inf")
ALIVE = Progress(phase="training")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """What becomes of one launch. Times are simulated seconds since the launch."""

    after_s: float = 1.0
    """Until it ends by itself; ``NEVER`` is possible."""
    returncode: int | None = 0
    oom_killed: bool = False
    rank: int = 0
    """Of several, the one that it ends by when it does not end well."""
    progress_every_s: float | None = None
    progress: Progress = ALIVE
    hangs_after_s: float = NEVER
    """From then on it reports no progress."""
    rss_mib: Sequence[tuple[float, float]] = ()
    """Samples of memory: when, and how much."""
    leaves_within_s: float = 0.0
    """How long it takes to leave once it is asked to; ``NEVER`` when it does not listen."""
    returncode_asked: int = ExitCode.INTERRUPTED


@dataclass(slots=True, kw_only=True)
class FakeExecutor:
    """See :class:`orchestrator.executors.base.Executor`. ``now`` is the clock to give the supervisor.

    :param behave: may raise an OSError for a launch that fails.
    """

    behave: Callable[[Launch], Fate] = lambda _: Fate()
    launches: list[Launch] = field(default_factory=list)
    time_s: float = 0.0
    _agenda: list[tuple[float, int, Event]] = field(default_factory=list)
    _alive: dict[Handle, Fate] = field(default_factory=dict)
    _hung_at: dict[Handle, float] = field(default_factory=dict)
    _ranks: dict[Handle, int] = field(default_factory=dict)
    _ticket: itertools.count[int] = field(default_factory=itertools.count)

    def now(self) -> float:
        return self.time_s

    @property
    def running(self) -> int:
        return len(self._alive)

    def submit(self, launch: Launch) -> Handle:
        fate = self.behave(launch)
        self.launches.append(launch)
        handle = Handle(launch.job_id, launch.number)
        self._alive[handle] = fate
        self._ranks[handle] = launch.ranks
        self._in(fate.after_s, self._end(handle, fate.returncode, fate.oom_killed, fate.rank))
        for when, rss_mib in fate.rss_mib:
            self._in(when, Sampled(handle, rss_mib))
        self._hung_at[handle] = self.time_s + fate.hangs_after_s
        self._report_next(handle)
        return handle

    def poll(self, timeout_s: float) -> Sequence[Event]:
        until = self.time_s + timeout_s
        events: list[Event] = []
        while not events and self._agenda and self._agenda[0][0] <= until:
            when = self._agenda[0][0]
            self.time_s = max(self.time_s, when)
            while self._agenda and self._agenda[0][0] == when:
                event = heapq.heappop(self._agenda)[2]
                if event.handle in self._alive:
                    self._follow(event)
                    events.append(event)
        if not events:
            self.time_s = until
        return events

    def _follow(self, event: Event) -> None:
        if isinstance(event, Exited):
            del self._alive[event.handle], self._hung_at[event.handle], self._ranks[event.handle]
        elif isinstance(event, Progressed):
            self._report_next(event.handle)

    def _report_next(self, handle: Handle) -> None:
        fate = self._alive[handle]
        if fate.progress_every_s is not None and self.time_s + fate.progress_every_s <= self._hung_at[handle]:
            self._in(fate.progress_every_s, Progressed(handle, fate.progress))

    def cancel(self, handle: Handle, *, kill: bool) -> None:
        fate = self._alive.get(handle)
        if fate is not None and kill:
            self._in(0.0, self._end(handle, -9))
        elif fate is not None:
            self._in(fate.leaves_within_s, self._end(handle, int(fate.returncode_asked)))

    def _end(self, handle: Handle, returncode: int | None, oom_killed: bool = False, rank: int = 0) -> Exited:
        has_cause = self._ranks[handle] > 1 and returncode != ExitCode.SUCCEEDED
        return Exited(handle, returncode, oom_killed, rank if has_cause else None)

    def close(self) -> None:
        self._alive.clear()
        self._agenda.clear()

    def _in(self, seconds: float, event: Event) -> None:
        when = self.time_s + seconds
        if when < NEVER:
            heapq.heappush(self._agenda, (when, next(self._ticket), event))
