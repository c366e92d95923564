"""The waiting jobs, and in what order they are offered when room becomes free.

No clock and no I/O. Jobs with equal demands share one queue: when its first job does not fit, none
does. One pass therefore costs as much as there are different demands, however many jobs wait. Jobs
whose workers are started in different ways do not share one, since only forked ones wait for the
process that they are forked from.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from orchestrator.core.job import Resources

PATIENCE = 16
"""How often a job that does not fit may be overtaken; after that, jobs that need the same resources
wait too."""

LOOKAHEAD = 64
"""How many jobs with different demands may be refused in one pass."""

Shortage: TypeAlias = Literal["cores", "gpus", "memory", "machine", "disk", "template"]
"""What a job waits for: room, a machine that is large enough, of which there is none now, or the
process that its worker is forked from."""


class Demand(NamedTuple):
    """What a job needs, summed over all of its ranks."""

    cores: int
    gpus: float
    memory_mib: int
    free_disk_mib: int


class Group(NamedTuple):
    """The jobs that share one queue."""

    demand: Demand
    has_begun: bool
    start: str
    """How their workers are started."""


@dataclass(slots=True, kw_only=True, eq=False)
class _QueuedJob:
    job_id: str
    demand: Demand
    has_begun: bool
    start: str
    """As in ``resources.start``; ``"exec"`` also where it cannot be forked."""
    position: tuple[int, int]
    since: float
    overtaken: int = 0

    @property
    def is_forkable(self) -> bool:
        return self.start != "exec"

    @property
    def group(self) -> Group:
        return Group(demand=self.demand, has_begun=self.has_begun, start=self.start)


class JobQueue:
    """Waiting jobs in order of arrival, those that have begun before the others.

    Jobs whose back-off is over, and those that waited for others, come first.
    """

    def __init__(self) -> None:
        # An OrderedDict: a dict from whose front thousands of keys were removed takes long to find
        # its first.
        self._entries: OrderedDict[str, _QueuedJob] = OrderedDict()
        self._queues: dict[Group, deque[_QueuedJob]] = {}
        """Each in order of position."""
        self.free_disk_mib: Counter[int] = Counter()
        """MiB of free disk space → the number of waiting jobs that ask for so much, never 0."""
        self.forkable = 0
        """Number of waiting jobs whose workers can be forked."""
        self._delayed: list[tuple[float, tuple[int, int], _QueuedJob]] = []
        self._ahead = itertools.count(-1, -1)
        self._arrivals = itertools.count()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def next_due(self) -> float | None:
        """When the first back-off is over; None when no job is held back."""
        while self._delayed and not self._waits(self._delayed[0][2]):
            heapq.heappop(self._delayed)
        return self._delayed[0][0] if self._delayed else None

    def since(self, job_id: str) -> float:
        """When ``job_id`` began to wait."""
        return self._entries[job_id].since

    def first(self, count: int) -> list[str]:
        """The first ``count`` waiting jobs in order of arrival."""
        return list(itertools.islice(self._entries, count))

    def add(
        self,
        job_id: str,
        resources: Resources,
        *,
        now: float,
        not_before: float | None = None,
        is_ahead: bool = False,
        has_begun: bool = False,
        is_forkable: bool = False,
    ) -> None:
        """Let ``job_id`` wait from ``now`` on, at least until ``not_before`` where that is given.

        :param is_ahead: whether it comes before those that wait already, as its turn would have
            come earlier.
        :param has_begun: whether it comes before those that have not begun, such as when it is
            promoted.
        """
        demand = Demand(
            cores=resources.all_cores,
            gpus=resources.all_gpus,
            memory_mib=resources.all_memory_mib,
            free_disk_mib=resources.min_free_disk_mib,
        )
        position = 1 if has_begun else 2, next(self._arrivals)
        entry = _QueuedJob(
            job_id=job_id,
            demand=demand,
            has_begun=has_begun,
            start=resources.start if is_forkable else "exec",
            position=position,
            since=now,
        )
        self._entries[job_id] = entry
        self.forkable += is_forkable
        self.free_disk_mib[demand.free_disk_mib] += 1
        if not_before is not None and not_before > now:
            heapq.heappush(self._delayed, (not_before, entry.position, entry))
        elif is_ahead:
            self._put_ahead(entry)
        else:
            self._queues.setdefault(entry.group, deque()).append(entry)

    def remove(self, job_id: str) -> None:
        """``job_id`` no longer waits. Its entry is dropped when a pass reaches it."""
        if (entry := self._entries.pop(job_id, None)) is not None:
            self.forkable -= entry.is_forkable
            asked_mib = entry.demand.free_disk_mib
            self.free_disk_mib[asked_mib] -= 1
            if not self.free_disk_mib[asked_mib]:
                del self.free_disk_mib[asked_mib]

    def offers(self, now: float, *, at_most: int) -> Iterator[Offer]:
        """One pass over the jobs that are due, in order, until ``at_most`` have been accepted.

        A later job may overtake one that was refused, up to :data:`PATIENCE` times.
        """
        self._queue_due(now)
        refused: list[_Refused] = []
        heads = [(waiting[0].position, group) for group, waiting in self._queues.items()]
        heapq.heapify(heads)
        while heads and at_most > 0 and len(refused) < LOOKAHEAD:
            group = heapq.heappop(heads)[1]
            waiting = self._queues[group]
            entry = waiting.popleft()
            if self._waits(entry):
                if _is_held_up(entry.demand, refused):
                    waiting.appendleft(entry)
                    continue
                offer = Offer(self, entry.job_id)
                yield offer
                if offer.shortage is not None:
                    refused.append(_Refused(entry=entry, shortage=offer.shortage))
                    waiting.appendleft(entry)
                    continue
                if not offer.is_accepted:
                    raise RuntimeError(f"{offer.job_id} was neither accepted nor refused")
                at_most -= 1
                for other in refused:
                    other.entry.overtaken += _takes(entry.demand, other.shortage)
            if waiting:
                heapq.heappush(heads, (waiting[0].position, group))
        self._queues = {group: waiting for group, waiting in self._queues.items() if waiting}

    def _queue_due(self, now: float) -> None:
        """Put the jobs ahead whose back-off is over, the one that was due first at the front."""
        due = []
        while (when := self.next_due) is not None and when <= now:
            _, _, entry = heapq.heappop(self._delayed)
            due.append(entry)
        for entry in reversed(due):
            self._put_ahead(entry)

    def _put_ahead(self, entry: _QueuedJob) -> None:
        entry.position = 0, next(self._ahead)
        self._queues.setdefault(entry.group, deque()).appendleft(entry)

    def _waits(self, entry: _QueuedJob) -> bool:
        return self._entries.get(entry.job_id) is entry


class Offer:
    """A job that is offered room: it is to be accepted or refused before the next one is asked
    for.
    """

    def __init__(self, queue: JobQueue, job_id: str) -> None:
        self.job_id = job_id
        self.is_accepted = False
        self.shortage: Shortage | None = None
        """What it was refused for."""
        self._queue = queue

    def accept(self) -> None:
        """It was launched, or has failed: it waits no longer."""
        self.is_accepted = True
        self._queue.remove(self.job_id)

    def refuse(self, shortage: Shortage) -> None:
        """There is no room for it; it continues to wait."""
        self.shortage = shortage


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refused:
    """A job that was offered room in this pass, and did not fit."""

    entry: _QueuedJob
    shortage: Shortage


def _is_held_up(demand: Demand, refused: Iterable[_Refused]) -> bool:
    """Whether a job that was overtaken often enough waits for what a job of this demand would
    take.
    """
    return any(
        other.entry.overtaken >= PATIENCE and _takes(demand, other.shortage) for other in refused
    )


def _takes(demand: Demand, shortage: Shortage) -> bool:
    """Whether a job with this demand takes what another one lacks."""
    if shortage in ("machine", "disk", "template"):  # no job takes these from another one
        return False
    return shortage != "gpus" or demand.gpus > 0
