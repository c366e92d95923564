"""Resources that this process has used so far, as the kernel counts them; None where the kernel
does not say.
"""

from __future__ import annotations

import os
import resource
import time

from orchestrator.core.processes.procfs import content_of, names_in
from orchestrator.machine.cgroup import throttled_s

_PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20


def run_delay_s() -> float | None:
    """Return the seconds for which the main thread could have run but waited for a CPU."""
    fields = content_of("/proc/self/schedstat").split()
    return int(fields[1]) / 1e9 if len(fields) > 1 else None


def totals() -> dict[str, float | None]:
    """Return totals since the start of the process, by their columns of ``timings.csv``;
    ``run_delay_s`` is that of the main thread.
    """
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "cpu_s": time.process_time(),
        "run_delay_s": run_delay_s(),
        "voluntary_switches": usage.ru_nvcsw,
        "involuntary_switches": usage.ru_nivcsw,
        "throttled_s": throttled_s(),
    }


def present() -> dict[str, float | None]:
    """Return memory, threads and the CPUs that the main thread may run on, likewise."""
    pages = content_of("/proc/self/statm").split()
    return {
        "rss_mib": round(int(pages[1]) * _PAGE_MIB, 1) if pages else None,
        "n_threads": len(names_in("/proc/self/task")) or None,
        "n_cpus": len(os.sched_getaffinity(0)),
    }
