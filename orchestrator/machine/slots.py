"""Slots: places for attempts, each with CPUs and GPUs of its own."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, TypeAlias, TypeVar

from orchestrator.core.front_end import option
from orchestrator.core.text import count, listed
from orchestrator.machine import placement, topology
from orchestrator.machine.gpu import FreeGpus, Gpu
from orchestrator.machine.neighbours import Neighbours
from orchestrator.machine.placement import CpuUse
from orchestrator.machine.topology import Cpu, Machine

MaxParallel: TypeAlias = int | Literal["idle"] | None
"""Jobs at once: a number; as many as there are idle cores; None: as many as there are cores."""
MOST_CHOICES = 3
"""How often CPUs are chosen anew because another run has chosen the same at the same moment."""
LONGEST_PAUSE_S = 0.003
MOST_NAMES = 3
"""Of those who use CPUs, in a message."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuReservation:
    """Idle CPUs that are held for a slot beside its own, until its attempt has moved there."""

    slot: Slot
    to: Mapping[int, int]
    """CPU of the slot to be left → the one in its place."""
    because_of: tuple[str, ...]
    """Who uses the CPUs to be left, for people."""
    at: float
    """Monotonic seconds."""

    @property
    def moved_slot(self) -> Slot:
        """The slot with the new CPUs, in the order of the earlier ones: each rank has its own."""
        return replace(
            self.slot,
            cpus=tuple(self.to.get(cpu, cpu) for cpu in self.slot.cpus),
            shares_with=(),
            expected_share=1,
        )


