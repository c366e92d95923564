"""The executor ``ray``: attempts run on the nodes of a Ray cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from orchestrator.core.errors import Problem
from orchestrator.core.job import Job
from orchestrator.core.text import count
from orchestrator.executors.cluster_slots import ClusterSlots
from orchestrator.executors.executor import ExecutorSettings, Report, amounts, resource_problem
from orchestrator.executors.slotted import SlottedExecutor
from orchestrator.features.ray import connection
from orchestrator.features.ray.compatible_nodes import CompatibleNodes
from orchestrator.features.ray.driver_directory import DriverDirectory
from orchestrator.features.ray.node_registry import NodeRegistry
from orchestrator.features.ray.ray_launcher import RayLauncher
from orchestrator.features.ray.transport import Transport
from orchestrator.features.ray.user_code import CodeCopyError, CodeFolders
from orchestrator.machine import imported_code


class RayExecutor(SlottedExecutor):
    """See :class:`orchestrator.executors.executor.OpenedExecutor`.

    :raises UsageError: Ray is missing, or the cluster cannot be used.
    """

    def __init__(self, settings: ExecutorSettings) -> None:
        folder = settings.folder
        self._address = settings.options["ray_address"]
        self._storage = settings.options["storage"]
        self._stack = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            transport = stack.enter_context(
                contextlib.closing(Transport.from_option(self._storage, folder))
            )
            connected = stack.enter_context(
                contextlib.closing(connection.connect(self._address, settings.machine))
            )
            driver_directory = DriverDirectory.create(folder)
            stack.callback(driver_directory.remove)
            self._code = CodeFolders(driver_directory=driver_directory)
            self._room = ClusterSlots(settings.max_parallel_on_nodes)
            registry = NodeRegistry(connected, driver_directory, transport)
            self._nodes = stack.enter_context(
                contextlib.closing(CompatibleNodes(registry, self._room, transport))
            )
            super().__init__(self._room, RayLauncher(nodes=self._nodes, code=self._code.code))
            self._stack = stack.pop_all()

    def ready(self, report: Report) -> None:
        for warning in [*self._nodes.assemble(), *self._room.warnings()]:
            report("warning", warning)
        self._nodes.report = report

    def problems(self, job: Job) -> list[Problem]:
        try:
            folder = imported_code.code_folder(job.spec)
            self._code.code(folder, imported_code.code_name(job.spec))
        except CodeCopyError as error:
            return [Problem(where=job.where, message=str(error))]
        resources = job.resources
        if self._room.fits_ever(
            resources.all_cores,
            resources.all_gpus,
            memory_mib=resources.all_memory_mib,
            ranks=resources.ranks,
        ):
            return []
        nodes = self._room.nodes
        largest = max(
            nodes, key=lambda node: (len(node.gpus), node.cores, node.memory_mib), default=None
        )
        offered = "the cluster has no nodes"
        if largest is not None:
            has = amounts(largest.cores, len(largest.gpus), largest.memory_mib)
            offered = f"the largest of the cluster's {count(len(nodes), 'node')} has {has} for jobs"
        asked = amounts(resources.cores, resources.gpus, resources.memory_mib)
        return [resource_problem(job, "", asked, offered)]

    def facts(self) -> Mapping[str, Any]:
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
                    "storage": self._nodes.transfer_mode(node),
                    "versions": dict(node.facts.versions),
                }
                for node in self._nodes.all
            ],
        }

    def close(self) -> None:
        super().close()
        self._stack.close()
