"""Who keeps which CPUs busy now: other programs, as far as this process sees them, and what it sees
no owner of.

:class:`LoadSampler` looks at ``/proc/stat`` and at ``/proc/PID/stat`` of every process
(``proc(5)``) twice, some time apart. Where other users' processes are hidden (``hidepid``, a
container), their time is in ``/proc/stat`` alone, and known for each CPU. Where that has no rows
either, nobody is seen.

A program counts on the CPU where it ran last: that is the one to which it is bound, if it is bound
to one. One that may run on others, too, goes on there if its CPU is taken.
"""

from __future__ import annotations

import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.core.files.file_status import status_of
from orchestrator.core.pacer import Pace
from orchestrator.core.processes.procfs import (
    PROC,
    TICKS_PER_S,
    ProcessStat,
    busy_ticks,
    names_in,
    process_stat,
    stat_in,
)

SAMPLING = Pace(every_s=1.5, share=0.003)
"""How often :meth:`LoadSampler.tick` samples: less often on a machine with many processes. What it
finds is the mean over the time between two samples."""
LEAST_S = 0.2
"""The shortest time to measure over: the kernel counts in hundredths of a second."""
STALE_S = 6.0
"""An older sample says too little about now."""
BUSY = 0.2
"""CPU seconds per second from which a process counts, and from which time without an owner does."""
STARVED = 0.02
"""The same for a process that was found runnable each time: it gets so little because others
compete with it."""
RUNNABLE = "R"
KERNEL_THREAD = 0x00200000
"""``PF_KTHREAD``, among the flags of a process."""
WORKER = re.compile(rb"orchestrator\.(features\.\w+\.)?worker\b")
"""In the command of every training, on whose CPUs its holder says that they are held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyProcess:
    """A program, not of this process, that keeps CPUs busy."""

    pid: int
    name: str
    uid: int
    cores: float
    """CPU seconds per second that it has had."""
    demand: Mapping[int, float]
    """CPU → how many of its threads want to run there."""
    is_worker: bool
    """Whether it is a training, or belongs to one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuLoad:
    """The load of other programs."""

    processes: tuple[BusyProcess, ...] = ()
    """The busiest first."""
    unexplained: Mapping[int, float] = field(default_factory=dict)
    """CPU → share of its time that no visible process had; only where it matters."""


@dataclass(frozen=True, slots=True)
class _Scan:
    at: float
    busy_ticks: Mapping[int, int]
    """Of each CPU, since the boot."""
    processes: Mapping[int, ProcessStat]
    reaped_s: float
    """CPU time of the children of this process that it has waited for."""


class LoadSampler:
    """Measures the load of other programs: not of this process, its descendants, and kernel
    threads.
    """

    def __init__(self, proc: Path = PROC, now: Callable[[], float] = time.monotonic) -> None:
        self._proc = proc
        self._now = now
        self._earlier = self._scan()
        self._latest: _Scan | None = None
        self._measured = CpuLoad()
        self._every_s = SAMPLING.every_s
        self._next = self._earlier.at + self._every_s

    def tick(self) -> None:
        """Sample, if it is time to. To be called again and again."""
        if self._now() >= self._next:
            self._sample()

    def measure(self) -> CpuLoad:
        """The load over the time between the last two samples; waits for them where they are
        missing or too old.
        """
        if self._latest is None or self._is_stale:
            if self._is_stale:
                self._sample()
            wait_s = self._last.at + LEAST_S - self._now()
            if wait_s > 0:
                time.sleep(wait_s)
            self._sample()
        return self._measured

    @property
    def measured_from(self) -> float:
        """When the time began over which the load was measured last, on the clock that was
        given.
        """
        return self._earlier.at

    @property
    def _is_stale(self) -> bool:
        return self._now() - self._last.at > max(STALE_S, 2 * self._every_s)

    @property
    def _last(self) -> _Scan:
        return self._latest or self._earlier

    def _sample(self) -> None:
        begun = time.thread_time()
        scan = self._scan()
        self._earlier = self._last
        self._latest = scan
        self._measured = self._load(self._earlier, self._latest)
        self._every_s = SAMPLING.pause_s(time.thread_time() - begun)
        self._next = scan.at + self._every_s

    def _scan(self) -> _Scan:
        own = os.times()
        return _Scan(
            at=self._now(),
            busy_ticks=busy_ticks(self._proc),
            processes=_processes(self._proc),
            reaped_s=own.children_user + own.children_system,
        )

    def _load(self, before: _Scan, after: _Scan) -> CpuLoad:
        elapsed_s = max(after.at - before.at, 1e-3)
        shares = {
            pid: _ticks_between(before, after, pid) / TICKS_PER_S / elapsed_s
            for pid in after.processes
        }
        own = _family(os.getpid(), after.processes)
        busy = [
            self._busy_process(pid, share, before, after)
            for pid, share in shares.items()
            if pid not in own and _is_load(pid, share, before, after)
        ]
        # A child that has ended is waited for with all that it ever used.
        used_before_s = sum(
            before.processes[pid].own_ticks / TICKS_PER_S
            for pid in _family(os.getpid(), before.processes)
            if pid in before.processes and pid not in after.processes
        )
        own_reaped = max(0.0, after.reaped_s - before.reaped_s - used_before_s) / elapsed_s
        return CpuLoad(
            processes=tuple(sorted(busy, key=lambda process: -process.cores)),
            unexplained=_unexplained_time(before, after, shares, elapsed_s, own_reaped),
        )

    def _busy_process(self, pid: int, share: float, before: _Scan, after: _Scan) -> BusyProcess:
        process = after.processes[pid]
        # One that shares its CPU gets a part of it, and would take all.
        wanted = max(share, 1.0) if _wants_a_cpu(pid, before, after) else share
        demand = self._demand_of_threads(pid) if process.n_threads > 1 else {}
        return BusyProcess(
            pid=pid,
            name=process.name,
            uid=_owner(self._proc / str(pid)),
            cores=share,
            demand=demand or {process.cpu: wanted},
            is_worker=_is_worker(pid, after.processes, self._proc),
        )

    def _demand_of_threads(self, pid: int) -> dict[int, float]:
        """By the threads of a process that are runnable at this moment."""
        demand: dict[int, float] = defaultdict(float)
        tasks = f"{self._proc}/{pid}/task"
        for thread in names_in(tasks):
            found = stat_in(f"{tasks}/{thread}")
            if found is not None and found.state == RUNNABLE:
                demand[found.cpu] += 1.0
        return dict(demand)


