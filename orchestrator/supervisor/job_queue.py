"""The jobs that wait, and which of them start when something becomes free.

No clock and no I/O. Jobs that ask for the same stand in one queue: when the first of them does not fit,
none of them does. A look at all that wait therefore costs as much as there are different demands,
however many jobs there are.
"""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from orchestrator.core.job import Resources

PATIENCE = 16
"""How often a job that does not fit may be overtaken before those that would take what it lacks wait too."""

LOOKAHEAD = 64
"""How many different demands are tried in vain at a time."""

Lack: TypeAlias = Literal["cores", "gpus", "memory"]
"""What a job that does not fit waits for."""

Demand: TypeAlias = tuple[int, int, int]
"""Cores, GPUs, MiB, over all ranks."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Entry:
    job_id: str
    demand: Demand
    place: int
    """Order among all that wait."""
    since: float
    overtaken: int = 0


class JobQueue:
    """Jobs in order of arrival; those whose back-off is over go first."""

    def __init__(self) -> None:
        # Linked: a dict from whose front thousands were taken is searched for its first.
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._queues: dict[Demand, deque[_Entry]] = {}
        self._delayed: list[tuple[float, int, _Entry]] = []
        self._ahead = itertools.count(-1, -1)
        self._behind = itertools.count()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def next_due(self) -> float | None:
        """When the first back-off is over; None when nothing is held back."""
        while self._delayed and not self._waits(self._delayed[0][2]):
            heapq.heappop(self._delayed)
        return self._delayed[0][0] if self._delayed else None

    def since(self, job_id: str) -> float:
        """When ``job_id`` began to wait."""
        return self._entries[job_id].since

    def first(self, count: int) -> list[str]:
        """The first ``count`` of all that wait, in order of arrival."""
        return list(itertools.islice(self._entries, count))

    def add(self, job_id: str, resources: Resources, *, now: float, not_before: float | None = None) -> None:
        """Wait from ``now`` on, and with ``not_before`` at least until then."""
        demand = resources.all_cores, resources.all_gpus, resources.all_memory_mib
        entry = _Entry(job_id=job_id, demand=demand, place=next(self._behind), since=now)
        self._entries[job_id] = entry
        if not_before is not None and not_before > now:
            heapq.heappush(self._delayed, (not_before, entry.place, entry))
        else:
            self._queues.setdefault(demand, deque()).append(entry)

    def remove(self, job_id: str) -> None:
        """``job_id`` no longer waits. Its place is cleared when the line gets there."""
        self._entries.pop(job_id, None)

    def start(self, now: float, try_start: Callable[[str], Lack | None], *, at_most: int) -> None:
        """Offer ``try_start`` the jobs that are due, in order; those that started wait no longer.

        ``try_start`` answers what the job lacks, or None when it started. A later job may overtake one that
        does not fit, up to :data:`PATIENCE` times.
        """
        self._take_due(now)
        heads = [(queue[0].place, demand) for demand, queue in self._queues.items()]
        heapq.heapify(heads)
        refused: list[tuple[_Entry, Lack]] = []
        while heads and at_most and len(refused) < LOOKAHEAD:
            demand = heapq.heappop(heads)[1]
            queue = self._queues[demand]
            entry = queue.popleft()
            if self._waits(entry):
                if any(_is_in_the_way(demand, lack) and one.overtaken >= PATIENCE for one, lack in refused):
                    queue.appendleft(entry)
                    continue
                lack = try_start(entry.job_id)
                if lack is not None:
                    queue.appendleft(entry)
                    refused.append((entry, lack))
                    continue
                at_most -= 1
                if self._waits(entry):  # otherwise it waits anew already, having failed at once
                    del self._entries[entry.job_id]
                for one, lacks in refused:
                    one.overtaken += _is_in_the_way(demand, lacks)
            if queue:
                heapq.heappush(heads, (queue[0].place, demand))
        self._queues = {demand: queue for demand, queue in self._queues.items() if queue}

    def _take_due(self, now: float) -> None:
        due = []
        while (first := self.next_due) is not None and first <= now:
            due.append(heapq.heappop(self._delayed)[2])
        for entry in reversed(due):
            entry.place = next(self._ahead)
            self._queues.setdefault(entry.demand, deque()).appendleft(entry)

    def _waits(self, entry: _Entry) -> bool:
        return self._entries.get(entry.job_id) is entry


def _is_in_the_way(demand: Demand, lack: Lack) -> bool:
    """Whether a job of this demand takes what another lacks."""
    return lack != "gpus" or demand[1] > 0
