"""The attempts that run, what is summed over them, and when each has to be looked at.

Nothing here costs more because many run: what a turn of the loop needs of all of them is kept up to date by
each event, and a look at the limits is a look at those whose moment has come.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from orchestrator.core.messages import Progress
from orchestrator.executors.base import Handle
from orchestrator.supervisor import retry_policy
from orchestrator.supervisor.events import Live

MILLI = 1000
"""Rates are summed as whole thousandths: what is taken away again leaves nothing behind, as floats would."""


@dataclass(slots=True, kw_only=True)
class ActiveAttempts:
    """At most one attempt a job."""

    promised_mib: int = 0
    """What all of them may still claim of the memory that they asked for."""
    steps_to_go: int = 0
    _rate: int = 0
    _busy: int = 0
    _of: dict[str, Live] = field(default_factory=dict)
    """By job."""
    _looks: list[tuple[float, int, Live]] = field(default_factory=list)
    """A heap. An entry counts while its attempt runs and is to be looked at at that very moment."""
    _ticket: Iterator[int] = field(default_factory=itertools.count)

    def __len__(self) -> int:
        return len(self._of)

    def __iter__(self) -> Iterator[Live]:
        return iter(self._of.values())

    @property
    def all(self) -> Collection[Live]:
        """Every one, in order of launch; not a copy."""
        return self._of.values()

    @property
    def env_steps_per_s(self) -> float:
        return self._rate / MILLI

    @property
    def cores_busy(self) -> float:
        return self._busy / MILLI

    def of(self, job_id: str) -> Live | None:
        return self._of.get(job_id)

    def get(self, handle: Handle) -> Live | None:
        """None for strangers, and for what is over."""
        live = self._of.get(handle.job_id)
        return live if live is not None and live.handle == handle else None

    def add(self, live: Live) -> None:
        self._of[live.job.job_id] = live
        self._count(live, 1)

    def remove(self, live: Live) -> None:
        del self._of[live.job.job_id]
        self._count(live, -1)

    def progressed(self, live: Live, progress: Progress, now: float) -> None:
        self._count(live, -1)
        live.progress, live.last_progress = progress, now
        self._count(live, 1)

    def sampled(self, live: Live, rss_mib: float) -> None:
        self._count(live, -1)
        live.rss_mib, live.max_rss_mib = rss_mib, max(live.max_rss_mib, rss_mib)
        self._count(live, 1)

    def _count(self, live: Live, sign: int) -> None:
        said = live.progress
        steps = said.env_steps if said is not None else 0
        self.promised_mib += sign * retry_policy.promised_mib(live.job.resources, live.rss_mib)
        self.steps_to_go += sign * max(0, live.job.spec.total_timesteps - steps)
        if said is not None:
            self._rate += sign * round(MILLI * (said.env_steps_per_s or 0.0))
            self._busy += sign * round(MILLI * (said.cpu_share or 0.0))

    # -- when to look at whom

    def look_at(self, live: Live, when: float) -> None:
        """See to it that ``live`` is :meth:`due` at ``when``, if not before."""
        if when < live.look_at:
            live.look_at = when
            heapq.heappush(self._looks, (when, next(self._ticket), live))

    def due(self, now: float) -> list[Live]:
        """Those whose moment has come. Each is looked at no more, until :meth:`look_at` says so again."""
        found = []
        while self._looks and self._looks[0][0] <= now:
            when, _, live = heapq.heappop(self._looks)
            if live.look_at == when and self._of.get(live.job.job_id) is live:
                live.look_at = math.inf
                found.append(live)
        return found
