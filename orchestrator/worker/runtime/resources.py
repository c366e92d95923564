"""Resources that this process has used so far, as the kernel counts them; None where the kernel
does not say.
"""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass

from orchestrator.core.processes.procfs import content_of, names_in
from orchestrator.machine.cgroup import ThrottleMeter

_PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20


def run_delay_s() -> float | None:
    """Return the seconds for which the main thread could have run but waited for a CPU."""
    fields = content_of("/proc/self/schedstat").split()
    return int(fields[1]) / 1e9 if len(fields) > 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceUsage:
    """Totals since the start of the process, and present ``rss_mib``, ``n_threads`` and
    ``n_cpus``.
    """

    cpu_s: float
    run_delay_s: float | None
    """Of the main thread."""
    voluntary_switches: int
    involuntary_switches: int
    throttled_s: float | None
    rss_mib: float | None
    n_threads: int | None
    n_cpus: int
    """CPUs that the main thread may run on."""


class UsageReader:
    """Reads :class:`ResourceUsage` for about 50 microseconds a time."""

    def __init__(self) -> None:
        self._throttle = ThrottleMeter()

    def read(self) -> ResourceUsage:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        pages = content_of("/proc/self/statm").split()
        return ResourceUsage(
            cpu_s=time.process_time(),
            run_delay_s=run_delay_s(),
            voluntary_switches=usage.ru_nvcsw,
            involuntary_switches=usage.ru_nivcsw,
            throttled_s=self._throttle.read(),
            rss_mib=int(pages[1]) * _PAGE_MIB if pages else None,
            n_threads=len(names_in("/proc/self/task")) or None,
            n_cpus=len(os.sched_getaffinity(0)),
        )
