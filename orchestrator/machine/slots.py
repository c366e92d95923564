"""Slots: concurrency lanes with CPUs and GPUs of their own."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from orchestrator.core.text import count
from orchestrator.machine.cpu_locks import CpuLocks
from orchestrator.machine.gpu import FreeGpus
from orchestrator.machine.topology import Cpu, Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSlot:
    """Room on one of several machines for some ranks of an attempt; all numbers are totals over these ranks."""

    node: str
    ranks: int = 1
    cores: int = 1
    gpus: float = 0
    memory_mib: int = 0
    gpu_names: tuple[str, ...] = ()
    """The GPUs of the machine that are counted as taken."""

    def with_ranks(self, ranks: int) -> RankSlot:
        """Room for another number of the same ranks."""
        if ranks == self.ranks:
            return self
        cores, memory_mib = (total // self.ranks * ranks for total in (self.cores, self.memory_mib))
        gpus = self.gpus // self.ranks * ranks  # whole ones: only an attempt with one rank has a share
        return replace(self, ranks=ranks, cores=cores, gpus=gpus, memory_mib=memory_mib)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A concurrency lane with its CPUs and GPUs."""

    index: int
    cpus: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()
    gpu_share: float = 1
    """Of each of ``gpus``."""
    rank_slots: tuple[RankSlot, ...] = ()
    """On several machines: in place of ``cpus`` and ``gpus``, which each machine chooses."""


class Slots(Protocol):
    """The room for attempts, as the supervisor sees it. Not thread-safe."""

    @property
    def lanes(self) -> int:
        """Maximum number of slots at once."""

    @property
    def grows(self) -> bool:
        """Whether a request that does not fit into an empty pool may fit later."""

    @property
    def is_full(self) -> bool:
        """Whether there is no slot for a job of one core."""

    def acquire(self, cores: int, gpus: float = 0, *, memory_mib: int = 0, ranks: int = 1) -> Slot | None:
        """A slot with these resources for all ranks together; None while there is none."""

    def release(self, slot: Slot) -> None: ...

    def resize(self, max_parallel: int) -> int:
        """Change :attr:`lanes` to ``max_parallel``, or to what there is room for; returns it. Held slots stay held."""


