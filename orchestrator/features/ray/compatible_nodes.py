"""The nodes that jobs may run on: those whose software agrees with the driver's, and their slots.

Follows the node registry, updates the slots, and reports to the user which nodes join and leave.
One thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from orchestrator.core.errors import UsageError
from orchestrator.core.front_end import option
from orchestrator.core.text import count, listed
from orchestrator.executors.cluster_slots import ClusterSlots
from orchestrator.executors.executor import Report
from orchestrator.features.ray.node_registry import NodeFailed, NodeLeft, NodeRegistry, RayNode
from orchestrator.features.ray.transport import TransferMode, Transport

SETTLE_S = 60.0
"""For the first answers of all nodes, which includes the start of their agents."""
MOST_FAILED_STARTS = 3
SHOWN = 5


class CompatibleNodes:
    """See the module. :meth:`assemble` comes first, then :meth:`update` regularly."""

    def __init__(self, registry: NodeRegistry, slots: ClusterSlots, transport: Transport) -> None:
        self.registry = registry
        self.slots = slots
        self.transport = transport
        self.report: Report = lambda _kind, _message: None
        self._usable: dict[str, RayNode] = {}
        self._excluded: dict[str, str] = {}
        """Node → its name, and why."""
        self._failed_starts: Counter[str] = Counter()

    @property
    def all(self) -> Sequence[RayNode]:
        return list(self._usable.values())

    def get(self, node_id: str) -> RayNode | None:
        """The node; None if it is not used, or not any more."""
        return self._usable.get(node_id)

    def transfer_mode(self, node: RayNode) -> TransferMode:
        return self.transport.mode or ("shared" if node.facts.sees_run_dir else "stream")

    def exclude(self, node_id: str, why: str) -> None:
        """Never use a node again, whatever it reports."""
        if (node := self._usable.pop(node_id, None)) is not None:
            self._excluded[node_id] = f"{node.name}: {why}"
            self.slots.remove(node_id)
            self.report("warning", f"{node.name} is no longer used: {why}")

    @property
    def all_excluded(self) -> str | None:
        """Why every node was excluded; None if one is usable, or none was ever."""
        return None if self._usable or not self._excluded else "; ".join(self._excluded.values())

    def suspect(self, node_id: str) -> None:
        """An attempt was lost on the node: submit nothing to it until it has answered, or left."""
        if node_id in self._usable:
            self.slots.pause(node_id)
            self.registry.suspect(node_id)

    def record_failed_start(self, node_id: str, why: str) -> None:
        """Exclude a node where attempts fail to start again and again: it would always have the
        most free cores.
        """
        self._failed_starts[node_id] += 1
        if self._failed_starts[node_id] >= MOST_FAILED_STARTS:
            self.exclude(node_id, why)

    def record_start(self, node_id: str) -> None:
        self._failed_starts.pop(node_id, None)

    def assemble(self) -> list[str]:
        """Take every current node into use. Returns warnings, in whole sentences.

        :raises UsageError: some nodes differ in what changes results, or cannot run attempts.
        """
        warnings = []
        if not self.registry.settle(SETTLE_S):
            warnings.append(
                f"Some nodes have not answered within {SETTLE_S:.0f} s; they will be used once they do."
            )
        latest = {change.node_id: change for change in self.registry.changes()}
        joined = [change for change in latest.values() if isinstance(change, RayNode)]
        failed = [change for change in latest.values() if isinstance(change, NodeFailed)]
        incompatible = [f"{change.name}: {change.why}" for change in failed if not change.is_silent]
        incompatible += [
            f"{node.name}: {', '.join(why)}"
            for node in joined
            if (why := self._incompatibilities(node))
        ]
        if incompatible:
            lines = "".join(f"\n  {line}" for line in incompatible)
            raise UsageError(
                f"jobs cannot run, or would give other results, on {count(len(incompatible), 'node')} of the"
                f" cluster:{lines}\n"
                "correct it there (package versions must be those of this machine), or remove these nodes from the"
                " cluster"
            )
        if silent := [change.name for change in failed if change.is_silent]:
            warnings.append(
                f"{listed(silent, SHOWN)} cannot be reached now, and will be used once it can."
            )
        for node in joined:
            self._use(node)
        for line in dict.fromkeys(line for node in joined for line in node.differences.others):
            names = [node.name for node in joined if line in node.differences.others]
            warnings.append(f"{listed(names, SHOWN)}: {line}; results do not depend on it.")
        return [*warnings, *_hardware_warnings(joined)]

    def update(self) -> list[str]:
        """Follow the changes since the last call; a late node that is incompatible is reported and
        not used.

        Returns the nodes that have left the cluster, whether they were used or not.
        """
        departed = []
        for change in self.registry.changes():
            match change:
                case RayNode():
                    self._update_joined(change)
                case NodeFailed(node_id=node_id) if node_id in self._excluded:
                    continue
                case NodeFailed(node_id=node_id, is_silent=True):
                    self.slots.pause(node_id)  # until it answers, or has left
                case NodeFailed(node_id=node_id, why=why) if node_id in self._usable:
                    self.exclude(node_id, why)
                case NodeFailed(name=name, why=why):
                    self._report_unused(name, why)
                case NodeLeft(node_id=node_id):
                    departed.append(node_id)
                    self._excluded.pop(node_id, None)
                    if (node := self._usable.pop(node_id, None)) is not None:
                        self.slots.remove(node_id)
                        self.report(
                            "warning",
                            f"{node.name} has left the cluster; its jobs continue elsewhere",
                        )
        return departed

    def _update_joined(self, node: RayNode) -> None:
        is_used = node.node_id in self._usable
        if node.node_id in self._excluded:
            return
        why = ", ".join(self._incompatibilities(node))
        if why and is_used:
            self.exclude(node.node_id, why)
        elif why:
            self._report_unused(node.name, why)
        elif is_used:
            self._usable[node.node_id] = node  # it may have a new agent
            self.slots.resume(node.node_id)
        else:
            self._use(node)
            self.report("node", f"{node.name} has joined the cluster: {count(node.cores, 'core')}")

    def _report_unused(self, name: str, why: str) -> None:
        self.report("warning", f"{name} has joined the cluster but is not used: {why}")

    def _incompatibilities(self, node: RayNode) -> list[str]:
        """Why ``node`` cannot be used; empty: it can."""
        why = list(node.differences.deciding)
        if self.transport.mode == "shared" and not node.facts.sees_run_dir:
            shared = option("storage", "shared")
            why.append(f"it does not see the run directory, which {shared} requires")
        if node.facts.storage_problem is not None:
            why.append(node.facts.storage_problem)
        return why

    def _use(self, node: RayNode) -> None:
        self._usable[node.node_id] = node
        amounts = {"cores": node.cores, "gpus": node.gpus, "memory_mib": node.memory_mib}
        self.slots.add(node.node_id, **amounts, kind=node.facts.cpu_model)

    def close(self) -> None:
        self.registry.close()


def _hardware_warnings(nodes: Sequence[RayNode]) -> list[str]:
    warnings = []
    crowded = [
        f"{node.name} ({node.cores} of {node.facts.cores})"
        for node in nodes
        if node.cores > node.facts.cores
    ]
    if crowded:
        warnings.append(
            f"Ray counts more CPUs than there are cores for jobs, which will slow each other down:"
            f" {listed(crowded, SHOWN)}. `cluster join` counts as `doctor` does."
        )
    models = sorted({node.facts.cpu_model for node in nodes})
    if len(models) > 1:
        warnings.append(
            f"The nodes have {len(models)} kinds of CPU ({listed(models, SHOWN)}): which of them a job runs on may"
            " change the last bits of its results."
        )
    return warnings
