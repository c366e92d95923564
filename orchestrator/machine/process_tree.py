"""A process with all of its descendants: who they are, their memory, how long they wait for a CPU,
and on which CPUs they run (``proc(5)``).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping

from orchestrator.core.processes.procfs import content_of, names_in
from orchestrator.machine.topology import MIB

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
MOST_PASSES = 50
"""Over the threads of a process that is moved, while it starts new ones."""


def resident_mib(pid: int) -> float:
    """Resident memory of ``pid`` and its descendants in MiB; memory that they share is counted
    once.
    """
    pids = with_descendants(pid)
    if len(pids) == 1:
        return _rss_bytes(pid) / MIB
    return sum(map(_pss_bytes, pids)) / MIB


def with_descendants(pid: int) -> list[int]:
    """``pid`` and all of its descendants that still run."""
    pids = [pid]
    for parent in pids:  # grows during the loop
        for thread in threads(parent):
            pids += map(int, content_of(f"/proc/{parent}/task/{thread}/children").split())
    return pids


def move(pid: int, to: Mapping[int, int]) -> None:
    """Let every thread of ``pid`` and its descendants run on other CPUs.

    What they start meanwhile inherits the earlier ones, so that it is repeated until nobody new is
    found twice: where processes end meanwhile, the kernel's list of children may leave some out
    (``proc(5)``, ``/proc/pid/task/tid/children``).

    :param to: CPU → the one to use in its place; others stay.
    :raises OSError: the kernel refuses these CPUs.
    """
    moved: set[int] = set()
    passes_without_new = 0
    for _ in range(MOST_PASSES):
        found = {thread for member in with_descendants(pid) for thread in threads(member)}
        if found <= moved:
            passes_without_new += 1
            if passes_without_new == 2:
                return
            continue
        passes_without_new = 0
        for thread in found - moved:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                allowed = os.sched_getaffinity(thread)
                os.sched_setaffinity(thread, {to.get(cpu, cpu) for cpu in allowed})
        moved |= found


def threads(pid: int) -> list[int]:
    return [int(thread) for thread in names_in(f"/proc/{pid}/task")]


def waited_ns(pid: int) -> dict[int, int]:
    """Each thread of ``pid`` and its descendants → how long it was runnable and waited for a CPU
    so far, in nanoseconds. Those of which the kernel does not say it are left out.
    """
    waited = {}
    for member in with_descendants(pid):
        for thread in threads(member):
            if (so_far := _waited_ns(member, thread)) is not None:
                waited[thread] = so_far
    return waited


def _waited_ns(pid: int, thread: int) -> int | None:
    """Nanoseconds that a thread was runnable and waited; None where it has ended or the kernel does
    not say.
    """
    fields = content_of(f"/proc/{pid}/task/{thread}/schedstat").split()
    return int(fields[1]) if fields else None


def _rss_bytes(pid: int) -> int:
    """Resident memory, whether shared or not; 0 where it has ended."""
    fields = content_of(f"/proc/{pid}/statm").split()
    return int(fields[1]) * PAGE_BYTES if fields else 0


def _pss_bytes(pid: int) -> int:
    """Resident memory, with its share of what several processes have."""
    for line in content_of(f"/proc/{pid}/smaps_rollup").splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) * 1024
    return _rss_bytes(pid)
