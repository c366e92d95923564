"""The nodes of a cluster as they join and leave, each with its node agent; followed by a thread of
its own.

Questions to Ray's head block as long as the head cannot be reached, so the supervisor's thread
never asks it anything.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from orchestrator.core.pacer import Pace, Pacer
from orchestrator.core.text import last_line
from orchestrator.features.ray.connection import Connection
from orchestrator.features.ray.driver_directory import DriverDirectory
from orchestrator.features.ray.head_liveness import HeadLiveness
from orchestrator.features.ray.node_agent import NAME_PREFIX, NAMESPACE, NodeAgent, NodeFacts
from orchestrator.features.ray.transport import Transport
from orchestrator.machine import provenance
from orchestrator.machine.topology import MIB

LIST_EVERY_S = 2.0
URGENT_S = 0.05
"""Polling interval for answers that somebody waits for."""
CREATION_FAILED = "creation task"
"""Part of Ray's message about an actor that could not be created on its node."""
SUSPICION_S = 2.0
"""Delay before a suspected node is asked: the processes of a dying node would still answer."""
RETRY_EVERY_S = 60.0
PING_EVERY_S = 20.0
"""For agents. (Ray could restart them itself, but when memory runs out it kills restartable actors
first.)"""
CLOSE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RayNode:
    """A node whose agent has answered, whether jobs can run on it or not. Resources as Ray counts
    them.
    """

    node_id: str
    name: str
    """Host name; with part of ``node_id`` if the host has several nodes."""
    cores: int
    gpus: int
    memory_mib: int
    facts: NodeFacts
    agent: Any
    differences: provenance.VersionDifferences


@dataclass(frozen=True, slots=True)
class NodeLeft:
    node_id: str


@dataclass(frozen=True, slots=True)
class NodeFailed:
    """The agent of a node could not start or answer."""

    node_id: str
    name: str
    why: str
    is_silent: bool = False
    """The agent did not start: usually the node is dead and the head has not noticed yet."""


NodeChange: TypeAlias = RayNode | NodeLeft | NodeFailed
"""A :class:`RayNode` has joined, or has answered after it was suspected."""


@dataclass(slots=True, kw_only=True)
class _RegisteredNode:
    row: Mapping[str, Any]
    agent: Any
    request: Any = None
    ask_at: float = 0.0
    is_reported: bool = False
    """Whether the node was reported as a :class:`RayNode`."""
    is_suspected: bool = False
    """Whether the next answer is to be reported."""
    has_failed: bool = False
    """Whether a :class:`NodeFailed` was reported."""


