"""Simulated machines: their CPUs and memory."""

from __future__ import annotations

from orchestrator.machine.topology import Cpu, Machine

MACHINE_MIB = 1000


def machine(cpus: int) -> Machine:
    return Machine(
        cpus=tuple(Cpu(index=index, core=index, package=0, numa_node=0) for index in range(cpus)),
        quota=None,
        memory_total_mib=MACHINE_MIB,
    )
