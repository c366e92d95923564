"""Ranks over several nodes: room for all of them at once, and a place to meet.

Ray's head is asked for both, which may take its time: each request waits in a thread of its own.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from orchestrator.executors.base import Handle
from orchestrator.slots import Place

MEETING_PATIENCE_S = 60.0
WAIT_S = 0.5
"""At a time: then it is looked at whether the room is still wanted."""
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """Room for every rank, and where rank 0 listens."""

    handle: Handle
    group: Any
    nodes: tuple[str, ...]
    """By rank."""
    address: str
    port: int


@dataclass(frozen=True, slots=True)
class Refused:
    handle: Handle
    why: str


Answer: TypeAlias = Reserved | Refused


class Groups:
    """:param keeper: of a node; None when it has left."""

    def __init__(self, keeper: Callable[[str], Any]) -> None:
        self._keeper = keeper
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._wanted: set[Handle] = set()

    def ask(self, handle: Handle, ranks: int, each: Place) -> None:
        """Room for so many ranks, each as large as ``each``; :meth:`answers` has it once it is there."""
        self._wanted.add(handle)
        threading.Thread(target=self._reserve, args=(handle, ranks, each), name="group", daemon=True).start()

    def forget(self, handle: Handle) -> None:
        """It needs no room any more; what it has not got yet is given back as soon as it is there."""
        self._wanted.discard(handle)

    def answers(self) -> list[Answer]:
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._answers.get_nowait())
        return found

    def give_back(self, group: Any) -> None:
        """What was reserved."""
        from ray.util import remove_placement_group

        threading.Thread(target=remove_placement_group, args=(group,), name="group", daemon=True).start()

    def _reserve(self, handle: Handle, ranks: int, each: Place) -> None:
        import ray
        from ray.util import placement_group, placement_group_table

        bundle = {"CPU": each.cores, "GPU": each.gpus, "memory": each.memory_mib * MIB}
        group: Any = None
        try:
            bundles = [{name: amount for name, amount in bundle.items() if amount} for _ in range(ranks)]
            group = placement_group(bundles, strategy="PACK")
            while not group.wait(WAIT_S) and handle in self._wanted:  # as long as it takes, like a single task
                continue
            if handle not in self._wanted:
                self.give_back(group)
                self._answers.put(Refused(handle, "its room is no longer wanted"))
                return
            where: dict[int, str] = placement_group_table(group)["bundles_to_node_id"]
            nodes = tuple(where[rank] for rank in range(ranks))
            keepers = [self._keeper(node) for node in nodes]
            if None in keepers:
                self.give_back(group)
                self._answers.put(Refused(handle, "a node that was to run it has left the cluster, or is not used"))
                return
            address, port = ray.get(keepers[0].meeting_point.remote(), timeout=MEETING_PATIENCE_S)
        except Exception as error:
            if group is not None:
                self.give_back(group)
            self._answers.put(Refused(handle, f"its ranks could not be placed: {type(error).__name__}: {error}"))
            return
        self._answers.put(Reserved(handle=handle, group=group, nodes=nodes, address=address, port=port))


def each_of(places: Sequence[Place], ranks: int) -> Place:
    """What one rank of an attempt over ``places`` needs."""
    return Place(
        node="",
        ranks=1,
        cores=sum(place.cores for place in places) // ranks,
        gpus=sum(place.gpus for place in places) // ranks,
        memory_mib=sum(place.memory_mib for place in places) // ranks,
    )


def places_of(nodes: Sequence[str], each: Place) -> tuple[Place, ...]:
    """By node, in order of their first ranks."""
    return tuple(
        Place(
            node=node,
            ranks=count,
            cores=each.cores * count,
            gpus=each.gpus * count,
            memory_mib=each.memory_mib * count,
        )
        for node in dict.fromkeys(nodes)
        if (count := nodes.count(node))
    )
