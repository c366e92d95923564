"""The backend ``ray``: attempts run on the nodes of a Ray cluster."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from orchestrator.core.errors import Problem
from orchestrator.core.job import Job
from orchestrator.core.text import count
from orchestrator.executors.base import BackendSettings, amounts, resource_problem
from orchestrator.executors.cluster_slots import ClusterSlots
from orchestrator.features.ray import connection
from orchestrator.features.ray.compatible_nodes import CompatibleNodes, Report
from orchestrator.features.ray.driver_directory import DriverDirectory
from orchestrator.features.ray.node_registry import NodeRegistry
from orchestrator.features.ray.ray_executor import RayExecutor
from orchestrator.features.ray.transport import Transport
from orchestrator.features.ray.user_code import CodeCopyError, CodeFolders
from orchestrator.machine import imported_code


class RayBackend:
    """See :class:`orchestrator.executors.base.Backend`.

    :raises UsageError: Ray is missing, or the cluster cannot be used.
    """

    cpu_moves = None

    def __init__(self, settings: BackendSettings) -> None:
        run_dir = settings.run_dir.absolute()
        self._address = settings.options["ray_address"]
        self._storage = settings.options["storage"]
        self._stack = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            transport = stack.enter_context(
                contextlib.closing(Transport.from_option(self._storage, run_dir))
            )
            connected = stack.enter_context(
                contextlib.closing(connection.connect(self._address, settings.machine))
            )
            driver_directory = DriverDirectory.create(run_dir)
            stack.callback(driver_directory.remove)
            self._code = CodeFolders(driver_directory=driver_directory)
            self.slots = ClusterSlots(settings.max_parallel_on_nodes)
            registry = NodeRegistry(connected, driver_directory, transport)
            self.nodes = stack.enter_context(
                contextlib.closing(CompatibleNodes(registry, self.slots, transport))
            )
            self.executor = RayExecutor(nodes=self.nodes, code=self._code.code)
            self.local_slots = settings.local_slots(None)
            stack.callback(self.local_slots.close)
            self._stack = stack.pop_all()

    def ready(self) -> list[str]:
        return [*self.nodes.assemble(), *self.slots.warnings()]

    def problems(self, job: Job) -> list[Problem]:
        try:
            folder = imported_code.code_folder(job.spec)
            self._code.code(folder, imported_code.code_name(job.spec))
        except CodeCopyError as error:
            return [Problem(where=job.where, message=str(error))]
        resources = job.resources
        if self.slots.fits_ever(
            resources.all_cores,
            resources.all_gpus,
            memory_mib=resources.all_memory_mib,
            ranks=resources.ranks,
        ):
            return []
        nodes = self.slots.nodes
        largest = max(
            nodes, key=lambda node: (len(node.gpus), node.cores, node.memory_mib), default=None
        )
        offered = "the cluster has no nodes"
        if largest is not None:
            has = amounts(largest.cores, len(largest.gpus), largest.memory_mib)
            offered = f"the largest of the cluster's {count(len(nodes), 'node')} has {has} for jobs"
        asked = amounts(resources.cores, resources.gpus, resources.memory_mib)
        return [resource_problem(job, "", asked, offered)]

    def facts(self) -> dict[str, Any]:
        return {
            "executor": "ray",
            "ray_address": self._address,
            "storage": self._storage,
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
