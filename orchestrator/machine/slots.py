"""Slots: places for attempts, each with CPUs and GPUs of its own.

A slot takes CPUs that no run holds and no program loads, physical cores first. If there are too few,
it shares those with the least competition.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count as numbers
from typing import Literal, Protocol, TypeAlias, TypeVar

from orchestrator.core.front_end import option
from orchestrator.core.text import count, listed
from orchestrator.machine import topology
from orchestrator.machine.cpu_load import CpuLoad
from orchestrator.machine.cpu_locks import CpuLocks, HeldCpu, Holder
from orchestrator.machine.gpu import FreeGpus, Gpu
from orchestrator.machine.topology import Cpu, Machine

MaxParallel: TypeAlias = int | Literal["idle"] | None
"""Jobs at once: a number; as many as there are idle cores; None: as many as there are cores."""
MOST_CHOICES = 10
"""How often CPUs are chosen anew because another run has come first."""
MOST_NAMES = 3
"""Of those who use CPUs, in a message."""
PROGRAMS = "other programs"


Item = TypeVar("Item")


def part_of_rank(items: Sequence[Item], rank: int, ranks: int) -> Sequence[Item]:
    """What ``rank`` has of ``items``, such as the CPUs of a slot: those of rank 0 come first, then
    those of rank 1, and each rank has as many.
    """
    each = len(items) // ranks
    return items[rank * each : (rank + 1) * each]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSlot:
    """Room on one of several machines for some ranks of an attempt; all numbers are totals over
    these ranks.
    """

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
        return replace(
            self,
            ranks=ranks,
            cores=self.cores // self.ranks * ranks,
            # Whole ones: only an attempt with one rank has a share.
            gpus=self.gpus // self.ranks * ranks,
            memory_mib=self.memory_mib // self.ranks * ranks,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A place for one attempt, with its CPUs and GPUs."""

    index: int
    cpus: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()
    gpu_share: float = 1
    """Of each of ``gpus``."""
    shares_with: tuple[str, ...] = ()
    """Who else used ``cpus`` when they were chosen, for people."""
    expected_share: float = 1
    """Of the time of the most contended of ``cpus``, what is left for this slot if nobody gives
    way."""
    rank_slots: tuple[RankSlot, ...] = ()
    """On several machines: in place of ``cpus`` and ``gpus``, which each machine chooses."""


class Slots(Protocol):
    """The room for attempts, as the supervisor sees it. Not thread-safe."""

    @property
    def jobs_at_once(self) -> int:
        """The most jobs that run at the same time: what ``max_parallel`` comes to here and now."""

    @property
    def grows(self) -> bool:
        """Whether a request that does not fit into an empty pool may fit later."""

    def acquire(
        self, cores: int, gpus: float = 0, *, memory_mib: int = 0, ranks: int = 1, job_id: str = ""
    ) -> Slot | None:
        """A slot with these resources for all ranks together; None while there is none. Slots that
        grow may take note of what they have refused.

        :param job_id: for whom it is, for other runs.
        """

    def has_cores(self, cores: int, *, ranks: int = 1) -> bool:
        """Whether there would be a slot with ``cores`` CPUs for all ranks together, if it needs
        nothing else.
        """

    def fits_ever(
        self, cores: int, gpus: float = 0, *, memory_mib: int = 0, ranks: int = 1
    ) -> bool:
        """Whether there would be a slot with these resources if nothing else ran, on the machines
        that there are now.
        """

    def release(self, slot: Slot) -> None: ...

    def resize(self, max_parallel: int) -> int:
        """Change :attr:`jobs_at_once` to ``max_parallel``, or to what there is room for; returns
        it. Held slots stay held.
        """

    def tick(self) -> None:
        """Keep up with what happens on the machine. Called in every turn of the supervisor's
        loop.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuUse:
    """Who uses the CPUs of this machine at one moment."""

    own: Mapping[int, int] = field(default_factory=dict)
    """CPU → number of own jobs there."""
    holders: Sequence[Holder] = ()
    """Jobs of other runs."""
    load: Mapping[int, float] = field(default_factory=dict)
    """CPU → share of its time that it is busy for other programs."""

    def others(self, cpu: int) -> float:
        """Return the number of jobs of other runs on a CPU, or its load by programs in halves:
        smaller differences must not outweigh the order of preference.
        """
        jobs = sum(holder.cpu == cpu for holder in self.holders)
        return jobs or round(2 * self.load.get(cpu, 0.0)) / 2

    def total(self, cpu: int) -> float:
        return self.own.get(cpu, 0) + self.others(cpu)

    def names_on(self, cpus: Collection[int]) -> tuple[str, ...]:
        """Return who else uses ``cpus``, those with the most jobs first."""
        names = Counter(holder.name for holder in self.holders if holder.cpu in cpus)
        found = [name for name, _ in names.most_common()]
        held = {holder.cpu for holder in self.holders}
        if any(self.others(cpu) for cpu in cpus if cpu not in held):
            found.append(PROGRAMS)
        return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A slot that has other CPUs now."""

    slot: Slot
    because_of: tuple[str, ...]
    """Who uses the CPUs that it has left, for people; empty: another job of this run."""


