"""Simulated machines: their CPUs and memory."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.machine.topology import Cpu, Machine

MACHINE_MIB = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a machine has for jobs."""

    cpus: int
    memory_mib: int = MACHINE_MIB
    sharing: int = 1
    """Jobs that may have the same CPU."""


def machine(cpus: int) -> Machine:
    return Machine(
        cpus=tuple(Cpu(index=index, core=index, package=0, numa_node=0) for index in range(cpus)),
        quota=None,
        memory_total_mib=MACHINE_MIB,
    )
