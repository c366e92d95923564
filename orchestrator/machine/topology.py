"""The part of the machine that this process may use: CPUs, CPU quota, memory, GPUs.

Imports only the standard library; :func:`detect` reads a few files of the kernel in milliseconds,
and starts a process only when GPUs are asked for.
"""

from __future__ import annotations

import functools
import math
import os
import platform
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.processes.procfs import text_of
from orchestrator.core.text import cpu_text
from orchestrator.machine import cgroup
from orchestrator.machine.cgroup import ROOT
from orchestrator.machine.gpu import Gpu, detect_gpus

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """A logical CPU under the kernel's number."""

    index: int
    core: int
    """Lowest CPU of the physical core: unlike the kernel's ``core_id`` it is unique over packages
    and dies."""
    package: int
    numa_node: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The resources that this process may use."""

    cpus: tuple[Cpu, ...]
    """In order of preference, never empty: one CPU per physical core, NUMA nodes in turn; then
    their SMT siblings."""
    quota: float | None
    """CPU seconds per second that the cgroup and its ancestors allow; None without a limit."""
    memory_total_mib: int
    """Physical memory, or a cgroup's limit if that is less."""
    gpus: tuple[Gpu, ...] = ()

    @property
    def physical_cores(self) -> int:
        return len({cpu.core for cpu in self.cpus})

    @property
    def quota_cores(self) -> int | None:
        """Cores that the quota can keep busy, at least one: with a quota of 2.5, a third would
        stall all three.
        """
        return None if self.quota is None else max(1, math.floor(self.quota))

    @property
    def capacity(self) -> int:
        """Number of one-core jobs at once by default: one per physical core, within the quota."""
        return min(self.physical_cores, self.quota_cores or self.physical_cores)


def largest_job(machine: Machine) -> int:
    """The largest value of ``cores`` that a job can have on ``machine``."""
    return min(len(machine.cpus), machine.quota_cores or len(machine.cpus))


def detect(
    root: Path = ROOT, affinity: Iterable[int] | None = None, *, with_gpus: bool = False
) -> Machine:
    """Detect the machine from the kernel's files below ``root``; GPUs with nvidia-smi, which can
    take a second.
    """
    if affinity is None and root == ROOT:
        affinity = os.sched_getaffinity(0)
    online = online_cpus(root)
    allowed = set(online if affinity is None else affinity) or set(range(os.cpu_count() or 1))
    usable = allowed.intersection(online) or allowed
    cpus = _cpus(root, sorted(usable))
    limit = cgroup.memory_limit(root)
    total = _meminfo_mib(root, "MemTotal")
    return Machine(
        cpus=_preference(cpus),
        quota=cgroup.cpu_quota(root),
        memory_total_mib=total if limit is None else min(total, limit // MIB),
        gpus=detect_gpus() if with_gpus else (),
    )


@functools.cache
def cpu_model() -> str:
    """The name of the processor; its architecture where the kernel does not name it."""
    for line in (text_of(Path("/proc/cpuinfo")) or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def online_cpus(root: Path = ROOT) -> list[int]:
    """Every CPU that is online, whether this process may use it or not; empty when the kernel does
    not report it.
    """
    return cpu_list(text_of(root / "sys/devices/system/cpu/online"))


def restrictions(machine: Machine, online: Sequence[int], niceness: int) -> list[str]:
    """What this process and its jobs have or may use by `nice`, `taskset` and the like; empty where
    they do nothing.

    :param online: as from :func:`online_cpus`.
    """
    usable = sorted(cpu.index for cpu in machine.cpus)
    found = []
    if niceness > 0:
        found.append(f"have niceness {niceness}")
    if len(usable) < len(online):
        found.append(f"may use only {cpu_text(usable)} of the {len(online)} online")
    return found


def cpu_list(text: str | None) -> list[int]:
    """``"0-3,8\\n"`` → ``[0, 1, 2, 3, 8]``, the kernel's list format."""
    numbers: list[int] = []
    for part in (text or "").strip().split(","):
        first, _, last = part.partition("-")
        if first.isdecimal():
            numbers += range(int(first), int(last or first) + 1)
    return numbers


def _cpus(root: Path, allowed: Sequence[int]) -> list[Cpu]:
    nodes = {
        index: int(directory.name.removeprefix("node"))
        for directory in (root / "sys/devices/system/node").glob("node[0-9]*")
        for index in cpu_list(text_of(directory / "cpulist"))
    }
    core_of: dict[int, int] = {}
    package_of: dict[int, int] = {}
    for index in allowed:
        if index in core_of:
            continue
        topology = root / f"sys/devices/system/cpu/cpu{index}/topology"
        siblings = cpu_list(text_of(topology / "thread_siblings_list")) or [index]
        package = (text_of(topology / "physical_package_id") or "").strip()
        # All siblings at once, which halves the number of files to read.
        for sibling in (index, *siblings):
            core_of[sibling] = min(siblings)
            # Some virtual machines and ARM kernels give package -1: "unknown".
            package_of[sibling] = int(package) if package.isdecimal() else 0
    return [
        Cpu(
            index=index,
            core=core_of[index],
            package=package_of[index],
            numa_node=nodes.get(index, 0),
        )
        for index in allowed
    ]


def _preference(cpus: Iterable[Cpu]) -> tuple[Cpu, ...]:
    """Physical cores before siblings; NUMA nodes in turn, so that few jobs share neither cache nor
    memory channels.
    """
    seen_of_core: Counter[int] = Counter()
    seen_of_node: Counter[tuple[int, int]] = Counter()
    rank: dict[Cpu, tuple[int, int]] = {}
    """How many CPUs of its core come first, and how many such CPUs of its NUMA node."""
    for cpu in sorted(cpus, key=lambda cpu: (cpu.package, cpu.index)):
        sibling = seen_of_core[cpu.core]
        rank[cpu] = sibling, seen_of_node[cpu.numa_node, sibling]
        seen_of_core[cpu.core] += 1
        seen_of_node[cpu.numa_node, sibling] += 1
    return tuple(sorted(rank, key=lambda cpu: (rank[cpu], cpu.numa_node, cpu.index)))


def _meminfo_mib(root: Path, key: str) -> int:
    for line in (text_of(root / "proc/meminfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) // 1024  # the unit kB in this file means KiB
    return 0


def available_memory_mib(root: Path = ROOT) -> int:
    """Memory that can be allocated now without swapping and without being killed for a cgroup's
    limit.
    """
    free = _meminfo_mib(root, "MemAvailable")
    headroom = cgroup.memory_headroom(root)
    return free if headroom is None else min(free, headroom // MIB)
