"""Resources that this process has used so far, as the kernel counts them; None where the kernel
does not say.
"""

from __future__ import annotations

import contextlib
import os
import resource
import time
from dataclasses import dataclass

from orchestrator.core.processes.procfs import content_of, names_in
from orchestrator.machine.cgroup import ThrottleMeter

_TASKS = "/proc/self/task"
_MEMORY = "/proc/self/statm"
_PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20


class RunDelay:
    """Seconds spent runnable but waiting for a CPU, summed over all threads, ended ones
    included.
    """

    def __init__(self) -> None:
        self._running_ns: dict[str, int] = {}
        self._ended_ns = 0

    def total_s(self) -> float | None:
        """Seconds so far; None where the kernel keeps no scheduler statistics."""
        running_ns: dict[str, int] = {}
        try:
            for thread in os.listdir(_TASKS):
                # It may end between listing and reading.
                ended = contextlib.suppress(FileNotFoundError, ProcessLookupError)
                with ended, open(f"{_TASKS}/{thread}/schedstat", "rb", buffering=0) as file:  # noqa: PTH123 - faster
                    running_ns[thread] = int(file.read(128).split()[1])
        # This kernel keeps none, or no further file can be opened at this moment: no thread has ended
        # by that.
        except (OSError, IndexError, ValueError):
            return None
        for thread, last_ns in self._running_ns.items():
            # It has ended, and its number may be that of another thread now.
            if running_ns.get(thread, -1) < last_ns:
                self._ended_ns += last_ns
        self._running_ns = running_ns
        return (self._ended_ns + sum(running_ns.values())) / 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceUsage:
    """Totals since the start of the process, and present ``rss_mib``, ``n_threads`` and
    ``n_cpus``.
    """

    cpu_s: float
    run_delay_s: float | None
    voluntary_switches: int
    involuntary_switches: int
    throttled_s: float | None
    rss_mib: float | None
    n_threads: int | None
    n_cpus: int | None
    """CPUs that the main thread may run on."""


class UsageReader:
    """Reads :class:`ResourceUsage` for about 50 microseconds a time."""

    def __init__(self) -> None:
        self._run_delay = RunDelay()
        self._throttle = ThrottleMeter()

    def read(self) -> ResourceUsage:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        rss_mib, n_threads = _memory_and_threads()
        return ResourceUsage(
            cpu_s=time.process_time(),
            run_delay_s=self._run_delay.total_s(),
            voluntary_switches=usage.ru_nvcsw,
            involuntary_switches=usage.ru_nivcsw,
            throttled_s=self._throttle.read(),
            rss_mib=rss_mib,
            n_threads=n_threads,
            n_cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        )


def _memory_and_threads() -> tuple[float | None, int | None]:
    fields = content_of(_MEMORY).split()
    return int(fields[1]) * _PAGE_MIB if fields else None, len(names_in(_TASKS)) or None