class Slots(Protocol):
    """The room for attempts, as the supervisor sees it. Not thread-safe."""

    @property
    def jobs_at_once(self) -> int:
        """The most jobs that run at the same time: what ``max_parallel`` comes to here and now."""

    @property
    def grows(self) -> bool:
        """Whether a request that does not fit into an empty pool may fit later."""

    @property
    def is_full(self) -> bool:
        """Whether there is no slot for a job of one core."""

    def acquire(
        self, cores: int, gpus: float = 0, *, memory_mib: int = 0, ranks: int = 1
    ) -> Slot | None:
        """A slot with these resources for all ranks together; None while there is none. Slots that
        grow may take note of what they have refused.
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
        neighbours: Neighbours | None = None,
        *,
        waits_for_others: bool = False,
        find_gpus: Callable[[], Sequence[Gpu]] | None = None,
    ) -> None:
        """:param max_parallel: most jobs at once; None: the capacity of the machine; ``"idle"``: as
            many as there are idle cores, but at least one, and at most that capacity.
        :param neighbours: tells who else uses the CPUs; None: nobody does.
        :param waits_for_others: CPUs of other runs of this user are never shared, unless this
            pool's own jobs share CPUs too.
        :param find_gpus: asked for the GPUs when the first job needs one; None: those of
            ``machine`` are all.
        """
        self._machine = machine
        self._neighbours = neighbours or Neighbours()
        self._asked = None if max_parallel == "idle" else max_parallel
        """``max_parallel``, where it is a number."""
        self._takes_idle_only = max_parallel == "idle"
        limits = [
            machine.capacity if self._asked is None else max(1, self._asked),
            machine.quota_cores,
        ]
        self.jobs_at_once = min(limit for limit in limits if limit)
        self._capacity = max(self.jobs_at_once, machine.capacity)
        """Most jobs at once that :meth:`resize` gives, and most CPUs in use over all slots; a
        larger job runs alone."""
        self._users_per_cpu = math.ceil(self.jobs_at_once / len(machine.cpus))
        """Most slots on one CPU."""
        self._is_exclusive = waits_for_others and self._users_per_cpu == 1
        self._held: dict[int, Slot] = {}
        self._reserved: dict[int, CpuReservation] = {}
        """By the index of their slot."""
        self._find_gpus = find_gpus
        self._gpus = _free_gpus(machine.gpus)

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
        """A slot with ``cores`` CPUs and ``gpus`` GPUs (below 1: a share of one); None while there
        is none.

        Memory and ranks are ignored. CPUs that the fewest compete for are preferred
        (:func:`.placement.choose`).

        :param in_use_elsewhere: CPUs that others hold without saying so.
        """
        if not self._has_room(cores):
            return None
        self._look_for_gpus(gpus)
        self._neighbours.refresh()  # first, since others of this user wait meanwhile
        for choice in range(1, MOST_CHOICES + 1):
            with self._neighbours.turn():
                use = self._neighbours.look(self._own(), in_use_elsewhere)
                slot = self._choose(cores, gpus, use)
                if slot is None:
                    return None
                self._hold(slot)
            jobs_before = use.jobs_of_runs(slot.cpus)
            has_come_another = self._neighbours.jobs_of_runs(slot.cpus) > jobs_before
            if choice == MOST_CHOICES or not has_come_another:
                return slot
            # A run of another user has chosen the same CPUs at the same moment. Two that give way
            # must not go on in step.
            self.release(slot)
            time.sleep(random.uniform(0, LONGEST_PAUSE_S))
        return None

    def has_cores(self, cores: int, *, ranks: int = 1) -> bool:
        return (
            self._has_room(cores)
            and self._choose(cores, 0, self._neighbours.look(self._own())) is not None
        )

    def fits_ever(
        self, cores: int, gpus: float = 0, *, memory_mib: int = 0, ranks: int = 1
    ) -> bool:
        """Memory and ranks are ignored: a job that asks for more memory than there is runs alone."""
        self._look_for_gpus(gpus)
        return cores <= topology.largest_job(self._machine) and gpus <= len(self._machine.gpus)

    def _look_for_gpus(self, asked: float) -> None:
        """Find the GPUs, where that was left until a job asks for one."""
        if asked and self._find_gpus is not None:
            self._machine = replace(self._machine, gpus=tuple(self._find_gpus()))
            self._gpus = _free_gpus(self._machine.gpus)
            self._find_gpus = None

    def _has_room(self, cores: int) -> bool:
        in_use = sum(len(slot.cpus) for slot in self._held.values())
        return len(self._held) < self.jobs_at_once and (
            not self._held or in_use + cores <= self._capacity
        )

    def _hold(self, slot: Slot) -> None:
        """``slot`` is held from now on, which other runs see."""
        self._held[slot.index] = slot
        self._gpus.change(slot.gpus, slot.gpu_share, -1)
        self._publish()

    def _publish(self) -> None:
        self._neighbours.publish(self._own())

    def _own(self) -> Counter[int]:
        """CPU → the number of slots that have it, or for which it is reserved."""
        own = Counter(cpu for slot in self._held.values() for cpu in slot.cpus)
        own.update(
            cpu for reservation in self._reserved.values() for cpu in reservation.to.values()
        )
        return own

    def _choose(self, cores: int, gpus: float, use: CpuUse) -> Slot | None:
        """A slot with the CPUs that are best by ``use``, not held yet; None while there is none."""
        free = [
            cpu for cpu in self._machine.cpus if use.own.get(cpu.index, 0) < self._users_per_cpu
        ]
        if self._is_exclusive:
            locked = {cpu for other in use.competitors if other.is_own_user for cpu in other.demand}
            free = [cpu for cpu in free if cpu.index not in locked]
        if self._takes_idle_only and self._held:
            idle = {cpu.index for cpu in self._idle(use)}
            free = [cpu for cpu in free if cpu.index in idle]
        cpus = placement.choose(cores, free, self._machine.cpus, use)
        names = self._gpus.find(gpus)
        if cpus is None or names is None:
            return None
        index = next(index for index in range(self.jobs_at_once) if index not in self._held)
        return Slot(
            index=index,
            cpus=cpus,
            gpus=names,
            gpu_share=min(gpus, 1),
            shares_with=use.names_on(cpus),
            expected_share=use.expected_share(cpus),
        )

    def resume(self, cpus: tuple[int, ...]) -> Slot:
        """A slot with exactly these CPUs, for an attempt that already has them from an earlier
        pool.
        """
        index = next(index for index in itertools.count() if index not in self._held)
        slot = Slot(index=index, cpus=cpus)
        self._hold(slot)
        return slot

    def release(self, slot: Slot) -> None:
        """:raises ValueError: when ``slot`` is not held: released before, or of another pool."""
        if self._held.get(slot.index) != slot:
            raise ValueError(f"{slot} is not held")
        del self._held[slot.index]
        self._reserved.pop(slot.index, None)
        self._gpus.change(slot.gpus, slot.gpu_share, 1)
        self._publish()

    def resize(self, max_parallel: int) -> int:
        """At most the capacity of the machine, or the jobs at once with which the pool was made
        if that is more.
        """
        self.jobs_at_once = max(1, min(max_parallel, self._capacity))
        return self.jobs_at_once

    def competitors_on(self, cpus: Collection[int]) -> tuple[str, ...]:
        """See :class:`orchestrator.executors.base.CpuMoves`, also for :meth:`reserve_idle`,
        :meth:`is_measured_since`, :meth:`is_still_idle` and :meth:`give_up`.
        """
        return self._neighbours.look(self._own()).names_on(cpus)

    def reserve_idle(self, slot: Slot, contended: Collection[int]) -> CpuReservation | None:
        if self._held.get(slot.index) != slot or slot.index in self._reserved:
            return None
        with self._neighbours.turn():
            use = self._neighbours.look(self._own())
            left = [
                cpu for cpu in dict.fromkeys(slot.cpus) if cpu in contended and use.is_shared(cpu)
            ]
            if not left:
                return None
            chosen = placement.choose(len(left), self._idle(use), self._machine.cpus, use)
            if chosen is None:
                return None
            to = dict(zip(left, chosen, strict=True))
            reservation = CpuReservation(
                slot=slot, to=to, because_of=use.names_on(left), at=time.monotonic()
            )
            self._reserved[slot.index] = reservation
            self._publish()
        return reservation

    def _idle(self, use: CpuUse) -> list[Cpu]:
        """CPUs of cores on which nothing runs."""
        total = use.total()
        busy_cores = {cpu.core for cpu in self._machine.cpus if total[cpu.index]}
        return [cpu for cpu in self._machine.cpus if cpu.core not in busy_cores]

    def is_measured_since(self, reservation: CpuReservation) -> bool:
        return self._neighbours.measured_from >= reservation.at

    def is_still_idle(self, reservation: CpuReservation) -> bool:
        use = self._neighbours.look(self._own())
        are_left_contended = all(use.is_shared(cpu) for cpu in reservation.to)
        are_reserved_idle = not any(use.is_shared(cpu) for cpu in reservation.to.values())
        return are_left_contended and are_reserved_idle

    def move(self, reservation: CpuReservation) -> Slot:
        """The slot has the reserved CPUs from now on, in place of those that it leaves."""
        del self._reserved[reservation.slot.index]
        slot = reservation.moved_slot
        self._held[slot.index] = slot
        self._publish()
        return slot

    def give_up(self, reservation: CpuReservation) -> None:
        self._reserved.pop(reservation.slot.index, None)
        self._publish()

    def tick(self) -> None:
        """Keep up with what other programs do. To be called again and again."""
        self._neighbours.tick()

    def close(self) -> None:
        """Tell other runs that this one holds no CPUs any more."""
        self._neighbours.close()

    def warnings(self) -> tuple[str, ...]:
        """What is wrong with the number of jobs at once."""
        asked = self._asked
        capacity = self._machine.capacity
        cpus = len(self._machine.cpus)
        physical = self._machine.physical_cores
        texts = []
        if asked is not None and asked > self.jobs_at_once:
            texts.append(
                f"max_parallel = {asked}, but the cgroup CPU quota is {self._machine.quota:g} CPUs:"
                f" {self.jobs_at_once} at once. To run more, raise the quota:"
                " docker --cpus, Kubernetes limits.cpu, systemd CPUQuota=."
            )
        if self.jobs_at_once > cpus:
            texts.append(
                f"max_parallel = {asked}, but only {count(cpus, 'CPU is', 'CPUs are')} usable: up to"
                f" {self._users_per_cpu} jobs share a CPU, and the experiment does not finish sooner."
                f" max_parallel = {capacity} avoids this."
            )
        elif self.jobs_at_once > physical:
            texts.append(
                f"max_parallel = {asked}, but the {cpus} usable CPUs are {physical} physical cores: jobs on SMT"
                f" siblings of one core slow each other. max_parallel = {capacity} gives each a core of its own."
            )
        use = self._neighbours.look({})
        taken = {cpu.index for cpu in self._machine.cpus} & use.competition().keys()
        free = cpus - len(taken)
        if free < self.jobs_at_once <= cpus and not self._takes_idle_only:
            texts.append(_taken_text(use.names_on(taken), len(taken), cpus, self.jobs_at_once))
        in_use = [gpu for gpu in self._machine.gpus if gpu.is_in_use]
        texts += [_in_use_text(gpu) for gpu in in_use]
        return tuple(texts)


def _free_gpus(gpus: Sequence[Gpu]) -> FreeGpus:
    """All of ``gpus``, those last that others use."""
    return FreeGpus(gpu.index for gpu in sorted(gpus, key=lambda gpu: gpu.is_in_use))


def _in_use_text(gpu: Gpu) -> str:
    """What is said of a GPU that others use."""
    free = f"{gpu.free_mib:,} of {gpu.memory_mib:,} MiB"
    return (
        f"other programs use GPU {gpu.index} ({gpu.name}, {free} are free): jobs are given it last."
        " CUDA_VISIBLE_DEVICES leaves it out."
    )


def _taken_text(names: Sequence[str], taken: int, cpus: int, jobs_at_once: int) -> str:
    """What is said where some of up to ``jobs_at_once`` jobs will share their cores."""
    who = listed(names, MOST_NAMES)
    text = f"{taken} of {count(cpus, 'usable CPU')} {'is' if taken == 1 else 'are'} in use now, by {who}: "
    if jobs_at_once == 1:
        return text + "a job will share its core until one is idle, and has a part of its time."
    consequence = (
        f"some of up to {jobs_at_once} jobs at once will share a core, and have a part of its time."
    )
    idle = option("max_parallel", "idle")
    return f"{text}{consequence} {idle} runs as many at once as there are idle cores."
