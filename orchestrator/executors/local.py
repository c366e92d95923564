"""The executor ``local``: attempts run as processes of this machine."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.core.errors import Problem
from orchestrator.core.job import Job, Resources
from orchestrator.core.text import count
from orchestrator.executors.cpu_mover import CpuMover
from orchestrator.executors.executor import Event, ExecutorSettings, Report, resource_problem
from orchestrator.executors.processes import Processes
from orchestrator.executors.slotted import SlottedExecutor
from orchestrator.machine import topology
from orchestrator.machine.topology import Machine


class LocalExecutor(SlottedExecutor):
    """See :class:`.OpenedExecutor`. Attempts move to idle CPUs if others come to use theirs.

    :param processes: start other processes than workers of this program.
    """

    def __init__(self, settings: ExecutorSettings, processes: Processes | None = None) -> None:
        self._pool = settings.local_slots()
        processes = processes or Processes()
        super().__init__(self._pool, processes)
        self._mover = CpuMover(slots=self._pool, processes=processes, now=time.monotonic)

    def ready(self, report: Report) -> None:
        for warning in self._pool.warnings():
            report("warning", warning)

    def problems(self, job: Job) -> list[Problem]:
        return problems_on(self._pool.machine_for(job.resources.gpus), job)

    def facts(self) -> Mapping[str, Any]:
        return {"executor": "local"}

    def available_memory_mib(self) -> int:
        return topology.available_memory_mib()

    def has_memory(self, job: Job) -> bool:
        """Return whether a job may start beside others, whose promised memory is set aside; one that
        runs alone may try.
        """
        if not (self._running or self._reserved):
            return True
        promised = sum(
            promised_mib(attempt.job.resources, attempt.rss_mib)
            for attempt in self._running.values()
        )
        promised += sum(promised_mib(one.job.resources, 0.0) for one in self._reserved.values())
        needed = job.resources.all_memory_mib
        return memory_admits(needed, self.available_memory_mib(), promised)

    def poll(self, timeout_s: float) -> Sequence[Event]:
        events = [*super().poll(timeout_s)]
        return [*events, *self._mover.tick(events, self._running)]

    def close(self) -> None:
        super().close()
        self._pool.close()


def promised_mib(resources: Resources, rss_mib: float) -> int:
    """Return the memory that a running attempt was granted and does not hold yet."""
    return max(0, resources.all_memory_mib - int(rss_mib))


def memory_admits(needed_mib: int, available_mib: int, promised_mib: int) -> bool:
    """Return whether a job that may grow to ``needed_mib`` may start beside others, whose promised
    memory is set aside.
    """
    return available_mib - promised_mib >= needed_mib


def problems_on(machine: Machine, job: Job) -> list[Problem]:
    """Return why ``job`` can never run on ``machine``; nothing if it can."""
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
