"""Which CPUs a job is given: those that the fewest others compete for. Decisions from a snapshot,
without I/O.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.machine.topology import Cpu

STEP = 0.5
"""Competition is counted in halves: smaller differences say nothing, and must not outweigh the
order of preference."""
ONE = round(1 / STEP)
"""Steps of one job, or of one thread that always wants to run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Competitor:
    """Who uses CPUs that this process may use: a run, or a program."""

    name: str
    demand: Mapping[int, float]
    """CPU → how many jobs or threads want to run there."""
    is_run: bool = False
    """Whether it is a run of this program, of any user, whose demand is its jobs."""
    is_own_user: bool = False
    """Whether it is a run of this user, which node agents wait for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuUse:
    """Who uses the CPUs of the machine at one moment."""

    own: Mapping[int, int] = field(default_factory=dict)
    """CPU → the number of this process's own jobs."""
    competitors: Sequence[Competitor] = ()

    def competition(self) -> Counter[int]:
        """CPU → competition by others, in multiples of :data:`STEP`, of which one whole is a job or
        busy thread.
        """
        demand: dict[int, float] = {}
        for competitor in self.competitors:
            for cpu, wanted in competitor.demand.items():
                demand[cpu] = demand.get(cpu, 0.0) + wanted
        steps = Counter({cpu: round(wanted / STEP) for cpu, wanted in demand.items()})
        return +steps  # without those of which so little is wanted that it counts as nothing

    def total(self) -> Counter[int]:
        """As :meth:`competition`, own jobs included."""
        total = self.competition()
        for cpu, number in self.own.items():
            total[cpu] += number * ONE
        return total

    def expected_share(self, cpus: Iterable[int]) -> float:
        """Of the time of the most contended of ``cpus``, what is left for one more job there."""
        total = self.total()
        return min(ONE / (ONE + total[cpu]) for cpu in cpus)

    def is_shared(self, cpu: int) -> bool:
        """Whether somebody competes for ``cpu`` with a job of this process that has it."""
        return self.total()[cpu] > ONE

    def jobs_of_runs(self, cpus: Iterable[int]) -> float:
        """How many jobs other runs have on ``cpus``."""
        chosen = list(cpus)
        runs = [other for other in self.competitors if other.is_run]
        return sum(run.demand.get(cpu, 0.0) for run in runs for cpu in chosen)

    def names_on(self, cpus: Iterable[int]) -> tuple[str, ...]:
        """The competitors on ``cpus``, the strongest first."""
        chosen = frozenset(cpus)
        demand: dict[str, float] = {}
        for competitor in self.competitors:
            on_chosen = sum(wanted for cpu, wanted in competitor.demand.items() if cpu in chosen)
            if on_chosen >= STEP / 2:
                demand[competitor.name] = demand.get(competitor.name, 0.0) + on_chosen
        return tuple(sorted(demand, key=lambda name: (-demand[name], name)))


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class _Choice:
    """Some CPUs and what speaks against them; the smallest is the best."""

    competition: int
    """Steps of competition on their cores."""
    nodes: int
    """NUMA nodes that they span."""
    left_over: int
    """CPUs that would be left in the part of the machine that was looked at."""
    cpus: tuple[int, ...]


def choose(
    cores: int, free: Sequence[Cpu], machine: Sequence[Cpu], use: CpuUse
) -> tuple[int, ...] | None:
    """``cores`` of the CPUs ``free``, those with the least competition; None where they are too
    few.

    Among equals, idle cores come before siblings of busy ones, and then the order of ``free``
    decides. Several CPUs come from one NUMA node if that does not mean more competition, and are
    otherwise sorted by node.

    :param machine: all usable CPUs, in order of preference.
    """
    parts = [free]
    if cores > 1:
        for node in sorted({cpu.numa_node for cpu in free}):
            parts.append([cpu for cpu in free if cpu.numa_node == node])
    total = use.total()
    choices = [
        _least_competition(cores, part, machine, total) for part in parts if len(part) >= cores
    ]
    return min(choices).cpus if choices else None


def _least_competition(
    cores: int, free: Sequence[Cpu], machine: Sequence[Cpu], total: Mapping[int, int]
) -> _Choice:
    on_core: Counter[int] = Counter()
    for cpu in machine:
        on_core[cpu.core] += total.get(cpu.index, 0)
    rest = {cpu.index: cpu for cpu in free}
    chosen: list[Cpu] = []
    competition = 0
    for _ in range(cores):
        # min() takes the first of equals, so that the order of preference decides.
        cpu = min(rest.values(), key=lambda cpu: (total.get(cpu.index, 0), on_core[cpu.core]))
        del rest[cpu.index]
        competition += on_core[cpu.core]
        on_core[cpu.core] += ONE
        chosen.append(cpu)
    # CPUs of one node are adjacent, because ranks take theirs in this order.
    by_node = sorted(chosen, key=lambda cpu: cpu.numa_node)
    return _Choice(
        competition=competition,
        nodes=len({cpu.numa_node for cpu in chosen}),
        left_over=len(free) - cores,
        cpus=tuple(cpu.index for cpu in by_node),
    )
