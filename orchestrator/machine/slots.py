"""Slots: concurrency lanes with CPUs and GPUs of their own, handed out and taken back."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from orchestrator.machine.cpu_locks import CpuLocks
from orchestrator.machine.topology import Cpu, Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSlot:
    """Room on one machine of several, for so many ranks of an attempt; the figures are of all of these together."""

    node: str
    """The machine, as its executor names it."""
    ranks: int = 1
    cores: int = 1
    gpus: int = 0
    memory_mib: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A concurrency lane, and the CPUs and GPUs bound to it."""

    index: int
    cpus: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()
    rank_slots: tuple[RankSlot, ...] = ()
    """Over several machines, instead of the two above: these are chosen where it runs."""


class Slots(Protocol):
    """What a supervisor needs of the room there is for attempts. One thread."""

    @property
    def lanes(self) -> int:
        """How many slots there are at once, at most."""
        ...

    @property
    def grows(self) -> bool:
        """Whether there may be room later for what an empty pool has no room for."""
        ...

    def acquire(self, cores: int, gpus: int = 0, *, memory_mib: int = 0, ranks: int = 1) -> Slot | None:
        """A slot with so much, all ranks together; None while there is none."""
        ...

    def release(self, slot: Slot) -> None:
        """Give ``slot`` back."""
        ...

    def warnings(self) -> Sequence[str]:
        """What the user should know about it, in whole sentences."""
        ...

    def close(self) -> None:
        """Give everything back."""
        ...