class NodeRegistry:
    def __init__(
        self, connection: Connection, driver_directory: DriverDirectory, transport: Transport
    ) -> None:
        self._driver_directory = driver_directory
        self._transport = transport
        self._connection = connection
        self._session = secrets.token_hex(6)
        self.head = HeadLiveness(connection.head)
        self.driver_node = connection.node
        """The id of the node that this process is on."""
        self._entries: dict[str, _RegisteredNode] = {}
        self._changes: queue.SimpleQueue[NodeChange] = queue.SimpleQueue()
        self._suspected: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._starts = itertools.count()
        self._settled = threading.Event()
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="node-registry", daemon=True)
        self._thread.start()

    def changes(self) -> list[NodeChange]:
        return drain(self._changes)

    def suspect(self, node_id: str) -> None:
        """Ask the node soon whether it is still there; :meth:`changes` reports the answer even if
        nothing changed.
        """
        self._suspected.put(node_id)
        self._wake.set()

    def settle(self, timeout_s: float) -> bool:
        """Wait until every initial node has answered. False: timed out."""
        return self._settled.wait(timeout_s)

    def close(self) -> None:
        """End the agents, with everything that they have on their nodes."""
        self._closed.set()
        self._wake.set()
        self.head.close()
        if self.head.answers:
            import ray

            self._thread.join(CLOSE_S)
            agents = [entry.agent for entry in self._entries.values()]
            if agents:
                ray.wait(
                    [agent.close.remote() for agent in agents],
                    num_returns=len(agents),
                    timeout=CLOSE_S,
                )
            for agent in agents:
                ray.kill(agent)

    def _follow(self) -> None:
        import ray

        listings = Pacer(Pace(every_s=LIST_EVERY_S))
        has_listed = False
        while not self._closed.is_set():
            if self.head.answers:
                # These are raised if the head vanishes between two calls; it is asked again next
                # time.
                with contextlib.suppress(
                    ray.exceptions.RayError, ConnectionError, TimeoutError, RuntimeError
                ):
                    if listings.is_due():
                        self._list_nodes()
                        listings.wait()
                        has_listed = True
                    self._receive()
            awaited = [entry for entry in self._entries.values() if entry.request is not None]
            if has_listed and not awaited:
                self._settled.set()
            is_urgent = not self._settled.is_set() or any(entry.is_suspected for entry in awaited)
            self._wake.wait(URGENT_S if is_urgent else LIST_EVERY_S)
            self._wake.clear()

    def _list_nodes(self) -> None:
        """Find which nodes have joined and left, and send the requests that are due."""
        import ray

        rows = {row["NodeID"]: row for row in ray.nodes() if row["Alive"]}
        for node_id in self._entries.keys() - rows.keys():
            del self._entries[node_id]
            self._changes.put(NodeLeft(node_id))
        for node_id, row in rows.items():
            if node_id not in self._entries:
                self._entries[node_id] = _RegisteredNode(
                    row=row, agent=self._start_agent(node_id, row)
                )
        for node_id, entry in self._entries.items():
            if entry.request is None and time.monotonic() >= entry.ask_at:
                if entry.has_failed:
                    entry.agent = self._start_agent(node_id, entry.row)
                entry.request = entry.agent.facts.remote()

    def _receive(self) -> None:
        import ray

        for node_id in drain(self._suspected):
            if (entry := self._entries.get(node_id)) is not None and entry.is_reported:
                entry.is_suspected = True
                entry.request = None
                entry.ask_at = time.monotonic() + SUSPICION_S
        for node_id, entry in self._entries.items():
            if entry.request is not None and ray.wait([entry.request], timeout=0)[0]:
                self._take_answer(node_id, entry)

    def _take_answer(self, node_id: str, entry: _RegisteredNode) -> None:
        """Report an agent's answer. An agent that died is replaced, at once the first time and
        later after that.
        """
        change = self._answer(entry)
        entry.request = None
        entry.ask_at = time.monotonic() + PING_EVERY_S
        match change:
            case NodeFailed() if entry.is_reported:
                entry.agent = self._start_agent(node_id, entry.row)
                entry.is_reported = False
                entry.request = entry.agent.facts.remote()
            case NodeFailed():
                entry.ask_at = time.monotonic() + RETRY_EVERY_S
                if not entry.has_failed:
                    self._changes.put(change)
                entry.has_failed = True
                entry.is_suspected = False
            case RayNode():
                if not entry.is_reported or entry.is_suspected:
                    self._changes.put(change)
                entry.is_reported = True
                entry.is_suspected = False
                entry.has_failed = False

    def _start_agent(self, node_id: str, row: Mapping[str, Any]) -> Any:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        actor = ray.remote(NodeAgent).options(
            num_cpus=0,
            # a dead actor's is not free at once
            name=f"{NAME_PREFIX}/{self._session}.{next(self._starts)}/{node_id}",
            namespace=NAMESPACE,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
        )
        cpus = int(row["Resources"].get("CPU", 0))
        head = self._connection.head
        return actor.remote(
            self._session, node_id, cpus, self._driver_directory, self._transport, head
        )

    def _answer(self, entry: _RegisteredNode) -> NodeChange:
        import ray

        row = entry.row
        host = str(row["NodeManagerHostname"])
        try:
            facts: NodeFacts = ray.get(entry.request)
            differences = provenance.differences(provenance.installed_versions(), facts.versions)
        except Exception as error:  # unpickling what another version has sent may raise anything
            # The node was gone before its agent started, or the agent is.
            is_gone = isinstance(error, ray.exceptions.ActorUnschedulableError)
            is_dead = isinstance(error, ray.exceptions.RayActorError)
            is_silent = is_gone or (is_dead and CREATION_FAILED not in str(error))
            return NodeFailed(row["NodeID"], host, failure_reason(str(error)), is_silent)
        hosts = [str(other.row["NodeManagerHostname"]) for other in self._entries.values()]
        resources = row["Resources"]
        return RayNode(
            node_id=row["NodeID"],
            name=host if hosts.count(host) == 1 else f"{host}/{row['NodeID'][:6]}",
            cores=int(resources.get("CPU", 0)),
            gpus=int(resources.get("GPU", 0)),
            memory_mib=int(resources.get("memory", 0)) // MIB,
            facts=facts,
            agent=entry.agent,
            differences=differences,
        )


Item = TypeVar("Item")


def drain(items: queue.SimpleQueue[Item]) -> list[Item]:
    taken = []
    with contextlib.suppress(queue.Empty):  # all are taken
        while True:
            taken.append(items.get_nowait())
    return taken


def failure_reason(error: str) -> str:
    """Why an agent could not be started, in one line: the last one of a traceback."""
    if "No module named 'orchestrator'" in error:
        return "this package is not installed there"
    last = last_line(error, "unknown reason")[-300:]
    if "orchestrator." in last or "__init__()" in last:
        return f"another version of this package is installed there ({last})"
    return last