@dataclass(frozen=True, slots=True)
class _HeldSlot:
    slot: Slot
    cpus: Sequence[HeldCpu]
    job_id: str


class SlotPool:
    """The slots of one machine. Not thread-safe.

    An empty pool has room for every job no larger than :func:`largest_job` and with no more GPUs
    than there are.
    """

    grows = False

    def __init__(
        self,
        machine: Machine,
        max_parallel: MaxParallel = None,
        *,
        locks: CpuLocks | None = None,
        load: CpuLoad | None = None,
        starts_workers: bool = True,
        is_exclusive: bool = False,
        find_gpus: Callable[[], Sequence[Gpu]] | None = None,
    ) -> None:
        """:param max_parallel: most jobs at once; None: the capacity of the machine; ``"idle"``: as
            many as there are idle cores, but at least one, and at most that capacity.
        :param locks: None: neither sees other runs nor is seen by them.
        :param load: None: other programs are not looked at.
        :param starts_workers: whether workers descend from this process, as other programs do not.
        :param is_exclusive: CPUs of other runs of this user are never shared, unless this pool's own
            jobs share CPUs too.
        :param find_gpus: asked for the GPUs when the first job needs one; None: those of
            ``machine`` are all.
        """
        self._machine = machine
        self._locks = locks or CpuLocks(None)
        self._load = load
        self._starts_workers = starts_workers
        self._asked = None if max_parallel == "idle" else max_parallel
        """``max_parallel``, where it is a number."""
        self._takes_idle_only = max_parallel == "idle"
        limit = machine.capacity if self._asked is None else max(1, self._asked)
        self.jobs_at_once = min(limit, machine.quota_cores or limit)
        self._capacity = max(self.jobs_at_once, machine.capacity)
        """Most jobs at once that :meth:`resize` gives, and most CPUs in use over all slots; a
        larger job runs alone."""
        self._users_per_cpu = math.ceil(self.jobs_at_once / len(machine.cpus))
        """Most slots on one CPU."""
        self._is_exclusive = is_exclusive and self._users_per_cpu == 1
        self._held: dict[int, _HeldSlot] = {}
        """By the index of the slot."""
        self._find_gpus = find_gpus
        self._gpus = _free_gpus(machine.gpus)

    def acquire(
        self,
        cores: int,
        gpus: float = 0,
        *,
        memory_mib: int = 0,
        ranks: int = 1,
        job_id: str = "",
    ) -> Slot | None:
        """A slot with ``cores`` CPUs and ``gpus`` GPUs (below 1: a share of one); None while there
        is none. Memory and ranks are ignored.
        """
        if not self._has_room(cores):
            return None
        self._look_for_gpus(gpus)
        gpu_names = self._gpus.find(gpus)
        if gpu_names is None:
            return None
        for _ in range(MOST_CHOICES):
            use = self.look()
            cpus = self._choose(cores, use)
            if cpus is None:
                return None
            held = self._take(cpus, use, job_id)
            if held is None:
                continue
            slot = Slot(
                index=self._free_index(),
                cpus=cpus,
                gpus=gpu_names,
                gpu_share=min(gpus, 1),
                shares_with=use.names_on(cpus),
                expected_share=1 / (1 + max(map(use.total, cpus))),
            )
            self._held[slot.index] = _HeldSlot(slot, held, job_id)
            self._gpus.change(slot.gpus, slot.gpu_share, -1)
            return slot
        return None

    def has_cores(self, cores: int, *, ranks: int = 1) -> bool:
        return self._has_room(cores) and self._choose(cores, self.look()) is not None

    def fits_ever(
        self, cores: int, gpus: float = 0, *, memory_mib: int = 0, ranks: int = 1
    ) -> bool:
        """Memory and ranks are ignored: a job that asks for more memory than there is runs alone."""
        self._look_for_gpus(gpus)
        return cores <= topology.largest_job(self._machine) and gpus <= len(self._machine.gpus)

    def machine_for(self, gpus: float) -> Machine:
        """Return the machine, with its GPUs if any are asked for."""
        self._look_for_gpus(gpus)
        return self._machine

    def resume(self, cpus: tuple[int, ...]) -> Slot:
        """A slot with exactly these CPUs, for an attempt that already has them from an earlier
        pool.
        """
        held = self._take(cpus, self.look(), "") or [HeldCpu(cpu) for cpu in cpus]
        slot = Slot(index=self._free_index(), cpus=cpus)
        self._held[slot.index] = _HeldSlot(slot, held, "")
        return slot

    def release(self, slot: Slot) -> None:
        """:raises ValueError: when ``slot`` is not held: released before, or of another pool."""
        held = self._held.get(slot.index)
        if held is None or held.slot != slot:
            raise ValueError(f"{slot} is not held")
        del self._held[slot.index]
        self._give_back(held.cpus)
        self._gpus.change(slot.gpus, slot.gpu_share, 1)

    def resize(self, max_parallel: int) -> int:
        """At most the capacity of the machine, or the jobs at once with which the pool was made
        if that is more.
        """
        self.jobs_at_once = max(1, min(max_parallel, self._capacity))
        return self.jobs_at_once

    def look(self) -> CpuUse:
        """Return who uses which CPUs now. Measures the load, if it was not measured lately."""
        own = Counter(cpu for held in self._held.values() for cpu in held.slot.cpus)
        holders = self._locks.others()
        load: Mapping[int, float] = {}
        if self._load is not None:
            load = self._load.shares(self._held_elsewhere(holders))
        return CpuUse(own=own, holders=holders, load=load)

    def move(
        self, slot: Slot, contended: Collection[int], put: Callable[[Mapping[int, int]], bool]
    ) -> Moved | None:
        """Give a slot idle CPUs in place of those of ``contended`` that others use, too.

        Return None if there are none of these or of those, or the attempt cannot be moved.

        :param put: moves the attempt. CPU → the one in its place. Returns whether it has moved.
        """
        held = self._held[slot.index]
        use = self.look()
        leaving = [cpu for cpu in slot.cpus if cpu in contended and use.total(cpu) > 1]
        chosen = choose(len(leaving), self._idle(use), self._machine.cpus, use) or ()
        taken = self._take(chosen, use, held.job_id)
        if not taken:
            return None
        to = dict(zip(leaving, chosen, strict=True))
        if not put(to):
            self._give_back(taken)
            return None
        self._give_back([cpu for cpu in held.cpus if cpu.cpu in to])
        moved = replace(
            slot,
            cpus=tuple(to.get(cpu, cpu) for cpu in slot.cpus),
            shares_with=(),
            expected_share=1,
        )
        kept = [cpu for cpu in held.cpus if cpu.cpu not in to]
        self._held[slot.index] = _HeldSlot(moved, [*kept, *taken], held.job_id)
        return Moved(slot=moved, because_of=use.names_on(leaving))

    def tick(self) -> None:
        """Keep up with what other programs do. To be called again and again."""
        if self._load is not None:
            self._load.tick(lambda: self._held_elsewhere(self._locks.others()))

    def close(self) -> None:
        """Give back all CPUs: other runs see them as free."""
        for held in self._held.values():
            self._give_back(held.cpus)

    def warnings(self) -> tuple[str, ...]:
        """What is wrong with the number of jobs at once, and who uses CPUs and GPUs."""
        asked = self._asked or 0
        machine = self._machine
        texts = []
        if asked > min(self.jobs_at_once, machine.physical_cores):
            quota = (
                "" if machine.quota is None else f" and a cgroup quota of {machine.quota:g} CPUs"
            )
            texts.append(
                f"max_parallel = {asked}, but there are {count(machine.physical_cores, 'physical core')}{quota}:"
                f" jobs that share one slow each other. {self.jobs_at_once} run at once;"
                f" {machine.capacity} would not share"
            )
        use = self.look()
        usable = [cpu.index for cpu in machine.cpus]
        taken = [cpu for cpu in usable if use.others(cpu)]
        if (
            len(usable) - len(taken) < self.jobs_at_once <= len(usable)
            and not self._takes_idle_only
        ):
            who = listed(use.names_on(taken), MOST_NAMES)
            texts.append(
                f"{len(taken)} of {count(len(usable), 'usable CPU')} are in use now, by {who}: jobs will share them."
                f" {option('max_parallel', 'idle')} runs as many at once as there are idle cores"
            )
        for gpu in machine.gpus:
            if gpu.is_in_use:
                text = f"other programs use GPU {gpu.index} ({gpu.name}): jobs are given it last"
                texts.append(f"{text}. CUDA_VISIBLE_DEVICES leaves it out")
        return tuple(texts)

    def _has_room(self, cores: int) -> bool:
        in_use = sum(len(held.slot.cpus) for held in self._held.values())
        return len(self._held) < self.jobs_at_once and (
            not self._held or in_use + cores <= self._capacity
        )

    def _look_for_gpus(self, asked: float) -> None:
        """Find the GPUs, where that was left until a job asks for one."""
        if asked and self._find_gpus is not None:
            self._machine = replace(self._machine, gpus=tuple(self._find_gpus()))
            self._gpus = _free_gpus(self._machine.gpus)
            self._find_gpus = None

    def _free_index(self) -> int:
        return next(index for index in numbers() if index not in self._held)

    def _choose(self, cores: int, use: CpuUse) -> tuple[int, ...] | None:
        """Return the CPUs that are best for a further slot; None while there are too few."""
        is_idle_asked = self._takes_idle_only and self._held
        free = self._idle(use) if is_idle_asked else self._machine.cpus
        refused = {cpu for cpu, number in use.own.items() if number >= self._users_per_cpu}
        if self._is_exclusive:
            refused |= {holder.cpu for holder in use.holders if holder.is_own_user}
        free = [cpu for cpu in free if cpu.index not in refused]
        return choose(cores, free, self._machine.cpus, use)

    def _idle(self, use: CpuUse) -> list[Cpu]:
        """Return the CPUs of cores on which nothing runs."""
        busy_cores = {cpu.core for cpu in self._machine.cpus if use.total(cpu.index)}
        return [cpu for cpu in self._machine.cpus if cpu.core not in busy_cores]

    def _take(self, cpus: Sequence[int], use: CpuUse, job_id: str) -> list[HeldCpu] | None:
        """Lock all of ``cpus``, or none of them if another run has come first to one."""
        taken: list[HeldCpu] = []
        for cpu in cpus:
            held = self._locks.take(cpu, use.holders, job_id)
            if held is None:
                self._give_back(taken)
                return None
            taken.append(held)
        return taken

    def _give_back(self, cpus: Sequence[HeldCpu]) -> None:
        for cpu in cpus:
            self._locks.give_back(cpu)
        if self._load is not None:
            self._load.note_left([cpu.cpu for cpu in cpus])

    def _held_elsewhere(self, holders: Sequence[Holder]) -> set[int]:
        """Return the CPUs whose load is that of jobs that are known, but no processes of this one."""
        held = {holder.cpu for holder in holders}
        if not self._starts_workers:
            held.update(cpu for own in self._held.values() for cpu in own.slot.cpus)
        return held


