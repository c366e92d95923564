"""Where attempts run: an executor, and the room it has, as ``--executor`` names it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from orchestrator.core.errors import Problem, UsageError
from orchestrator.core.job import Job
from orchestrator.core.text import count
from orchestrator.executors.base import Executor
from orchestrator.executors.local import LocalExecutor
from orchestrator.machine import topology as machines
from orchestrator.machine.cpu_locks import CpuClaims
from orchestrator.machine.slots import SlotPool, Slots
from orchestrator.machine.topology import Machine, available_memory_mib

EXECUTORS = ("local", "ray")


class Backend(Protocol):
    """Made before robots are examined, ready after that."""

    @property
    def executor(self) -> Executor: ...

    @property
    def slots(self) -> Slots: ...

    @property
    def here(self) -> SlotPool:
        """Room on this machine, for what is done here when nothing is trained any more."""
        ...

    def ready(self) -> list[str]:
        """Wait until it can be used. Returns what the user should know, in whole sentences.

        :raises UsageError: it cannot.
        """
        ...

    def problems(self, job: Job) -> list[Problem]:
        """Why ``job`` could never run here; empty: it could."""
        ...

    def facts(self) -> dict[str, Any]:
        """For ``provenance.json`` and ``--dry-run``."""
        ...

    def available_memory_mib(self) -> int:
        """For a further job, as far as :meth:`Slots.acquire` does not look after that."""
        ...

    def report_to(self, tell: Callable[[str, str], None]) -> None:
        """From now on ``tell`` hears what happens to machines: kind and message of an event."""
        ...

    def close(self) -> None: ...


class LocalBackend:
    """The machine that we are on."""

    def __init__(self, machine: Machine, max_parallel: int | None, claims_directory: Path | None) -> None:
        self._machine = machine
        claims = CpuClaims(claims_directory, (cpu.index for cpu in machine.cpus))
        self.slots = self.here = SlotPool(machine, max_parallel, claims)
        self.executor = LocalExecutor()

    def ready(self) -> list[str]:
        return list(self.slots.warnings())

    def problems(self, job: Job) -> list[Problem]:
        wanted, machine = job.resources, self._machine
        each = f" for each of {wanted.ranks} ranks" if wanted.ranks > 1 else ""
        problems = []
        largest = machines.largest_job(machine)
        if wanted.all_cores > largest:
            key = "cores" if wanted.cores > largest else "ranks"
            text = f"asks for {count(wanted.cores, 'core')}{each}; this machine can give a job {largest} (see `doctor`)"
            problems.append(Problem(where=f"{job.where}.resources.{key}", message=text))
        if wanted.all_memory_mib > machine.memory_total_mib:
            there = f"this machine has {machine.memory_total_mib} MiB (see `doctor`)"
            text = f"asks for {wanted.memory_mib} MiB{each}; {there}"
            problems.append(Problem(where=f"{job.where}.resources.memory", message=text))
        if wanted.all_gpus > len(machine.gpus):
            there = f"this machine has {len(machine.gpus)} (see `doctor`)"
            text = f"asks for {count(wanted.gpus, 'GPU')}{each}; {there}"
            problems.append(Problem(where=f"{job.where}.resources.gpus", message=text))
        return problems

    def facts(self) -> dict[str, Any]:
        return {"executor": "local"}

    def available_memory_mib(self) -> int:
        return available_memory_mib()

    def report_to(self, tell: Callable[[str, str], None]) -> None:
        """Nothing happens to the machine that one would hear of."""

    def close(self) -> None:
        self.slots.close()


def check_executor_name(name: str) -> None:
    """:raises UsageError: naming the valid ones."""
    if name not in EXECUTORS:
        raise UsageError(f"--executor {name}: unknown; valid: {', '.join(EXECUTORS)}")


def open_backend(
    name: str,
    machine: Machine,
    *,
    max_parallel: int | None,
    claims_directory: Path | None,
    home: Path,
    jobs: Sequence[Job],
    address: str,
    storage: str,
) -> Backend:
    """The engine called ``name``.

    :param home: the run directory, which exists.
    :param jobs: all that are declared.
    :param address: of a cluster, for those that need one.
    :param storage: how files travel between ``home`` and other machines.
    :raises UsageError: there is no such engine here.
    """
    check_executor_name(name)
    if name == "local":
        return LocalBackend(machine, max_parallel, claims_directory)
    from orchestrator.executors.ray.ray_backend import RayBackend

    return RayBackend(
        machine,
        max_parallel,
        claims_directory,
        home=home.absolute(),
        jobs=jobs,
        address=address,
        storage=storage,
    )
