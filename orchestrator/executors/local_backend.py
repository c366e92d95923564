"""The backend ``local``: attempts run on this machine."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from orchestrator.core.errors import Problem
from orchestrator.core.job import Job
from orchestrator.core.text import count
from orchestrator.executors.base import BackendSettings, Handle, resource_problem
from orchestrator.executors.local import LocalExecutor
from orchestrator.machine import topology
from orchestrator.machine.slots import Moved, Slot, SlotPool
from orchestrator.machine.topology import Machine


@dataclass(frozen=True, slots=True)
class LocalCpuMoves:
    """See :class:`orchestrator.executors.base.CpuMoves`."""

    slots: SlotPool
    executor: LocalExecutor

    def names_on(self, cpus: Collection[int]) -> tuple[str, ...]:
        return self.slots.look().names_on(cpus)

    def move(self, handle: Handle, slot: Slot, contended: Collection[int]) -> Moved | None:
        return self.slots.move(slot, contended, lambda to: self.executor.move(handle, to))


class LocalBackend:
    """See :class:`orchestrator.executors.base.Backend`.

    :param executor: one that starts other processes than workers of this program.
    """

    def __init__(self, settings: BackendSettings, executor: LocalExecutor | None = None) -> None:
        self._machine = settings.machine
        self.slots = self.local_slots = settings.local_slots(settings.max_parallel)
        self.executor = executor or LocalExecutor()
        self.cpu_moves = LocalCpuMoves(self.slots, self.executor)

    def ready(self) -> list[str]:
        return list(self.slots.warnings())

    def problems(self, job: Job) -> list[Problem]:
        return problems_on(self._machine, job)

    def facts(self) -> dict[str, Any]:
        return {"executor": "local"}

    def available_memory_mib(self) -> int:
        return topology.available_memory_mib()

    def report_to(self, report: Callable[[str, str], None]) -> None:
        """Does nothing: there are no such events."""

    def close(self) -> None:
        self.slots.close()


def problems_on(machine: Machine, job: Job) -> list[Problem]:
    """Why ``job`` can never run on ``machine``; empty if it can."""
    asked = job.resources
    largest = topology.largest_job(machine)
    found: list[Problem] = []

    def refuse(key: str, what: str, offer: str) -> None:
        offered = f"this machine {offer} (see `doctor`)"
        found.append(resource_problem(job, f".{key}", what, offered))

    if asked.all_cores > largest:
        key = "cores" if asked.cores > largest else "ranks"
        refuse(key, count(asked.cores, "core"), f"can give a job {largest}")
    if asked.all_memory_mib > machine.memory_total_mib:
        refuse("memory", f"{asked.memory_mib} MiB", f"has {machine.memory_total_mib} MiB")
    if asked.all_gpus > len(machine.gpus):
        refuse("gpus", count(asked.gpus, "GPU"), f"has {len(machine.gpus)}")
    return found
