"""Who else uses the CPUs of this machine: other runs, by what they say, and other programs, by what
they do.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Set

from orchestrator.machine.cpu_holders import CpuHolders, Holder, holders_folder
from orchestrator.machine.cpu_load import BusyProcess, LoadSampler
from orchestrator.machine.placement import Competitor, CpuUse
from orchestrator.machine.users import user_name

UNSEEN = "load of no visible program"


class Neighbours:
    """Other users of the CPUs, for one pool of slots, which tells them what it holds."""

    def __init__(
        self,
        holders: CpuHolders | None = None,
        load: LoadSampler | None = None,
        *,
        starts_workers: bool = True,
    ) -> None:
        """:param holders: None: neither sees other runs nor is seen by them.
        :param load: None: other programs are not looked at.
        :param starts_workers: whether the workers on own CPUs descend from this process, as other
            programs do not.
        """
        self._starts_workers = starts_workers
        self._holders = CpuHolders(None) if holders is None else holders
        self._load = load

    @classmethod
    def of_this_machine(
        cls, *, experiment: str = "", run_dir: str = "", starts_workers: bool = True
    ) -> Neighbours:
        """Everybody who can be seen here.

        :param experiment: for others, the name of what holds the CPUs.
        """
        holders = CpuHolders(holders_folder(), experiment=experiment, run_dir=run_dir)
        return cls(holders, LoadSampler(), starts_workers=starts_workers)

    def publish(self, cpus: Mapping[int, int]) -> None:
        """Tell other runs which CPUs this one holds, with the number of its jobs on each."""
        self._holders.publish(cpus)

    def refresh(self) -> None:
        """Measure the load of other programs, where the last measurement is old; that takes a
        moment.
        """
        if self._load is not None:
            self._load.measure()

    @property
    def measured_from(self) -> float:
        """Since when the load of :meth:`look` counts, as :func:`time.monotonic`; infinite where
        none is measured.
        """
        return math.inf if self._load is None else self._load.measured_from

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """No other run of this user chooses CPUs during the block."""
        with self._holders.turn():
            yield

    def look(self, own: Mapping[int, int], in_use_elsewhere: Collection[int] = ()) -> CpuUse:
        """Who uses which CPUs now.

        :param own: CPU → the number of own jobs there.
        :param in_use_elsewhere: CPUs that others hold without saying so.
        """
        runs = self._holders.others()
        competitors = [_competing_run(run) for run in runs]
        held_by_runs = {cpu for run in runs for cpu in run.cpus}
        unsaid = set(in_use_elsewhere) - held_by_runs
        if unsaid:
            competitors.append(
                Competitor(name="other jobs", demand=dict.fromkeys(unsaid, 1.0), is_own_user=True)
            )
        held = unsaid | held_by_runs
        if not self._starts_workers:
            held |= own.keys()
        if self._load is not None:
            competitors += self._programs(held)
        return CpuUse(own=own, competitors=competitors)

    def jobs_of_runs(self, cpus: Iterable[int]) -> float:
        """How many jobs other runs have on ``cpus`` now."""
        runs = [_competing_run(run) for run in self._holders.others()]
        return CpuUse(competitors=runs).jobs_of_runs(cpus)

    def tick(self) -> None:
        """Measure the load of other programs, when it is time to. To be called again and again."""
        if self._load is not None:
            self._load.tick()
        self._holders.keep()

    def close(self) -> None:
        """Hold no CPUs any more."""
        self._holders.close()

    def _programs(self, held: Set[int]) -> list[Competitor]:
        assert self._load is not None
        load = self._load.measure()
        competitors = [
            Competitor(name=program_name(process), demand=process.demand)
            for process in load.processes
            # Of a training, the holder of its CPUs speaks.
            if not (process.is_worker and process.demand.keys() <= held)
        ]
        unexplained = {cpu: share for cpu, share in load.unexplained.items() if cpu not in held}
        if unexplained:
            competitors.append(Competitor(name=UNSEEN, demand=unexplained))
        return competitors


def program_name(process: BusyProcess) -> str:
    """For people: ``python3 (pid 77) of ann``."""
    whose = "" if process.uid == os.getuid() else f" of {user_name(process.uid)}"
    return f"{process.name} (pid {process.pid}){whose}"


def _competing_run(holder: Holder) -> Competitor:
    demand = {cpu: float(number) for cpu, number in holder.cpus.items()}
    return Competitor(
        name=holder.name, demand=demand, is_run=True, is_own_user=holder.uid == os.getuid()
    )
