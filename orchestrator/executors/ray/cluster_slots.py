"""The room on the nodes of a cluster, handed out as slots, so that only what a node has room for is submitted.

No Ray and no clock here. A slot costs about the same however many nodes there are.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from orchestrator.machine.slots import RankSlot, Slot


@dataclass(slots=True, kw_only=True)
class NodeCapacity:
    """What is free on a node; to begin with, all it has for jobs."""

    node: str
    cores: int
    gpus: int
    memory_mib: int
    kind: str = ""
    """Of its CPUs."""

    def has(self, place: RankSlot) -> bool:
        return self.cores >= place.cores and self.gpus >= place.gpus and self.memory_mib >= place.memory_mib

    def take(self, place: RankSlot, sign: int = 1) -> None:
        self.cores -= sign * place.cores
        self.gpus -= sign * place.gpus
        self.memory_mib -= sign * place.memory_mib


class ClusterSlots:
    """See :class:`orchestrator.machine.slots.Slots`. Nodes come and go between calls.

    A job goes to the node with the most free cores. Ranks stay together where a node has room for all of them, and
    otherwise on nodes of one kind: on another CPU the same update may differ in its last bits.

    :param max_parallel: jobs at once; None: as many as there is room for.
    """

    grows = True

    def __init__(self, max_parallel: int | None = None) -> None:
        self._max_parallel = sys.maxsize if max_parallel is None else max_parallel
        self._whole: dict[str, NodeCapacity] = {}
        self._free: dict[str, NodeCapacity] = {}
        self._by_cores: dict[int, dict[str, None]] = {}
        """Nodes by the number of their free cores, in the order in which they came to have it."""
        self._paused: set[str] = set()
        self._held: dict[int, tuple[RankSlot, ...]] = {}
        self._unused: list[int] = []
        """Indices of slots that were given back."""
        self._cores = 0

    # -- nodes

    def add(self, node: str, *, cores: int, gpus: int, memory_mib: int, kind: str = "") -> None:
        """:param node: not there yet."""
        self._whole[node] = NodeCapacity(node=node, cores=cores, gpus=gpus, memory_mib=memory_mib, kind=kind)
        self._free[node] = replace(self._whole[node])
        self._by_cores.setdefault(cores, {})[node] = None
        self._cores += cores

    def remove(self, node: str) -> None:
        """The node is gone, or no longer fit; slots on it are given back in their own time."""
        if node in self._free:
            self._cores -= self._whole.pop(node).cores
            self._unlist(self._free.pop(node))
            self._paused.discard(node)

    def pause(self, node: str) -> None:
        """Nothing more is handed out there until :meth:`resume`."""
        if node in self._free:
            self._paused.add(node)

    def resume(self, node: str) -> None:
        self._paused.discard(node)

    @property
    def nodes(self) -> Sequence[NodeCapacity]:
        """All that each node has for jobs, whether free or not."""
        return list(self._whole.values())

    def fits_ever(self, cores: int, gpus: int = 0, *, memory_mib: int = 0, ranks: int = 1) -> bool:
        """Whether there would be room if nothing ran."""
        return _places(cores, gpus, memory_mib, ranks, lambda place: _fitting(self._whole.values(), place)) is not None

    # -- slots

    @property
    def lanes(self) -> int:
        return min(self._max_parallel, self._cores)

    def acquire(self, cores: int, gpus: int = 0, *, memory_mib: int = 0, ranks: int = 1) -> Slot | None:
        if len(self._held) >= self.lanes:
            return None
        rank_slots = _places(cores, gpus, memory_mib, ranks, self._roomy)
        if rank_slots is None:
            return None
        index = self._unused.pop() if self._unused else len(self._held)
        self._held[index] = rank_slots
        for place in rank_slots:
            self._take(place)
        return Slot(index=index, rank_slots=rank_slots)

    def release(self, slot: Slot) -> None:
        """:raises ValueError: when it is not held: released twice, or from another pool."""
        if slot.index not in self._held:
            raise ValueError(f"{slot} is not held")
        for place in self._held.pop(slot.index):
            self._take(place, -1)
        self._unused.append(slot.index)

    def warnings(self) -> tuple[str, ...]:
        if self._max_parallel <= self._cores or self._max_parallel == sys.maxsize:
            return ()
        return (
            f"max_parallel = {self._max_parallel}, but the cluster has {self._cores} cores now: jobs beyond that wait"
            " for nodes that join.",
        )

    def close(self) -> None:
        """Nothing is claimed outside of this pool."""

    def _roomy(self, place: RankSlot) -> Iterator[NodeCapacity]:
        """Nodes with room for ``place``, those with the most free cores first."""
        for cores in sorted((cores for cores in self._by_cores if cores >= place.cores), reverse=True):
            for node in self._by_cores[cores]:
                if self._free[node].has(place) and node not in self._paused:
                    yield self._free[node]

    def _take(self, place: RankSlot, sign: int = 1) -> None:
        room = self._free.get(place.node)
        if room is not None:  # else the node is gone
            self._unlist(room)
            room.take(place, sign)
            self._by_cores.setdefault(room.cores, {})[room.node] = None

    def _unlist(self, room: NodeCapacity) -> None:
        alike = self._by_cores[room.cores]
        del alike[room.node]
        if not alike:
            del self._by_cores[room.cores]


def _fitting(rooms: Iterable[NodeCapacity], place: RankSlot) -> Iterator[NodeCapacity]:
    return (room for room in rooms if room.has(place))


def _places(
    cores: int, gpus: int, memory_mib: int, ranks: int, roomy: Callable[[RankSlot], Iterator[NodeCapacity]]
) -> tuple[RankSlot, ...] | None:
    """Where so much fits: on one node, else rank by rank on nodes of one kind; None: nowhere.

    :param roomy: the nodes that have room for a place.
    """
    all_here = RankSlot(node="", ranks=ranks, cores=cores, gpus=gpus, memory_mib=memory_mib)
    one = next(roomy(all_here), None)
    if one is not None:
        return (_at(one.node, all_here),)
    if ranks == 1:
        return None
    each = RankSlot(node="", ranks=1, cores=cores // ranks, gpus=gpus // ranks, memory_mib=memory_mib // ranks)
    ranks_of_kind: dict[str, Counter[str]] = {}
    for room in roomy(each):
        ranks_of = ranks_of_kind.setdefault(room.kind, Counter())
        while ranks_of.total() < ranks and room.has(_times(each, ranks_of[room.node] + 1)):
            ranks_of[room.node] += 1
        if ranks_of.total() == ranks:
            return tuple(_at(node, _times(each, count)) for node, count in ranks_of.items())
    return None


def _times(one: RankSlot, ranks: int) -> RankSlot:
    return RankSlot(
        node=one.node, ranks=ranks, cores=one.cores * ranks, gpus=one.gpus * ranks, memory_mib=one.memory_mib * ranks
    )


def _at(node: str, place: RankSlot) -> RankSlot:
    return RankSlot(node=node, ranks=place.ranks, cores=place.cores, gpus=place.gpus, memory_mib=place.memory_mib)