def _unexplained_time(
    before: _Scan, after: _Scan, shares: Mapping[int, float], elapsed_s: float, own_reaped: float
) -> dict[int, float]:
    """Busy time that no visible process had, by CPU; empty where there is little of it
    altogether.
    """
    busy = {
        cpu: (ticks - before.busy_ticks[cpu]) / TICKS_PER_S / elapsed_s
        for cpu, ticks in after.busy_ticks.items()
        if cpu in before.busy_ticks
    }
    if sum(busy.values()) - sum(shares.values()) - own_reaped < BUSY:
        return {}
    for pid, share in shares.items():
        cpu = after.processes[pid].cpu
        if cpu in busy:
            busy[cpu] -= share
    return {cpu: min(share, 1.0) for cpu, share in busy.items() if share >= BUSY}


def _ticks_between(before: _Scan, after: _Scan, pid: int) -> int:
    """CPU time that the process has had since the scan before."""
    now = after.processes[pid]
    earlier = before.processes.get(pid)
    if earlier is None or earlier.start_ticks != now.start_ticks:  # it began meanwhile
        return now.own_ticks
    return now.own_ticks - earlier.own_ticks


def _is_load(pid: int, share: float, before: _Scan, after: _Scan) -> bool:
    """Whether the process counts among those that keep CPUs busy."""
    process = after.processes[pid]
    gives_way = process.policy == os.SCHED_IDLE  # it gets only time that nobody else wants
    if gives_way or process.flags & KERNEL_THREAD:
        return False
    return share >= BUSY or (share >= STARVED and _wants_a_cpu(pid, before, after))


def _wants_a_cpu(pid: int, before: _Scan, after: _Scan) -> bool:
    """Whether the process was found runnable both times, so that it probably is all the time."""
    earlier = before.processes.get(pid)
    return (
        after.processes[pid].state == RUNNABLE and earlier is not None and earlier.state == RUNNABLE
    )


def _family(pid: int, processes: Mapping[int, ProcessStat]) -> set[int]:
    """``pid`` and its descendants."""
    children: dict[int, list[int]] = defaultdict(list)
    for child, process in processes.items():
        children[process.parent].append(child)
    family = [pid]
    for member in family:  # grows during the loop
        family += children[member]
    return set(family)


def _is_worker(pid: int, processes: Mapping[int, ProcessStat], proc: Path) -> bool:
    """Whether the process, or one that it descends from, is a training."""
    while pid > 1:
        try:
            if WORKER.search((proc / str(pid) / "cmdline").read_bytes()):
                return True
        except OSError:  # it has ended, or is hidden
            return False
        parent = processes.get(pid)
        pid = 0 if parent is None else parent.parent
    return False


def _processes(proc: Path) -> dict[int, ProcessStat]:
    pids = [int(name) for name in names_in(proc) if name.isdecimal()]
    found = {pid: process_stat(pid, proc) for pid in pids}
    return {pid: process for pid, process in found.items() if process is not None}


def _owner(folder: Path) -> int:
    """-1 where it has ended."""
    status = status_of(folder)
    return -1 if status is None else status.st_uid
