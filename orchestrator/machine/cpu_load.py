"""How busy other programs keep each CPU: the time in which it was not idle, less that of the threads
of this run (``proc(5)``).
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.core.pacer import Pace
from orchestrator.core.processes.procfs import PROC, TICKS_PER_S, busy_ticks, stat_in
from orchestrator.machine import process_tree

SAMPLING = Pace(every_s=1.5, share=0.003)
"""How often :meth:`CpuLoad.tick` samples: less often while there are many threads."""
SHORTEST_S = 0.2
"""The shortest time to measure over: the kernel counts in hundredths of a second."""
STALE_S = 6.0
"""An older sample says too little about now."""


@dataclass(frozen=True, slots=True)
class _Sample:
    at: float
    busy_ticks: Mapping[int, int]
    """Of each CPU, since the boot."""
    threads: Mapping[int, tuple[int, int]]
    """Thread of this run → the CPU where it ran last, and its clock ticks."""
    held: frozenset[int]
    """CPUs that other runs held."""


class CpuLoad:
    """The load of other programs on each CPU. Those that other runs hold count as not loaded."""

    def __init__(
        self, own_pids: Sequence[int] = (), *, now: Callable[[], float] = time.monotonic
    ) -> None:
        """:param own_pids: processes whose threads, with those of their descendants, are no others';
        this one always is.
        """
        self._own_pids = (os.getpid(), *own_pids)
        self._now = now
        self._shares: dict[int, float] = {}
        self._unsure: set[int] = set()
        """CPUs that own threads have left since the last sample: what these used is not known."""
        self._is_measured = False
        self._last = self._sample(())
        self._next = self._last.at + SAMPLING.every_s

    def tick(self, held: Callable[[], Collection[int]]) -> None:
        """Sample, if it is time to. To be called again and again. :param held: by other runs."""
        if self._now() >= self._next:
            self._measure(held())

    def shares(self, held: Collection[int]) -> Mapping[int, float]:
        """Return the share of its time that each CPU was busy for others, lately. Waits for a sample
        if the last one is missing or too old.
        """
        if not self._is_measured or self._now() - self._last.at > STALE_S:
            if self._now() - self._last.at > STALE_S:
                self._last = self._sample(held)
            time.sleep(max(0.0, self._last.at + SHORTEST_S - self._now()))
            self._measure(held)
        return {cpu: share for cpu, share in self._shares.items() if cpu not in held}

    def note_left(self, cpus: Collection[int]) -> None:
        """Own threads have just left ``cpus``: their load stays as it is until the next but one
        sample.
        """
        self._unsure.update(cpus)

    def _measure(self, held: Collection[int]) -> None:
        begun = time.thread_time()
        before = self._last
        after = self._sample(held)
        elapsed_ticks = max(after.at - before.at, 1e-3) * TICKS_PER_S
        own: dict[int, int] = defaultdict(int)
        for thread, (cpu, ticks) in after.threads.items():
            own[cpu] += ticks - before.threads.get(thread, (cpu, 0))[1]
        for cpu, ticks in after.busy_ticks.items():
            if cpu in self._unsure or cpu not in before.busy_ticks:
                continue
            share = (ticks - before.busy_ticks[cpu] - own[cpu]) / elapsed_ticks
            is_held = cpu in before.held or cpu in after.held
            self._shares[cpu] = 0.0 if is_held else min(max(share, 0.0), 1.0)
        self._unsure.clear()
        self._last = after
        self._is_measured = True
        self._next = after.at + SAMPLING.pause_s(time.thread_time() - begun)

    def _sample(self, held: Collection[int]) -> _Sample:
        return _Sample(
            at=self._now(),
            busy_ticks=busy_ticks(),
            threads=_threads(self._own_pids),
            held=frozenset(held),
        )


def _threads(pids: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Return CPU and clock ticks of each thread of ``pids`` and their descendants."""
    found = {}
    for pid in pids:
        for member in process_tree.with_descendants(pid):
            for thread in process_tree.threads(member):
                stat = stat_in(f"{PROC}/{member}/task/{thread}")
                if stat is not None:
                    found[thread] = stat.cpu, stat.own_ticks
    return found