class SlotPool:
    """The slots of one machine. Not thread-safe.

    An empty pool has room for every job no larger than :func:`largest_job` and with no more GPUs than there are.
    """

    grows = False

    def __init__(
        self,
        machine: Machine,
        max_parallel: int | None = None,
        locks: CpuLocks | None = None,
        *,
        waits_for_others: bool = False,
    ) -> None:
        """:param max_parallel: jobs at once; None: the capacity of the machine.
        :param locks: tells which CPUs other supervisors use; None: there are no others.
        :param waits_for_others: CPUs of other supervisors are never shared, unless this pool's own jobs share CPUs too.
        """
        self._machine = machine
        self._locks = locks or CpuLocks(directory=None)
        self._asked = max_parallel
        lanes = machine.capacity if max_parallel is None else max(1, max_parallel)
        self.lanes = min(lanes, machine.quota_cores or lanes)
        self._most = max(self.lanes, machine.capacity)
        self._users_per_cpu = math.ceil(self.lanes / len(machine.cpus))
        self._is_exclusive = waits_for_others and self._users_per_cpu == 1
        self._budget = max(machine.capacity, self.lanes)
        """Maximum number of CPUs in use over all slots; a larger job runs alone."""
        self._held: dict[int, Slot] = {}
        self._gpus = FreeGpus(gpu.index for gpu in machine.gpus)

    @property
    def is_full(self) -> bool:
        return not self._has_room(cores=1)

    def acquire(
        self,
        cores: int,
        gpus: float = 0,
        *,
        memory_mib: int = 0,
        ranks: int = 1,
        in_use_elsewhere: Collection[int] = (),
    ) -> Slot | None:
        """A slot with ``cores`` CPUs and ``gpus`` GPUs (below 1: a share of one); None while there is none.

        Memory and ranks are ignored. CPUs with the fewest users (other supervisors included) are preferred, then those
        of idle cores. Several cores come from one NUMA node if that does not mean sharing, otherwise sorted by node.

        :param in_use_elsewhere: CPUs that others use without a lock.
        """
        if not self._has_room(cores):
            return None
        with self._locks.choosing() as locked:
            slot = self._slot(cores, gpus, locked.union(in_use_elsewhere))
            if slot is not None and not self._locks.take(slot.cpus) and self._is_exclusive:
                self._locks.give_back(slot.cpus)
                return None
        if slot is not None:
            self._held[slot.index] = slot
            self._gpus.change(slot.gpus, slot.gpu_share, -1)
        return slot

    def _has_room(self, cores: int) -> bool:
        in_use = sum(len(slot.cpus) for slot in self._held.values())
        return len(self._held) < self.lanes and (not self._held or in_use + cores <= self._budget)

    def _slot(self, cores: int, gpus: float, elsewhere: frozenset[int]) -> Slot | None:
        cpus = self._choose(cores, elsewhere)
        if cpus is None or (names := self._gpus.find(gpus)) is None:
            return None
        index = next(index for index in range(self.lanes) if index not in self._held)
        return Slot(index=index, cpus=cpus, gpus=names, gpu_share=min(gpus, 1))

    def resume(self, cpus: tuple[int, ...]) -> Slot:
        """A slot with exactly these CPUs, for an attempt that already has them from an earlier pool."""
        slot = Slot(index=next(index for index in itertools.count() if index not in self._held), cpus=cpus)
        self._held[slot.index] = slot
        self._locks.take(cpus)
        return slot

    def release(self, slot: Slot) -> None:
        """:raises ValueError: when ``slot`` is not held: released before, or of another pool."""
        if self._held.get(slot.index) != slot:
            raise ValueError(f"{slot} is not held")
        del self._held[slot.index]
        self._gpus.change(slot.gpus, slot.gpu_share, 1)
        self._locks.give_back(set(slot.cpus) - {cpu for other in self._held.values() for cpu in other.cpus})

    def resize(self, max_parallel: int) -> int:
        """At most the capacity of the machine, or the number of lanes with which the pool was made if that is more."""
        self.lanes = max(1, min(max_parallel, self._most))
        return self.lanes

    def close(self) -> None:
        """Release the locks of all CPUs."""
        self._locks.give_back(set(self._locks.held))

    def _choose(self, cores: int, elsewhere: frozenset[int]) -> tuple[int, ...] | None:
        users = Counter(cpu for slot in self._held.values() for cpu in slot.cpus)
        free = [cpu for cpu in self._machine.cpus if users[cpu.index] < self._users_per_cpu]
        if self._is_exclusive:
            free = [cpu for cpu in free if cpu.index not in elsewhere]
        users.update(elsewhere & {cpu.index for cpu in self._machine.cpus})
        nodes = {cpu.numa_node for cpu in free} if cores > 1 else ()
        choices = [self._greedy(cores, free, users)]
        choices += (self._greedy(cores, [cpu for cpu in free if cpu.numa_node == node], users) for node in nodes)
        best = min((choice for choice in choices if choice is not None), default=None)
        return best[1] if best else None

    def _greedy(
        self, cores: int, free: Sequence[Cpu], users: Counter[int]
    ) -> tuple[tuple[int, int, int], tuple[int, ...]] | None:
        """The best ``cores`` CPUs of ``free`` and their cost: users shared with, nodes spanned, CPUs left over."""
        if len(free) < cores:
            return None
        core_of = {cpu.index: cpu.core for cpu in self._machine.cpus}
        core_users: Counter[int] = Counter()
        for index, number in users.items():
            core_users[core_of[index]] += number
        chosen: list[Cpu] = []
        shared = 0
        for _ in range(cores):
            # min() takes the first of equals, so that the machine's order of preference decides.
            rest = (cpu for cpu in free if cpu not in chosen)
            cpu = min(rest, key=lambda cpu: (users[cpu.index], core_users[cpu.core]))
            shared += core_users[cpu.core]
            core_users[cpu.core] += 1
            chosen.append(cpu)
        cost = shared, len({cpu.numa_node for cpu in chosen}), len(free) - cores
        # CPUs of one node are adjacent, because ranks take theirs in this order.
        return cost, tuple(cpu.index for cpu in sorted(chosen, key=lambda cpu: cpu.numa_node))

    def warnings(self) -> tuple[str, ...]:
        """What is wrong with the number of jobs at once."""
        asked, capacity = self._asked, self._machine.capacity
        cpus, physical = len(self._machine.cpus), self._machine.physical_cores
        texts = []
        if asked is not None and asked > self.lanes:
            texts.append(
                f"max_parallel = {asked}, but the cgroup CPU quota is {self._machine.quota:g} CPUs: {self.lanes} at"
                " once. To run more, raise the quota: docker --cpus, Kubernetes limits.cpu, systemd CPUQuota=."
            )
        if self.lanes > cpus:
            texts.append(
                f"max_parallel = {asked}, but only {count(cpus, 'CPU is', 'CPUs are')} usable: up to"
                f" {self._users_per_cpu} jobs share a CPU, and the experiment does not finish sooner."
                f" max_parallel = {capacity} avoids this."
            )
        elif self.lanes > physical:
            texts.append(
                f"max_parallel = {asked}, but the {cpus} usable CPUs are {physical} physical cores: jobs on SMT"
                f" siblings of one core slow each other. max_parallel = {capacity} gives each a core of its own."
            )
        with self._locks.choosing() as elsewhere:
            free = cpus - len(elsewhere)
        if free < self.lanes <= cpus:
            text = f"other experiments of yours use {len(elsewhere)} of {count(cpus, 'usable CPU')} now: "
            if self.lanes == 1:
                text += "a job will share its core with them until they end."
            else:
                text += f"some of up to {self.lanes} jobs at once will share a core with them."
                text += f" --max-parallel {max(free, 1)} avoids most of this."
            texts.append(text)
        return tuple(texts)
