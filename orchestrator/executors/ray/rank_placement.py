"""Ranks over several nodes: the room that the pool has chosen, for all of them at once, and a place to meet.

Ray's head is asked for both, which may take its time: each request waits in a thread of its own.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from orchestrator.core.environment import LOCAL_RANK_VARIABLE, RANK_VARIABLE, RANKS_SECRET_VARIABLE, WORLD_SIZE_VARIABLE
from orchestrator.core.text import last_line
from orchestrator.executors import rank_group
from orchestrator.executors.base import Handle
from orchestrator.executors.ray.node_registry import drained
from orchestrator.machine.slots import RankSlot

MEETING_PATIENCE_S = 60.0
CLOSE_S = 5.0
WAIT_S = 0.5
"""At a time: then it is looked at whether the room is still wanted."""
NODE_LABEL = "ray.io/node-id"
"""Ray gives it to every node."""
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """NodeCapacity for every rank, and where rank 0 listens."""

    handle: Handle
    group: Any
    address: str
    port: int
    secret: str = field(default_factory=rank_group.new_secret, repr=False)

    def environment(self, rank: int, ranks: int) -> dict[str, str]:
        """What tells one of ``ranks`` who it is, where the others are, and how to know them."""
        return {
            RANK_VARIABLE: str(rank),
            WORLD_SIZE_VARIABLE: str(ranks),
            LOCAL_RANK_VARIABLE: "0",
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
            RANKS_SECRET_VARIABLE: self.secret,
        }


@dataclass(frozen=True, slots=True)
class Refused:
    handle: Handle
    why: str


Answer: TypeAlias = Reserved | Refused


class RankPlacement:
    """:param keeper: of a node; None when it has left."""

    def __init__(self, keeper: Callable[[str], Any]) -> None:
        self._keeper = keeper
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._wanted: set[Handle] = set()
        self._threads: list[threading.Thread] = []

    def ask(self, handle: Handle, ranks: Sequence[RankSlot]) -> None:
        """NodeCapacity for so many ranks at these rank_slots, by rank; :meth:`answers` has it once it is there."""
        self._wanted.add(handle)
        self._begin(self._reserve, handle, ranks)

    def forget(self, handle: Handle) -> None:
        """It needs no room any more; what it has not got yet is given back as soon as it is there."""
        self._wanted.discard(handle)

    def answers(self) -> list[Answer]:
        return drained(self._answers)

    def give_back(self, group: Any) -> None:
        """What was reserved."""
        self._begin(_remove, group)

    def close(self) -> None:
        """Nothing is waited for any more. Ray must not be left before: asked without a cluster it starts one."""
        self._wanted.clear()
        deadline = time.monotonic() + CLOSE_S
        while any(thread.is_alive() for thread in self._threads) and time.monotonic() < deadline:
            time.sleep(0.01)

    def _begin(self, do: Callable[..., None], *arguments: Any) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        self._threads.append(threading.Thread(target=do, args=arguments, name="group", daemon=True))
        self._threads[-1].start()

    def _reserve(self, handle: Handle, ranks: Sequence[RankSlot]) -> None:
        import ray
        from ray.util import placement_group

        group: Any = None
        try:
            group = placement_group(
                [_bundle(rank) for rank in ranks],
                strategy="PACK",
                bundle_label_selector=[{NODE_LABEL: rank.node} for rank in ranks],
            )
            while not group.wait(WAIT_S):  # as long as it takes, like a single task
                if handle not in self._wanted:
                    raise _NotToBe("its room is no longer wanted")
                self._used(ranks)
            address, port = ray.get(self._used(ranks)[0].meeting_point.remote(), timeout=MEETING_PATIENCE_S)
        except _NotToBe as error:
            self._refuse(handle, group, str(error))
        except Exception as error:
            said = last_line(str(error), type(error).__name__)
            self._refuse(handle, group, f"its ranks could not be placed: {said}")
        else:
            self._answers.put(Reserved(handle=handle, group=group, address=address, port=port))

    def _used(self, ranks: Sequence[RankSlot]) -> list[Any]:
        """The keepers by rank. :raises _NotToBe: a node is gone."""
        keepers = [self._keeper(rank.node) for rank in ranks]
        if None in keepers:
            raise _NotToBe("a node that was to run it has left the cluster, or is not used any more")
        return keepers

    def _refuse(self, handle: Handle, group: Any, why: str) -> None:
        if group is not None:
            _remove(group)
        self._answers.put(Refused(handle, why))


class _NotToBe(Exception):
    """Nothing will come of the room that is waited for; with the reason."""


def _remove(group: Any) -> None:
    import ray
    from ray.util import remove_placement_group

    with contextlib.suppress(ray.exceptions.RayError, ConnectionError, TimeoutError, RuntimeError):
        if ray.is_initialized():  # else it would start a cluster
            remove_placement_group(group)


def _bundle(rank: RankSlot) -> dict[str, float]:
    needs = {"CPU": rank.cores, "GPU": rank.gpus, "memory": rank.memory_mib * MIB}
    return {name: amount for name, amount in needs.items() if amount}


def by_rank(rank_slots: Sequence[RankSlot]) -> list[RankSlot]:
    """What each rank of an attempt over ``rank_slots`` has."""
    return [
        replace(
            place,
            ranks=1,
            cores=place.cores // place.ranks,
            gpus=place.gpus // place.ranks,
            memory_mib=place.memory_mib // place.ranks,
        )
        for place in rank_slots
        for _ in range(place.ranks)
    ]
