"""Backends: an executor together with its slots, as ``--executor`` names them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from orchestrator.core.errors import Problem, UsageError
from orchestrator.core.job import Job
from orchestrator.core.text import count
from orchestrator.executors.base import Executor
from orchestrator.executors.local import LocalExecutor
from orchestrator.machine import topology
from orchestrator.machine.cpu_locks import CpuLocks
from orchestrator.machine.slots import SlotPool, Slots
from orchestrator.machine.topology import Machine, available_memory_mib


class Backend(Protocol):
    """An executor with its slots. It is made before the robots are examined, and made ready afterwards."""

    @property
    def executor(self) -> Executor: ...

    @property
    def slots(self) -> Slots: ...

    @property
    def here(self) -> SlotPool:
        """Slots on this machine, for work after the training."""

    def ready(self) -> list[str]:
        """Wait until it can be used. Returns warnings for the user. :raises UsageError: it cannot be used."""

    def problems(self, job: Job) -> list[Problem]:
        """Why ``job`` can never run here; empty if it can."""

    def facts(self) -> dict[str, Any]:
        """A description for ``provenance.json`` and ``--dry-run``."""

    def available_memory_mib(self) -> int:
        """Memory for a further job, where :meth:`Slots.acquire` does not check it."""

    def report_to(self, report: Callable[[str, str], None]) -> None:
        """Call ``report`` with kind and message of every event that concerns a machine."""

    def close(self) -> None: ...


class LocalBackend:
    """Attempts run on this machine."""

    def __init__(self, machine: Machine, max_parallel: int | None, locks_directory: Path | None) -> None:
        self._machine = machine
        locks = CpuLocks(locks_directory, (cpu.index for cpu in machine.cpus))
        self.slots = self.here = SlotPool(machine, max_parallel, locks)
        self.executor = LocalExecutor()

    def ready(self) -> list[str]:
        return list(self.slots.warnings())

    def problems(self, job: Job) -> list[Problem]:
        resources, machine = job.resources, self._machine
        each = f" for each of {resources.ranks} ranks" if resources.ranks > 1 else ""
        largest, memory_mib, gpus = topology.largest_job(machine), machine.memory_total_mib, len(machine.gpus)
        cores_key = "cores" if resources.cores > largest else "ranks"
        limits = (
            (cores_key, resources.all_cores, largest, count(resources.cores, "core"), f"can give a job {largest}"),
            ("memory", resources.all_memory_mib, memory_mib, f"{resources.memory_mib} MiB", f"has {memory_mib} MiB"),
            ("gpus", resources.all_gpus, gpus, count(resources.gpus, "GPU"), f"has {gpus}"),
        )
        return [
            Problem(
                where=f"{job.where}.resources.{key}",
                message=f"asks for {asked}{each}; this machine {offer} (see `doctor`)",
            )
            for key, total, limit, asked, offer in limits
            if total > limit
        ]

    def facts(self) -> dict[str, Any]:
        return {"executor": "local"}

    def available_memory_mib(self) -> int:
        return available_memory_mib()

    def report_to(self, report: Callable[[str, str], None]) -> None:
        """Does nothing: there are no such events."""

    def close(self) -> None:
        self.slots.close()


BACKENDS = ("local", "ray")
"""What ``--executor`` may name."""


def check_executor_name(name: str) -> None:
    """:raises UsageError: naming the valid ones."""
    if name not in BACKENDS:
        raise UsageError(f"--executor {name}: unknown; valid: {', '.join(BACKENDS)}")


def open_backend(
    name: str,
    machine: Machine,
    max_parallel: int | None,
    locks_directory: Path | None,
    *,
    run_dir: Path,
    jobs: Sequence[Job],
    address: str,
    storage: str,
) -> Backend:
    """The backend called ``name``, one of :data:`BACKENDS`.

    :param locks_directory: directory of the CPU locks; None for no locks.
    :param address: of a cluster.
    :param storage: how files travel between ``run_dir`` and other machines.
    :raises UsageError: it cannot be used here.
    """
    if name == "local":
        return LocalBackend(machine, max_parallel, locks_directory)
    from orchestrator.executors.ray.ray_backend import RayBackend  # an optional package

    where = run_dir.absolute()
    return RayBackend(
        machine, max_parallel, locks_directory, run_dir=where, jobs=jobs, address=address, storage=storage
    )
