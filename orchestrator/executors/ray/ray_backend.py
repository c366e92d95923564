"""The Ray cluster as the place where attempts run: everything of this package, put together."""

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
from orchestrator.executors.ray.compatible_nodes import CompatibleNodes, Report
from orchestrator.executors.ray.driver_directory import DriverDirectory
from orchestrator.executors.ray.node_registry import NodeRegistry
from orchestrator.executors.ray.ray_executor import RayExecutor
from orchestrator.executors.ray.transport import Transport
from orchestrator.machine.cpu_locks import CpuLocks
from orchestrator.machine.slots import SlotPool
from orchestrator.machine.topology import Machine


class RayBackend:
    """See :class:`orchestrator.experiment.backend.Backend`.

    :param run_dir: absolute.
    :param jobs: all declared jobs.
    :raises UsageError: Ray is missing, the cluster cannot be used, or the user's code is too large to be copied.
    """

    def __init__(
        self,
        machine: Machine,
        max_parallel: int | None,
        locks_directory: Path | None,
        *,
        run_dir: Path,
        jobs: Sequence[Job],
        address: str,
        storage: str,
    ) -> None:
        self._stack = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            transport = stack.enter_context(contextlib.closing(Transport.from_option(storage, run_dir)))
            connected = stack.enter_context(contextlib.closing(connection.connect(address, machine)))
            driver_directory = DriverDirectory.create(run_dir)
            stack.callback(driver_directory.remove)
            code = user_code.upload(jobs)
            self.slots = ClusterSlots(max_parallel)
            registry = NodeRegistry(connected, driver_directory, transport)
            self.nodes = stack.enter_context(contextlib.closing(CompatibleNodes(registry, self.slots, transport)))
            self.executor = RayExecutor(nodes=self.nodes, expected=len(jobs), code=code)
            locks = CpuLocks(locks_directory, (cpu.index for cpu in machine.cpus))
            self.here = SlotPool(machine, None, locks)
            stack.callback(self.here.close)
            self._stack = stack.pop_all()
        self._address = address

    def ready(self) -> list[str]:
        return [*self.nodes.assemble(), *self.slots.warnings()]

    def problems(self, job: Job) -> list[Problem]:
        resources = job.resources
        if self.slots.fits_ever(
            resources.all_cores, resources.all_gpus, memory_mib=resources.all_memory_mib, ranks=resources.ranks
        ):
            return []
        each = f" for each of {resources.ranks} ranks" if resources.ranks > 1 else ""
        nodes = self.slots.nodes
        largest = max(nodes, key=lambda node: (node.gpus, node.cores, node.memory_mib), default=None)
        offered = "it has no nodes"
        if largest is not None:
            amounts = _amounts(largest.cores, largest.gpus, largest.memory_mib)
            offered = f"the largest of its {count(len(nodes), 'node')} has {amounts} for jobs"
        asked = _amounts(resources.cores, resources.gpus, resources.memory_mib)
        text = f"asks for {asked}{each}, which the cluster cannot give: {offered}"
        return [Problem(where=f"{job.where}.resources", message=text)]

    def facts(self) -> dict[str, Any]:
        return {
            "executor": "ray",
            "ray_address": self._address,
            "nodes": [
                {
                    "name": node.name,
                    "cores": node.cores,
                    "gpus": node.gpus,
                    "memory_mib": node.memory_mib,
                    "cpu_model": node.facts.cpu_model,
                    "storage": self.nodes.transfer_mode(node),
                    "versions": dict(node.facts.versions),
                }
                for node in self.nodes.all
            ],
        }

    def available_memory_mib(self) -> int:
        return sys.maxsize

    def report_to(self, report: Report) -> None:
        self.nodes.report = report

    def close(self) -> None:
        self._stack.close()


def _amounts(cores: int, gpus: int, memory_mib: int) -> str:
    return f"{count(cores, 'core')}, {count(gpus, 'GPU')} and {memory_mib} MiB"
