"""Placement of ranks on several nodes: Ray reserves the room chosen by the slots, all of it at
once.

Ray's head may take its time to answer, so each request waits in a thread of its own.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.core.processes.environment_variables import (
    LOCAL_RANK_VARIABLE,
    RANK_VARIABLE,
    RANKS_SECRET_VARIABLE,
    WORLD_SIZE_VARIABLE,
)
from orchestrator.core.text import last_line
from orchestrator.executors import rank_group
from orchestrator.executors.executor import AttemptId
from orchestrator.features.ray.node_registry import RayNode, drain
from orchestrator.machine.slots import RankSlot
from orchestrator.machine.topology import MIB

RENDEZVOUS_TIMEOUT_S = 60.0
CLOSE_S = 5.0
WAIT_S = 0.5
NODE_LABEL = "ray.io/node-id"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedRanks:
    """Room reserved for every rank, and where rank 0 listens."""

    id: AttemptId
    placement_group: Any
    address: str
    port: int
    secret: str = field(default_factory=rank_group.new_secret, repr=False)

    def environment(self, rank: int, ranks: int) -> dict[str, str]:
        """Variables that tell one of ``ranks`` its number, where to meet the others, and their
        common secret.
        """
        return {
            RANK_VARIABLE: str(rank),
            WORLD_SIZE_VARIABLE: str(ranks),
            LOCAL_RANK_VARIABLE: "0",
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
            RANKS_SECRET_VARIABLE: self.secret,
        }


@dataclass(frozen=True, slots=True)
class PlacementFailed:
    id: AttemptId
    why: str


class RankPlacement:
    """:param nodes: node id → the node; None if it has left."""

    def __init__(self, nodes: Callable[[str], RayNode | None]) -> None:
        self._nodes = nodes
        self._results: queue.SimpleQueue[PlacedRanks | PlacementFailed] = queue.SimpleQueue()
        self._requested: set[AttemptId] = set()
        self._threads: list[threading.Thread] = []

    def request(self, id_: AttemptId, ranks: Sequence[RankSlot]) -> None:
        """Reserve a slot for each rank; :meth:`results` returns the result."""
        self._requested.add(id_)
        self._run_in_thread(self._reserve, id_, ranks)

    def withdraw(self, id_: AttemptId) -> None:
        """The room is no longer needed; if it is not reserved yet, it is released as soon as it
        is.
        """
        self._requested.discard(id_)

    def results(self) -> list[PlacedRanks | PlacementFailed]:
        return drain(self._results)

    def release(self, placement_group: Any) -> None:
        self._run_in_thread(_remove, placement_group)

    def close(self) -> None:
        """Wait for the threads: after ``ray.shutdown`` a request would start a new cluster."""
        self._requested.clear()
        deadline = time.monotonic() + CLOSE_S
        while any(thread.is_alive() for thread in self._threads) and time.monotonic() < deadline:
            time.sleep(0.01)

    def _run_in_thread(self, function: Callable[..., None], *arguments: Any) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        self._threads.append(
            threading.Thread(target=function, args=arguments, name="rank-placement", daemon=True)
        )
        self._threads[-1].start()

    def _reserve(self, id_: AttemptId, ranks: Sequence[RankSlot]) -> None:
        import ray
        from ray.util import placement_group

        group: Any = None
        try:
            labels = [{NODE_LABEL: rank.node} for rank in ranks]
            group = placement_group(
                [_bundle(rank) for rank in ranks], strategy="PACK", bundle_label_selector=labels
            )
            while not group.wait(WAIT_S):  # without a time limit, like a single task
                if id_ not in self._requested:
                    raise _CancelledError("its room is no longer needed")
                self._agents(ranks)
            address, port = ray.get(
                self._agents(ranks)[0].rendezvous.remote(), timeout=RENDEZVOUS_TIMEOUT_S
            )
            self._results.put(
                PlacedRanks(id=id_, placement_group=group, address=address, port=port)
            )
        except Exception as error:
            if group is not None:
                _remove(group)
            reason = last_line(str(error), type(error).__name__)
            is_cancelled = isinstance(error, _CancelledError)
            why = reason if is_cancelled else f"its ranks could not be placed: {reason}"
            self._results.put(PlacementFailed(id_, why))

    def _agents(self, ranks: Sequence[RankSlot]) -> list[Any]:
        """The node agents, by rank. :raises _CancelledError: a node has left."""
        nodes = [self._nodes(rank.node) for rank in ranks]
        if None in nodes:
            raise _CancelledError("a node chosen for it has left the cluster, or is no longer used")
        return [node.agent for node in nodes if node is not None]


class _CancelledError(Exception):
    """The room that a request waits for is not needed any more, or cannot be had; with the
    reason.
    """


def _remove(placement_group: Any) -> None:
    import ray
    from ray.util import remove_placement_group

    with contextlib.suppress(ray.exceptions.RayError, ConnectionError, TimeoutError, RuntimeError):
        if ray.is_initialized():  # else the call would start a cluster
            remove_placement_group(placement_group)


def _bundle(rank: RankSlot) -> dict[str, float]:
    resources = {"CPU": rank.cores, "GPU": rank.gpus, "memory": rank.memory_mib * MIB}
    return {name: amount for name, amount in resources.items() if amount}


def by_rank(rank_slots: Sequence[RankSlot]) -> list[RankSlot]:
    return [slot.with_ranks(1) for slot in rank_slots for _ in range(slot.ranks)]