def choose(
    cores: int, free: Sequence[Cpu], machine: Sequence[Cpu], use: CpuUse
) -> tuple[int, ...] | None:
    """Return ``cores`` of the CPUs ``free``, those with the least competition; None if they are too
    few.

    Among equals, idle cores come before siblings of busy ones, and then the order of ``free``
    decides. Several CPUs come from one NUMA node if that does not mean more competition, and are
    otherwise sorted by node.

    :param machine: all usable CPUs, in order of preference.
    """
    on_cpu = {cpu: use.total(cpu.index) for cpu in machine}
    on_core: dict[int, float] = defaultdict(float)
    for cpu, total in on_cpu.items():
        on_core[cpu.core] += total

    def cost(chosen: Sequence[Cpu]) -> tuple[float, ...]:
        return (
            sum(on_cpu[cpu] for cpu in chosen),
            sum(on_core[cpu.core] for cpu in chosen),
            -len({cpu.core for cpu in chosen}),
            len({cpu.numa_node for cpu in chosen}),
        )

    best_first = sorted(free, key=lambda cpu: (on_cpu[cpu], on_core[cpu.core]))
    parts = [best_first]
    for node in sorted({cpu.numa_node for cpu in free}):
        parts.append([cpu for cpu in best_first if cpu.numa_node == node])
    parts.sort(key=len)  # nodes with few free CPUs first: larger jobs may need the others
    choices = [part[:cores] for part in parts if len(part) >= cores]
    if not choices:
        return None
    best = best_first[:1] if cores == 1 else min(choices, key=cost)
    # CPUs of one node are adjacent, because ranks take theirs in this order.
    return tuple(cpu.index for cpu in sorted(best, key=lambda cpu: cpu.numa_node))


def _free_gpus(gpus: Sequence[Gpu]) -> FreeGpus:
    """All of ``gpus``, those last that others use."""
    return FreeGpus(gpu.index for gpu in sorted(gpus, key=lambda gpu: gpu.is_in_use))
