"""The nodes that jobs may run on: those whose software agrees with ours, with the pool of their room.

Between the thread that looks after nodes, the pool, and the user, who is told what comes and goes. One thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeAlias

from orchestrator.core.errors import UsageError
from orchestrator.core.text import count, listed
from orchestrator.executors.ray.cluster_slots import ClusterSlots
from orchestrator.executors.ray.node_registry import NodeFailed, NodeJoined, NodeLeft, NodeRegistry, RayNode
from orchestrator.executors.ray.transport import TransferMode, Transport

SETTLE_S = 60.0
"""For the first answers of all nodes; their keepers are started for it."""
FAILED_STARTS = 3
SHOWN = 5

Tell: TypeAlias = Callable[[str, str], None]
"""Kind and message of an event."""


def silent(_kind: str, _message: str) -> None:
    """Nobody is told."""


class CompatibleNodes:
    """See the module. :meth:`assemble` comes first, then :meth:`update` now and then."""

    def __init__(self, nodes: NodeRegistry, pool: ClusterSlots, transport: Transport) -> None:
        self.pool = pool
        self.transport = transport
        self.tell: Tell = silent
        self._nodes = nodes
        self._usable: dict[str, RayNode] = {}
        self._names: dict[str, str] = {}
        self._given_up: dict[str, str] = {}
        """Why."""
        self._failed_starts: Counter[str] = Counter()
        """In a row."""

    @property
    def head_missing_s(self) -> float:
        """For how long the cluster's head has not answered."""
        return self._nodes.head.missing_s

    @property
    def nodes(self) -> Sequence[RayNode]:
        return list(self._usable.values())

    def node(self, node_id: str) -> RayNode | None:
        """None for one that is not, or no longer, used."""
        return self._usable.get(node_id)

    def name(self, node_id: str) -> str:
        """Also of one that is gone."""
        return self._names.get(node_id, node_id[:12])

    @property
    def home_node(self) -> str:
        """The one that this process is on."""
        return self._nodes.here

    def way_to(self, node: RayNode) -> TransferMode:
        """How files travel between the run directory and ``node``."""
        return self.transport.of(sees_home=node.facts.sees_home)

    def give_up(self, node_id: str, why: str) -> None:
        """Use a node no more, whatever is heard of it."""
        if self._usable.pop(node_id, None) is not None:
            self._given_up[node_id] = why
            self.pool.remove(node_id)
            self.tell("warning", f"{self.name(node_id)} is not used any more: {why}")

    @property
    def all_given_up(self) -> str | None:
        """Why there is no node to be used, where there was one; None: there is, or it may come back."""
        if self._usable or not self._given_up:
            return None
        return "; ".join(f"{self.name(node_id)}: {why}" for node_id, why in self._given_up.items())

    def doubt(self, node_id: str) -> None:
        """Something was lost there: nothing more is sent to it until it has answered, or left."""
        if node_id in self._usable:
            self.pool.pause(node_id)
            self._nodes.doubt(node_id)

    def could_not_run(self, node_id: str, why: str) -> None:
        """An attempt failed there before it began. What fails so again and again has the most free cores of all."""
        self._failed_starts[node_id] += 1
        if self._failed_starts[node_id] >= FAILED_STARTS:
            self.give_up(node_id, why)

    def could_run(self, node_id: str) -> None:
        self._failed_starts.pop(node_id, None)

    def assemble(self) -> list[str]:
        """Take in every node that there is. Returns what the user should know, in whole sentences.

        :raises UsageError: some differ from us in what changes results, or cannot run anything of ours.
        """
        warnings = []
        if not self._nodes.settle(SETTLE_S):
            warnings.append(f"some nodes have not answered within {SETTLE_S:.0f} s; they are used once they do.")
        latest: dict[str, NodeJoined | NodeFailed] = {}
        for change in self._nodes.changes():
            match change:
                case NodeJoined(node=node):
                    latest[node.node_id] = change
                case NodeFailed(node_id=node_id):
                    latest[node_id] = change
                case NodeLeft(node_id=node_id):  # meanwhile
                    latest.pop(node_id, None)
        joined = [change.node for change in latest.values() if isinstance(change, NodeJoined)]
        failed = [change for change in latest.values() if isinstance(change, NodeFailed)]
        unfit = [f"{change.name}: {change.why}" for change in failed if not change.is_silent]
        if unreached := [change.name for change in failed if change.is_silent]:
            warnings.append(f"{listed(unreached, SHOWN)} cannot be reached now, and is used once it can.")
        unfit += [f"{node.name}: {', '.join(why)}" for node in joined if (why := self._against(node))]
        if unfit:
            lines = "".join(f"\n  {line}" for line in unfit)
            nodes = count(len(unfit), "node")
            raise UsageError(
                f"the same job would not be the same, or not run, on {nodes} of the cluster:{lines}\n"
                "put it right there (versions must be those of this machine), or take these nodes out of the cluster"
            )
        for node in joined:
            self._take_in(node)
        others: dict[str, list[str]] = {}
        for node in joined:
            for line in node.differences.others:
                others.setdefault(line, []).append(node.name)
        warnings += [f"{listed(names, SHOWN)}: {line}; results do not depend on it." for line, names in others.items()]
        return [*warnings, *_about_cores(joined), *_about_models(joined)]

    def update(self) -> list[str]:
        """Follow the nodes that have come and gone. One that differs too much is told of and left alone.

        Returns those that have left the cluster, whether they were in use or not: nothing more is heard of them.
        """
        left = []
        for change in self._nodes.changes():
            match change:
                case NodeJoined(node=RayNode(node_id=node_id)) | NodeFailed(node_id=node_id) if (
                    node_id in self._given_up
                ):
                    continue
                case NodeJoined(node=node) if (against := self._against(node)) and node.node_id in self._usable:
                    self.give_up(node.node_id, ", ".join(against))
                case NodeJoined(node=node) if against:
                    self.tell("warning", f"{node.name} has joined the cluster and is not used: {', '.join(against)}")
                case NodeJoined(node=node) if node.node_id in self._usable:
                    self._usable[node.node_id] = node  # perhaps it has a new keeper
                    self.pool.resume(node.node_id)
                case NodeJoined(node=node):
                    self._take_in(node)
                    self.tell("node", f"{node.name} has joined the cluster: {count(node.cores, 'core')}")
                case NodeFailed(node_id=node_id, is_silent=True):
                    self.pool.pause(node_id)  # until it answers, or has left
                case NodeFailed(node_id=node_id, why=why) if node_id in self._usable:
                    self.give_up(node_id, why)
                case NodeFailed(name=name, why=why):
                    self.tell("warning", f"{name} has joined the cluster and is not used: {why}")
                case NodeLeft(node_id=node_id):
                    left.append(node_id)
                    self._given_up.pop(node_id, None)
                    if self._usable.pop(node_id, None) is not None:
                        self.pool.remove(node_id)
                        self.tell("warning", f"{self.name(node_id)} has left the cluster; its jobs go on elsewhere")
        return left

    def _against(self, node: RayNode) -> tuple[str, ...]:
        """Why ``node`` cannot be used; empty: it can."""
        why = list(node.differences.deciding)
        if self.transport.way == "shared" and not node.facts.sees_home:
            why.append("it does not see the run directory, which --storage shared needs")
        if node.facts.storage_problem is not None:
            why.append(node.facts.storage_problem)
        return tuple(why)

    def _take_in(self, node: RayNode) -> None:
        self._usable[node.node_id] = node
        self._names[node.node_id] = node.name
        self.pool.add(
            node.node_id, cores=node.cores, gpus=node.gpus, memory_mib=node.memory_mib, kind=node.facts.cpu_model
        )

    def close(self) -> None:
        self._nodes.close()


def _about_cores(nodes: Sequence[RayNode]) -> list[str]:
    crowded = [f"{node.name} ({node.cores} of {node.facts.cores})" for node in nodes if node.cores > node.facts.cores]
    if not crowded:
        return []
    return [
        f"Ray counts more CPUs than there are cores for jobs, which will slow each other: {listed(crowded, SHOWN)}."
        " `cluster join` counts as `doctor` does."
    ]


def _about_models(nodes: Sequence[RayNode]) -> list[str]:
    models = sorted({node.facts.cpu_model for node in nodes})
    if len(models) < 2:
        return []
    return [
        f"the nodes have {len(models)} kinds of CPU ({listed(models, SHOWN)}): which of them a job runs on may change"
        " the last bits of its results."
    ]
