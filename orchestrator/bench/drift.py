"""Is the machine what it was a moment ago? A fixed piece of arithmetic, and what others do to our CPUs.

The kernel is plain Python, so that it depends on no library's threads. Its time tells clock frequency, SMT
neighbours and competitors alike; it is compared with itself only.
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

from orchestrator.core.procfs import process_stat, text_of
from orchestrator.machine.doctor_checks import HOG_CORES

ROUNDS = 150_000
"""Some 15 milliseconds: enough to be timed, and to meet whoever shares the CPU."""
TRIES = 5
MOST_CPUS = 8
TOLERANCE = 0.15
"""The kernel takes so much longer than at the beginning: the machine is not itself."""
BUSY_FIELDS = (0, 1, 2, 5, 6, 7)
"""Of a CPU's line in /proc/stat: user, nice, system, irq, softirq, steal (proc_stat(5))."""


def _arithmetic() -> float:
    value = 0.5
    for number in range(ROUNDS):
        value = math.sin(value) + number * 1e-9
    return value


def kernel_s(cpus: Sequence[int]) -> float:
    """Wall seconds of the kernel on the slowest of ``cpus`` (a few of them at most), each the middle of some tries."""
    before = os.sched_getaffinity(0)
    slowest = 0.0
    try:
        for cpu in cpus[:MOST_CPUS]:
            with contextlib.suppress(OSError):  # taken from us meanwhile
                os.sched_setaffinity(0, {cpu})
            slowest = max(slowest, statistics.median(_timed() for _ in range(TRIES)))
    finally:
        os.sched_setaffinity(0, before)
    return slowest


def _timed() -> float:
    begun = time.perf_counter()
    _arithmetic()
    return time.perf_counter() - begun


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What some CPUs have done since boot, how much of it for us, and when that was read."""

    busy_s: float
    ours_s: float
    clock_s: float

    def others_since(self, earlier: Load) -> float | None:
        """CPU seconds per second since then that were not ours; None where too little time has passed to tell."""
        elapsed = self.clock_s - earlier.clock_s
        others_s = (self.busy_s - earlier.busy_s) - (self.ours_s - earlier.ours_s)
        return max(0.0, others_s / elapsed) if elapsed > 0.5 else None


def load(cpus: Collection[int], pids: Iterable[int], root: Path = Path("/proc")) -> Load | None:
    """None where the kernel does not say.

    :param pids: our processes.
    """
    busy = busy_s(text_of(root / "stat") or "", cpus)
    if busy is None:
        return None
    ours = math.fsum(stat.cpu_s for pid in pids if (stat := process_stat(pid, root)))
    return Load(busy_s=busy, ours_s=ours, clock_s=time.monotonic())


def busy_s(stat: str, cpus: Iterable[int]) -> float | None:
    """Seconds that ``cpus`` were busy, from the text of /proc/stat."""
    wanted = {f"cpu{cpu}" for cpu in cpus}
    ticks, found = 0, set()
    for line in stat.splitlines():
        name, *fields = line.split()
        if name in wanted and len(fields) > max(BUSY_FIELDS):
            found.add(name)
            ticks += sum(int(fields[place]) for place in BUSY_FIELDS)
    return ticks / os.sysconf("SC_CLK_TCK") if found == wanted else None


def disturbance(reference_s: float, times_s: Iterable[float], others_cores: float | None) -> str:
    """What speaks against a measurement, in words; empty where nothing does."""
    slower = max(times_s) / reference_s - 1
    if slower > TOLERANCE:
        return f"the arithmetic kernel was {slower:.0%} slower than at the start of the benchmark"
    if others_cores is not None and others_cores > HOG_CORES:
        return f"other processes used {others_cores:.1f} cores' worth of time on the same CPUs"
    return ""
