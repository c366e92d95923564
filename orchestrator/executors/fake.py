"""An executor without processes, on a clock of its own: for the supervisor's tests and for simulation.

``behave`` says what becomes of each launch; time passes only in :meth:`FakeExecutor.poll`.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from orchestrator.contract import ExitCode, Progress
from orchestrator.executors.base import Event, Exited, Handle, Launch, Progressed


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """What becomes of one launch."""

    after_s: float = 1.0
    """Simulated seconds until it ends by itself; ``float("inf")`` for never."""
    returncode: int | None = 0
    progress_every_s: float | None = None
    leaves_on_request: bool = True


@dataclass(slots=True, kw_only=True)
class FakeExecutor:
    """See :class:`orchestrator.executors.base.Executor`. ``now`` is the clock to give the supervisor."""

    behave: Callable[[Launch], Fate] = lambda launch: Fate()
    launches: list[Launch] = field(default_factory=list)
    time_s: float = 0.0
    _agenda: list[tuple[float, int, Handle, Event]] = field(default_factory=list)
    _alive: dict[Handle, Fate] = field(default_factory=dict)
    _ticket: itertools.count[int] = field(default_factory=itertools.count)

    def now(self) -> float:
        return self.time_s

    def submit(self, launch: Launch) -> Handle:
        fate = self.behave(launch)
        self.launches.append(launch)
        handle = Handle(launch.job_id, launch.number)
        self._alive[handle] = fate
        if fate.after_s != float("inf"):
            self._at(self.time_s + fate.after_s, handle, Exited(handle, fate.returncode))
        if fate.progress_every_s is not None:
            self._at(self.time_s + fate.progress_every_s, handle, Progressed(handle, Progress(phase="training")))
        return handle

    def poll(self, timeout_s: float) -> Sequence[Event]:
        until = self.time_s + timeout_s
        while self._agenda and self._agenda[0][0] <= until:
            when = self._agenda[0][0]
            events: list[Event] = []
            while self._agenda and self._agenda[0][0] == when:
                _, _, handle, event = heapq.heappop(self._agenda)
                if handle in self._alive:
                    events.append(self._happen(when, handle, event))
            if events:
                self.time_s = max(self.time_s, when)
                return events
        self.time_s = until
        return []

    def _happen(self, when: float, handle: Handle, event: Event) -> Event:
        every = self._alive[handle].progress_every_s
        if isinstance(event, Exited):
            del self._alive[handle]
        elif every is not None:
            self._at(when + every, handle, event)
        return event

    def cancel(self, handle: Handle, *, kill: bool) -> None:
        fate = self._alive.get(handle)
        if fate is None or not (kill or fate.leaves_on_request):
            return
        returncode = -9 if kill else int(ExitCode.INTERRUPTED)
        self._at(self.time_s, handle, Exited(handle, returncode))

    def close(self) -> None:
        self._alive.clear()
        self._agenda.clear()

    def _at(self, when: float, handle: Handle, event: Event) -> None:
        heapq.heappush(self._agenda, (when, next(self._ticket), handle, event))
