"""Whether the machine has become slower or busier: a fixed arithmetic kernel, and the CPU time of
other processes.

The kernel is plain Python, so that it depends on no library's threads. Its duration depends on
clock frequency, SMT siblings and competing processes; it is compared only with itself.
"""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.processes.procfs import PROC, TICKS_PER_S, busy_ticks, process_stat
from orchestrator.machine.cpu_load import BUSY

ROUNDS = 150_000
"""About 15 milliseconds: long enough to be timed, and to be delayed by whatever else runs on the
CPU."""
TRIES = 5
MOST_CPUS = 8
TOLERANCE = 0.15
"""A kernel slower by more than this share than at the beginning marks a measurement as
disturbed."""


def kernel_s(cpus: Sequence[int]) -> float:
    """Wall seconds of the kernel on the slowest of the first few ``cpus``; the median of several
    tries on each.
    """
    before = os.sched_getaffinity(0)
    slowest = 0.0
    try:
        for cpu in cpus[:MOST_CPUS]:
            with contextlib.suppress(OSError):  # no longer available to this process
                os.sched_setaffinity(0, {cpu})
            slowest = max(slowest, statistics.median(_time_once() for _ in range(TRIES)))
    finally:
        os.sched_setaffinity(0, before)
    return slowest


def _time_once() -> float:
    begun = time.perf_counter()
    value = 0.5
    for number in range(ROUNDS):
        value = math.sin(value) + number * 1e-9
    return time.perf_counter() - begun


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Busy time of some CPUs since boot, the benchmark's own CPU time, and when they were read."""

    busy_s: float
    own_s: float
    clock_s: float

    def others_since(self, earlier: Load) -> float | None:
        """CPU seconds per second that other processes used since ``earlier``; None where too little
        time has passed.
        """
        elapsed = self.clock_s - earlier.clock_s
        others_s = (self.busy_s - earlier.busy_s) - (self.own_s - earlier.own_s)
        return max(0.0, others_s / elapsed) if elapsed > 0.5 else None


def load(cpus: Collection[int], pids: Iterable[int], root: Path = PROC) -> Load | None:
    """The load of ``cpus``; None where the kernel does not report it. :param pids: the benchmark's
    own processes.
    """
    ticks = busy_ticks(root, with_stolen=True)
    if not ticks.keys() >= set(cpus):
        return None
    busy_s = sum(ticks[cpu] for cpu in cpus) / TICKS_PER_S
    own_s = math.fsum(stat.cpu_s for pid in pids if (stat := process_stat(pid, root)))
    return Load(busy_s=busy_s, own_s=own_s, clock_s=time.monotonic())


def disturbance(reference_s: float, times_s: Iterable[float], others_cores: float | None) -> str:
    """What makes a measurement doubtful, in words; empty where nothing does."""
    slower = max(times_s) / reference_s - 1
    if slower > TOLERANCE:
        return f"the arithmetic kernel was {slower:.0%} slower than at the start of the benchmark"
    if others_cores is not None and others_cores > BUSY:
        return f"other processes used {others_cores:.1f} cores' worth of time on the same CPUs"
    return ""
