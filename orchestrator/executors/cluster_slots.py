"""The free resources of a cluster's nodes, handed out as slots, so that only attempts that fit are
submitted.

Neither the cluster nor a clock is used here. The cost of a slot hardly depends on the number of
nodes.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from orchestrator.machine.gpu import FreeGpus
from orchestrator.machine.slots import RankSlot, Slot


@dataclass(slots=True, kw_only=True)
class NodeCapacity:
    """Resources of a node for jobs, either all of them or those that are free."""

    node: str
    cores: int
    gpus: FreeGpus
    memory_mib: int
    kind: str = ""
    """Nodes of one kind have the same CPU model."""

    def fits(self, slot: RankSlot) -> bool:
        has_gpus = not slot.gpus or self.gpus.find(slot.gpus) is not None
        return has_gpus and self.cores >= slot.cores and self.memory_mib >= slot.memory_mib

    def add(self, slot: RankSlot, sign: int) -> None:
        """Give back what ``slot`` has (1), or take it (-1)."""
        self.cores += sign * slot.cores
        self.gpus.change(slot.gpu_names, slot.gpus, sign)
        self.memory_mib += sign * slot.memory_mib


class ClusterSlots:
    """See :class:`orchestrator.machine.slots.Slots`. Nodes may come and go between calls.

    A job goes to the node with the most free cores. Ranks stay together if a node has room for all
    of them. Otherwise they are spread over nodes of one CPU model: another model may compute other
    last bits of the same update.

    :param max_parallel: most jobs at once; None: as many as fit.
    :param is_spread: whether the ranks of an attempt may be on several nodes.
    """

    grows = True

    def __init__(self, max_parallel: int | None = None, *, is_spread: bool = True) -> None:
        self._is_spread = is_spread
        self._max_parallel = sys.maxsize if max_parallel is None else max_parallel
        self._total: dict[str, NodeCapacity] = {}
        self._free: dict[str, NodeCapacity] = {}
        self._by_cores: dict[int, dict[str, None]] = {}
        """Number of free cores → the nodes that have so many, in the order in which they came to have it."""
        self._paused: set[str] = set()
        self._held: dict[int, tuple[RankSlot, ...]] = {}
        """By the index of their slot."""
        self._unused: list[int] = []
        """Indices of slots that were given back."""
        self._cores = 0
        """Of all nodes, whether free or not."""

    # -- nodes

    def add(self, node: str, *, cores: int, gpus: int, memory_mib: int, kind: str = "") -> None:
        for nodes in (self._total, self._free):
            free = FreeGpus(map(str, range(gpus)))
            nodes[node] = NodeCapacity(
                node=node, cores=cores, gpus=free, memory_mib=memory_mib, kind=kind
            )
        self._by_cores.setdefault(cores, {})[node] = None
        self._cores += cores

    def remove(self, node: str) -> None:
        """Remove a node that left or is excluded; its slots are released later."""
        if node in self._free:
            self._cores -= self._total.pop(node).cores
            self._unlist(self._free.pop(node))
            self._paused.discard(node)

    def pause(self, node: str) -> None:
        if node in self._free:
            self._paused.add(node)

    def resume(self, node: str) -> None:
        self._paused.discard(node)

    @property
    def nodes(self) -> Sequence[NodeCapacity]:
        """All resources of each node, whether free or not."""
        return list(self._total.values())

    def fits_ever(
        self, cores: int, gpus: float = 0, *, memory_mib: int = 0, ranks: int = 1
    ) -> bool:
        def nodes_fitting(slot: RankSlot) -> Iterator[NodeCapacity]:
            return (node for node in self._total.values() if node.fits(slot))

        return self._place(cores, gpus, memory_mib, ranks, nodes_fitting) is not None

    # -- slots

    @property
    def jobs_at_once(self) -> int:
        return min(self._max_parallel, self._cores)

    def acquire(
        self, cores: int, gpus: float = 0, *, memory_mib: int = 0, ranks: int = 1, job_id: str = ""
    ) -> Slot | None:
        if len(self._held) >= self.jobs_at_once:
            return None
        rank_slots = self._place(cores, gpus, memory_mib, ranks, self._with_room)
        if rank_slots is None:
            return None
        index = self._unused.pop() if self._unused else len(self._held)
        rank_slots = tuple(map(self._with_gpus, rank_slots))
        self._held[index] = rank_slots
        for slot in rank_slots:
            self._change_free(slot, -1)
        return Slot(index=index, rank_slots=rank_slots)

    def has_cores(self, cores: int, *, ranks: int = 1) -> bool:
        return (
            len(self._held) < self.jobs_at_once
            and self._place(cores, 0, 0, ranks, self._with_room) is not None
        )

    def release(self, slot: Slot) -> None:
        """:raises ValueError: it is not held: released twice, or a slot of something else."""
        if slot.index not in self._held:
            raise ValueError(f"{slot} is not held")
        for rank_slot in self._held.pop(slot.index):
            self._change_free(rank_slot, 1)
        self._unused.append(slot.index)

    def resize(self, max_parallel: int) -> int:
        self._max_parallel = max_parallel
        return self.jobs_at_once

    def tick(self) -> None:
        """Does nothing: the nodes look after their own CPUs."""

    def warnings(self) -> tuple[str, ...]:
        if self._max_parallel <= self._cores or self._max_parallel == sys.maxsize:
            return ()
        return (
            f"max_parallel = {self._max_parallel}, but the cluster has {self._cores} cores now: jobs beyond that wait"
            " for further nodes.",
        )

    def _with_room(self, slot: RankSlot) -> Iterator[NodeCapacity]:
        """Nodes with room for ``slot``, those with the most free cores first."""
        enough = [cores for cores in self._by_cores if cores >= slot.cores]
        for cores in sorted(enough, reverse=True):
            for node in self._by_cores[cores]:
                if self._free[node].fits(slot) and node not in self._paused:
                    yield self._free[node]

    def _with_gpus(self, slot: RankSlot) -> RankSlot:
        """``slot`` with the names of the GPUs that it is given."""
        if not slot.gpus:
            return slot
        names = self._free[slot.node].gpus.find(slot.gpus)
        return replace(slot, gpu_names=names or ())

    def _change_free(self, slot: RankSlot, sign: int) -> None:
        free = self._free.get(slot.node)
        if free is not None:  # else the node has left
            self._unlist(free)
            free.add(slot, sign)
            self._by_cores.setdefault(free.cores, {})[free.node] = None

    def _unlist(self, free: NodeCapacity) -> None:
        nodes = self._by_cores[free.cores]
        del nodes[free.node]
        if not nodes:
            del self._by_cores[free.cores]

    def _place(
        self,
        cores: int,
        gpus: float,
        memory_mib: int,
        ranks: int,
        with_room: Callable[[RankSlot], Iterator[NodeCapacity]],
    ) -> tuple[RankSlot, ...] | None:
        """Room for an attempt: on one node, else rank by rank on nodes of one kind; None: nowhere.

        :param with_room: the nodes that have room for a slot.
        """
        together = RankSlot(node="", ranks=ranks, cores=cores, gpus=gpus, memory_mib=memory_mib)
        first = next(with_room(together), None)
        if first is not None:
            return (replace(together, node=first.node),)
        if ranks == 1 or not self._is_spread:
            return None
        placed_by_kind: dict[str, Counter[str]] = {}
        for free in with_room(together.with_ranks(1)):
            placed = placed_by_kind.setdefault(free.kind, Counter())
            while placed.total() < ranks and free.fits(together.with_ranks(placed[free.node] + 1)):
                placed[free.node] += 1
            if placed.total() == ranks:
                return tuple(
                    replace(together.with_ranks(number), node=node)
                    for node, number in placed.items()
                )
        return None
