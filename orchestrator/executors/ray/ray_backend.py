"""A Ray cluster as the place where attempts run: everything of this package, put together."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.core.errors import Problem
from orchestrator.core.job import Job
from orchestrator.core.text import count
from orchestrator.executors.ray import connection, user_code
from orchestrator.executors.ray.cluster_slots import ClusterSlots
from orchestrator.executors.ray.compatible_nodes import CompatibleNodes, Tell
from orchestrator.executors.ray.driver_directory import DriverDirectory
from orchestrator.executors.ray.node_registry import NodeRegistry
from orchestrator.executors.ray.ray_executor import RayExecutor
from orchestrator.executors.ray.transport import Transport
from orchestrator.machine.cpu_locks import CpuClaims
from orchestrator.machine.slots import SlotPool
from orchestrator.machine.topology import Machine


class RayBackend:
    """See :class:`orchestrator.experiment.backend.Backend`.

    :param home: the run directory, absolute.
    :param jobs: all that are declared.
    :raises UsageError: there is no Ray, no cluster that lets us in, or too much code of the user's to send there.
    """

    def __init__(
        self,
        machine: Machine,
        max_parallel: int | None,
        claims_directory: Path | None,
        *,
        home: Path,
        jobs: Sequence[Job],
        address: str,
        storage: str,
    ) -> None:
        self._stack = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            transport = stack.enter_context(contextlib.closing(Transport.chosen(storage, home)))
            connected = stack.enter_context(contextlib.closing(connection.connect(address, machine)))
            here = stack.enter_context(_left(DriverDirectory.at(home)))
            code = user_code.sent(jobs)
            self.slots = ClusterSlots(max_parallel)
            nodes = NodeRegistry(connected, here, transport)
            self.fleet = stack.enter_context(contextlib.closing(CompatibleNodes(nodes, self.slots, transport)))
            self.executor = RayExecutor(fleet=self.fleet, expected=len(jobs), code=code)
            claims = CpuClaims(claims_directory, (cpu.index for cpu in machine.cpus))
            self.here = SlotPool(machine, None, claims)
            stack.callback(self.here.close)
            self._stack = stack.pop_all()
        self._where = address

    def ready(self) -> list[str]:
        return [*self.fleet.assemble(), *self.slots.warnings()]

    def problems(self, job: Job) -> list[Problem]:
        wanted = job.resources
        if self.slots.fits_ever(
            wanted.all_cores, wanted.all_gpus, memory_mib=wanted.all_memory_mib, ranks=wanted.ranks
        ):
            return []
        each = f" for each of {wanted.ranks} ranks" if wanted.ranks > 1 else ""
        asked = f"{count(wanted.cores, 'core')}, {count(wanted.gpus, 'GPU')} and {wanted.memory_mib} MiB{each}"
        largest = max(self.slots.nodes, key=lambda room: (room.gpus, room.cores, room.memory_mib), default=None)
        there = "it has no nodes"
        if largest is not None:
            has = f"{count(largest.cores, 'core')}, {count(largest.gpus, 'GPU')} and {largest.memory_mib} MiB"
            there = f"its largest of {count(len(self.slots.nodes), 'node')} has {has} for jobs"
        text = f"asks for {asked}, which the cluster can never give: {there}"
        return [Problem(where=f"{job.where}.resources", message=text)]

    def facts(self) -> dict[str, Any]:
        nodes = self.fleet.nodes
        return {
            "executor": "ray",
            "ray_address": self._where,
            "nodes": [
                {
                    "name": node.name,
                    "cores": node.cores,
                    "gpus": node.gpus,
                    "memory_mib": node.memory_mib,
                    "cpu_model": node.facts.cpu_model,
                    "storage": self.fleet.way_to(node),
                    "versions": dict(node.facts.versions),
                }
                for node in nodes
            ],
        }

    def available_memory_mib(self) -> int:
        """Each node's memory is part of the room it has."""
        return sys.maxsize

    def report_to(self, tell: Tell) -> None:
        self.fleet.tell = tell

    def close(self) -> None:
        self._stack.close()


@contextlib.contextmanager
def _left(home: DriverDirectory) -> Any:
    try:
        yield home
    finally:
        home.leave()
