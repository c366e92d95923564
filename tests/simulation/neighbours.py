"""Others who use the CPUs of a simulated machine: runs that say which ones they hold, and programs
that keep them busy without a word.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.core.processes.procfs import TICKS_PER_S, ProcessStat
from orchestrator.machine.cpu_holders import CpuHolders, Holder
from orchestrator.machine.cpu_load import LoadSampler, _Scan
from orchestrator.machine.neighbours import Neighbours

FIRST_PID = 1_000_000
"""Of programs; processes of the run have smaller ones."""
SEEN_S = 5.0
"""After so long a program is seen to run, or to be gone: two samples of the load, and a turn of the
loop."""


@dataclass(slots=True, kw_only=True)
class Program:
    """It keeps one CPU busy all the time."""

    pid: int
    cpu: int
    since: float
    until: float | None = None
    """When it has ended; None while it runs."""


@dataclass(slots=True, kw_only=True)
class Others:
    """Who else is on the machine."""

    now: Callable[[], float]
    """Seconds since the world began."""
    programs: list[Program] = field(default_factory=list)
    runs: list[int] = field(default_factory=list)
    """The CPU of each other run."""
    told: Counter[int] = field(default_factory=Counter)
    """CPU → number of jobs there, as they see it of the run that is simulated."""

    def come(self, kind: str, cpu: int) -> Callable[[], None]:
        """A program or another run uses ``cpu`` from now on. Returns what ends that."""
        if kind == "run":
            self.runs.append(cpu)
            return lambda: self.runs.remove(cpu) if cpu in self.runs else None
        program = Program(pid=FIRST_PID + len(self.programs), cpu=cpu, since=self.now())
        self.programs.append(program)
        return lambda: self._end(program)

    def end(self) -> None:
        """The machine stops."""
        self.runs.clear()
        for program in self.programs:
            self._end(program)

    def _end(self, program: Program) -> None:
        program.until = self.now() if program.until is None else program.until

    def on(self, cpu: int) -> int:
        """How many of them want to run on ``cpu`` now."""
        busy = sum(one.cpu == cpu and one.until is None for one in self.programs)
        return busy + self.runs.count(cpu)

    def must_be_seen(self, cpu: int) -> bool:
        """Whether the run has to know that others use ``cpu``."""
        seen_from = self.now() - SEEN_S
        is_busy = any(
            one.cpu == cpu and one.until is None and one.since < seen_from for one in self.programs
        )
        return is_busy or cpu in self.runs

    def may_be_seen(self, cpu: int) -> bool:
        """Whether the run may believe that others use ``cpu``."""
        seen_from = self.now() - SEEN_S
        is_busy = any(
            one.cpu == cpu and (one.until is None or one.until >= seen_from)
            for one in self.programs
        )
        return is_busy or cpu in self.runs

    def processes(self) -> dict[int, ProcessStat]:
        """Programs as the kernel shows them."""
        now = self.now()
        return {
            one.pid: ProcessStat(
                name="program",
                state="R",
                parent=1,
                flags=0,
                own_ticks=int((now - one.since) * TICKS_PER_S),
                waited_ticks=0,
                n_threads=1,
                start_ticks=int(one.since * TICKS_PER_S),
                cpu=one.cpu,
                policy=os.SCHED_OTHER,
            )
            for one in self.programs
            if one.until is None
        }


class SimulatedHolders(CpuHolders):
    """What others hold, and what they are told; without files."""

    def __init__(self, others: Others) -> None:
        super().__init__(None)
        self._others = others
        others.told = Counter()

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        yield

    def others(self) -> tuple[Holder, ...]:
        return tuple(
            Holder(
                user="somebody",
                experiment=f"other-{number}",
                run_dir="",
                uid=os.getuid(),
                pid=number,
                cpus={cpu: 1},
            )
            for number, cpu in enumerate(self._others.runs)
        )

    def publish(self, cpus: Mapping[int, int]) -> None:
        self._others.told = Counter(cpus)

    def close(self) -> None:
        self._others.told = Counter()


class SimulatedLoad(LoadSampler):
    """The real sampler, over the programs of a simulated machine."""

    def __init__(self, others: Others, monotonic: Callable[[], float]) -> None:
        self._others = others
        super().__init__(Path("/nowhere"), monotonic)

    def _scan(self) -> _Scan:
        processes = self._others.processes()
        return _Scan(at=self._now(), busy_ticks={}, processes=processes, reaped_s=0.0)


def neighbours(others: Others, monotonic: Callable[[], float]) -> Neighbours:
    """What a pool of slots sees of ``others``."""
    return Neighbours(SimulatedHolders(others), SimulatedLoad(others, monotonic))
