"""The nodes of a cluster as they come and go, each with its keeper, looked after in a thread of its own.

What asks Ray's head for something may wait as long as the head is out of reach: so the supervisor's thread never does.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import queue
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from orchestrator.core.text import last_line
from orchestrator.executors.ray import node_versions
from orchestrator.executors.ray.connection import Connection
from orchestrator.executors.ray.driver_directory import DriverDirectory
from orchestrator.executors.ray.liveness import HeadLiveness
from orchestrator.executors.ray.node_agent import NAME_PREFIX, NAMESPACE, NodeAgent, NodeFacts
from orchestrator.executors.ray.transport import Transport

LOOK_EVERY_S = 2.0
URGENT_S = 0.05
"""For answers that somebody waits for."""
CREATION = "creation task"
"""Ray says so of an actor that could not be made, where it was tried."""
DOUBT_S = 2.0
"""Until one that is doubted is asked: of a node that dies, what has not ended yet would still answer."""
AGAIN_S = 60.0
"""Until a keeper that could not start is tried anew."""
PING_EVERY_S = 20.0
"""Whether a keeper still lives. (Not left to Ray: where memory runs out it ends first what it can restart.)"""
CLOSE_S = 5.0
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RayNode:
    """A node that jobs may run on, or that differs too much for it."""

    node_id: str
    name: str
    """Of the machine; with a part of ``node_id`` where it has several nodes."""
    cores: int
    gpus: int
    memory_mib: int
    """As Ray counts them: what it lets in at once."""
    facts: NodeFacts
    keeper: Any
    differences: node_versions.Differences


@dataclass(frozen=True, slots=True)
class NodeJoined:
    node: RayNode


@dataclass(frozen=True, slots=True)
class NodeLeft:
    node_id: str


@dataclass(frozen=True, slots=True)
class NodeFailed:
    """A node whose keeper could not start or answer."""

    node_id: str
    name: str
    why: str
    is_silent: bool = False
    """It did not come so far as to fail: as a rule the node is dead, and its head does not know yet."""


NodeChange: TypeAlias = NodeJoined | NodeLeft | NodeFailed


@dataclass(slots=True, kw_only=True)
class _Known:
    row: Mapping[str, Any]
    keeper: Any
    asked: Any = None
    """Reference to the answer; None once it was had."""
    ask_at: float = 0.0
    """When it is asked again."""
    is_in: bool = False
    """Whether others know of the node."""
    is_doubted: bool = False
    """Whether others want to hear that it still answers."""
    has_failed: bool = False
    """Whether its last keeper could not be had; others know."""


class NodeRegistry:
    """Of the cluster that ``connection`` leads to."""

    def __init__(self, connection: Connection, home: DriverDirectory, transport: Transport) -> None:
        self._home = home
        self._session = secrets.token_hex(6)
        self._transport = transport
        self.head = HeadLiveness(connection.head)
        self._head_address = connection.head
        self.here = connection.node
        """The node that this process is on."""
        self._known: dict[str, _Known] = {}
        self._changes: queue.SimpleQueue[NodeChange] = queue.SimpleQueue()
        self._settled = threading.Event()
        self._doubted: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._starts = itertools.count()
        self._wake, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="nodes", daemon=True)
        self._thread.start()

    def changes(self) -> list[NodeChange]:
        """Since the last call."""
        return drained(self._changes)

    def doubt(self, node_id: str) -> None:
        """Ask the node soon whether it is still there; :meth:`changes` has the answer, also if it is the old one."""
        self._doubted.put(node_id)
        self._wake.set()

    def settle(self, timeout_s: float) -> bool:
        """Wait until every node that was there at the beginning has answered. False: one has not."""
        return self._settled.wait(timeout_s)

    def close(self) -> None:
        """Keepers go, with what they have on their nodes."""
        self._over.set()
        self._wake.set()
        self.head.close()
        if self.head.answers:
            self._thread.join(CLOSE_S)
            _closed([known.keeper for known in self._known.values()])

    def _watch(self) -> None:
        look_at = -math.inf
        while not self._over.is_set():
            if self.head.answers:
                with contextlib.suppress(*_unreachable()):  # asked again next time
                    if time.monotonic() >= look_at:
                        self._look()
                        look_at = time.monotonic() + LOOK_EVERY_S
                    self._listen()
            asked = [known for known in self._known.values() if known.asked is not None]
            if look_at > 0 and not asked:
                self._settled.set()
            is_urgent = not self._settled.is_set() or any(known.is_doubted for known in asked)
            self._wake.wait(URGENT_S if is_urgent else LOOK_EVERY_S)
            self._wake.clear()

    def _look(self) -> None:
        """Who has come and gone; and whom to ask anew."""
        import ray

        rows = {row["NodeID"]: row for row in ray.nodes() if row["Alive"]}
        for node_id in [known for known in self._known if known not in rows]:
            del self._known[node_id]
            self._changes.put(NodeLeft(node_id))
        for node_id, row in rows.items():
            if node_id not in self._known:
                self._known[node_id] = _Known(row=row, keeper=self._started_keeper(node_id, row))
        for node_id, known in self._known.items():
            if known.asked is None and time.monotonic() >= known.ask_at:
                if known.has_failed:
                    known.keeper = self._started_keeper(node_id, known.row)
                known.asked = known.keeper.facts.remote()

    def _listen(self) -> None:
        import ray

        for node_id in drained(self._doubted):
            if (doubted := self._known.get(node_id)) is not None and doubted.is_in:
                doubted.is_doubted, doubted.asked, doubted.ask_at = True, None, time.monotonic() + DOUBT_S
        for node_id, known in self._known.items():
            if known.asked is not None and ray.wait([known.asked], timeout=0)[0]:
                self._hear(node_id, known)

    def _hear(self, node_id: str, known: _Known) -> None:
        """The answer of a keeper. In the place of one that has died another is started, now or later."""
        change = self._answered(known)
        known.asked, known.ask_at = None, time.monotonic() + PING_EVERY_S
        match change:
            case NodeFailed() if known.is_in:
                known.keeper, known.is_in = self._started_keeper(node_id, known.row), False
                known.asked = known.keeper.facts.remote()
            case NodeFailed():
                known.ask_at = time.monotonic() + AGAIN_S
                if not known.has_failed:
                    self._changes.put(change)
                known.has_failed, known.is_doubted = True, False
            case NodeJoined():
                if not known.is_in or known.is_doubted:
                    self._changes.put(change)
                known.is_in, known.is_doubted, known.has_failed = True, False, False

    def _started_keeper(self, node_id: str, row: Mapping[str, Any]) -> Any:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        strategy = NodeAffinitySchedulingStrategy(node_id, soft=False)
        options = {
            "num_cpus": 0,
            "name": f"{NAME_PREFIX}/{self._session}.{next(self._starts)}/{node_id}",  # a dead one's is not free at once
            "namespace": NAMESPACE,
            "scheduling_strategy": strategy,
        }
        cpus = int(row["Resources"].get("CPU", 0))
        return (
            ray.remote(NodeAgent)
            .options(**options)
            .remote(self._session, node_id, cpus, self._home, self._transport, self._head_address)
        )

    def _answered(self, known: _Known) -> NodeChange:
        import ray

        row = known.row
        host = str(row["NodeManagerHostname"])
        try:
            facts: NodeFacts = ray.get(known.asked)
            differences = node_versions.differences(node_versions.found(), facts.versions)
        except Exception as error:  # of another version of this package: whatever its pickles lead to
            is_silent = isinstance(error, ray.exceptions.RayActorError) and CREATION not in str(error)
            return NodeFailed(row["NodeID"], host, _why(str(error)), is_silent)
        hosts = [str(other.row["NodeManagerHostname"]) for other in self._known.values()]
        resources = row["Resources"]
        return NodeJoined(
            RayNode(
                node_id=row["NodeID"],
                name=host if hosts.count(host) == 1 else f"{host}/{row['NodeID'][:6]}",
                cores=int(resources.get("CPU", 0)),
                gpus=int(resources.get("GPU", 0)),
                memory_mib=int(resources.get("memory", 0)) // MIB,
                facts=facts,
                keeper=known.keeper,
                differences=differences,
            )
        )


Item = TypeVar("Item")


def drained(waiting: queue.SimpleQueue[Item]) -> list[Item]:
    found = []
    with contextlib.suppress(queue.Empty):
        while True:
            found.append(waiting.get_nowait())
    return found


def _why(error: str) -> str:
    """In one line, why a keeper cannot be had: of a traceback, its last one."""
    if "No module named 'orchestrator'" in error:
        return "this package is not installed there"
    last = last_line(error, "it does not say why")[-300:]
    if "orchestrator." in last or "__init__()" in last:
        return f"another version of this package is installed there ({last})"
    return last


def _unreachable() -> tuple[type[Exception], ...]:
    """What Ray raises when its head has gone between two calls."""
    import ray

    return ray.exceptions.RayError, ConnectionError, TimeoutError, RuntimeError


def _closed(keepers: Sequence[Any]) -> None:
    import ray

    if keepers:
        ray.wait([keeper.close.remote() for keeper in keepers], num_returns=len(keepers), timeout=CLOSE_S)
    for keeper in keepers:
        ray.kill(keeper)