class SlotPool:
    """Hands out lanes with CPUs and GPUs, and takes them back. One thread.

    A job no larger than :func:`largest_job` that asks for no more GPUs than there are always gets a
    slot of an empty pool, so that waiting for a slot ends.
    """

    grows = False

    def __init__(self, machine: Machine, max_parallel: int | None = None, locks: CpuLocks | None = None) -> None:
        """:param max_parallel: jobs at once; None for the machine's own capacity.
        :param locks: what other supervisors on this machine hold, to keep out of their way; None for a pool alone.
        """
        self._machine = machine
        self._locks = locks or CpuLocks(directory=None)
        self._asked = max_parallel
        wanted = machine.capacity if max_parallel is None else max(1, max_parallel)
        self.lanes = min(wanted, machine.quota_cores or wanted)
        """How many slots there are at once."""
        self._users_per_cpu = math.ceil(self.lanes / len(machine.cpus))
        self._budget = max(machine.capacity, self.lanes)
        """CPUs handed out at once, over all slots; a job larger than it runs alone."""
        self._held: dict[int, Slot] = {}

    def acquire(self, cores: int, gpus: int = 0, *, memory_mib: int = 0, ranks: int = 1) -> Slot | None:
        """A slot with ``cores`` CPUs and ``gpus`` GPUs of its own; None while there is none. Memory is not looked at.

        CPUs with the fewest users come first, those of other supervisors included, then those of idle cores; a job
        of several cores, or ranks, gets them on one NUMA node where that costs no sharing, and node by node elsewhere.
        """
        in_use = sum(len(slot.cpus) for slot in self._held.values())
        if len(self._held) >= self.lanes or (self._held and in_use + cores > self._budget):
            return None
        with self._locks.choosing() as elsewhere:
            slot = self._slot(cores, gpus, elsewhere)
            if slot is not None:
                self._held[slot.index] = slot
                self._locks.take(slot.cpus)
        return slot

    def _slot(self, cores: int, gpus: int, elsewhere: frozenset[int]) -> Slot | None:
        taken = {gpu for slot in self._held.values() for gpu in slot.gpus}
        free_gpus = [gpu.index for gpu in self._machine.gpus if gpu.index not in taken]
        cpus = self._choose(cores, elsewhere)
        if cpus is None or len(free_gpus) < gpus:
            return None
        index = next(index for index in range(self.lanes) if index not in self._held)
        return Slot(index=index, cpus=cpus, gpus=tuple(free_gpus[:gpus]))

    def resume(self, cpus: tuple[int, ...]) -> Slot:
        """A slot with just these CPUs, for one that has them already from a pool before this one."""
        slot = Slot(index=next(index for index in itertools.count() if index not in self._held), cpus=cpus)
        self._held[slot.index] = slot
        self._locks.take(cpus)
        return slot

    def release(self, slot: Slot) -> None:
        """Give ``slot`` back.

        :raises ValueError: when it is not held: released twice, or from another pool.
        """
        if self._held.get(slot.index) != slot:
            raise ValueError(f"{slot} is not held")
        del self._held[slot.index]
        self._locks.give_back(set(slot.cpus) - {cpu for other in self._held.values() for cpu in other.cpus})

    def close(self) -> None:
        """Give every CPU back to other supervisors."""
        self._locks.give_back(set(self._locks.held))

    def _choose(self, cores: int, elsewhere: frozenset[int]) -> tuple[int, ...] | None:
        users = Counter(cpu for slot in self._held.values() for cpu in slot.cpus)
        free = [cpu for cpu in self._machine.cpus if users[cpu.index] < self._users_per_cpu]
        users.update(elsewhere)
        nodes = {cpu.numa_node for cpu in free} if cores > 1 else ()
        choices = [self._greedy(cores, free, users)]
        choices += (self._greedy(cores, [cpu for cpu in free if cpu.numa_node == node], users) for node in nodes)
        best = min((choice for choice in choices if choice is not None), default=None)
        return best[1] if best else None

    def _greedy(
        self, cores: int, free: Sequence[Cpu], users: Counter[int]
    ) -> tuple[tuple[int, int, int], tuple[int, ...]] | None:
        """The best ``cores`` CPUs of ``free``, and what speaks against them: sharing, nodes spanned, CPUs left over."""
        if len(free) < cores:
            return None
        core_of = {cpu.index: cpu.core for cpu in self._machine.cpus}
        core_users: Counter[int] = Counter()
        for index, count in users.items():
            core_users[core_of[index]] += count
        chosen: list[Cpu] = []
        shared = 0
        for _ in range(cores):
            # min() takes the first of equals: the machine's order of preference decides.
            cpu = min(
                (cpu for cpu in free if cpu not in chosen), key=lambda cpu: (users[cpu.index], core_users[cpu.core])
            )
            shared += core_users[cpu.core]
            core_users[cpu.core] += 1
            chosen.append(cpu)
        cost = shared, len({cpu.numa_node for cpu in chosen}), len(free) - cores
        # The CPUs of a node side by side: ranks take theirs one after the other.
        return cost, tuple(cpu.index for cpu in sorted(chosen, key=lambda cpu: cpu.numa_node))

    def warnings(self) -> tuple[str, ...]:
        """What the user should know about the number of jobs asked for, in whole sentences."""
        asked, capacity = self._asked, self._machine.capacity
        cpus, physical = len(self._machine.cpus), self._machine.physical_cores
        texts = []
        if asked is not None and asked > self.lanes:
            texts.append(
                f"max_parallel = {asked}, but the cgroup CPU quota is {self._machine.quota:g} CPUs: {self.lanes} at"
                " once, as the kernel would stop more of them in turns. Raise the quota to run more: docker --cpus,"
                " Kubernetes limits.cpu, systemd CPUQuota=."
            )
        if self.lanes > cpus:
            texts.append(
                f"max_parallel = {asked}, but only {cpus} CPUs are usable: up to {self._users_per_cpu} jobs share a"
                f" CPU, and all together finish no sooner. max_parallel = {capacity} avoids it."
            )
        elif self.lanes > physical:
            texts.append(
                f"max_parallel = {asked}, but the {cpus} usable CPUs are {physical} physical cores: jobs on SMT"
                f" siblings of one core slow each other. max_parallel = {capacity} gives each a core of its own."
            )
        with self._locks.choosing() as elsewhere:
            left = cpus - len(elsewhere)
        if left < self.lanes <= cpus:
            texts.append(
                f"other experiments of yours hold {len(elsewhere)} of {cpus} CPUs now: with up to {self.lanes} jobs at"
                f" once some will share a core with them. --max-parallel {max(left, 1)} makes that fewer."
            )
        return tuple(texts)
