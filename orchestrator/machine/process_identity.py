"""Identity of a process: its pid together with its start time, which also says at which boot of
which machine.
"""

from __future__ import annotations

import functools
import os
import zlib
from pathlib import Path

from orchestrator.core.processes.procfs import process_stat, text_of

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_FRACTIONS = 2**20


def process_start(pid: int) -> float | None:
    """When ``pid`` started; None where there is no such process. A zombie still is one.

    Whole clock ticks since the boot, plus a fraction made from the kernel's id of this boot: after
    a reboot, or on another machine that sees the same files, no process has the same pid and start.
    """
    stat = process_stat(pid)
    return None if stat is None else stat.start_ticks + _boot_fraction()


def same_process(pid: int, start: float) -> bool:
    """Whether the process known as ``pid``, started at ``start``, still exists (perhaps as a
    zombie).
    """
    return process_start(pid) == start


def writes_elsewhere(pid: int, log: Path) -> bool:
    """Whether the standard output of a process is another file than ``log``; False if that cannot be
    seen.
    """
    try:
        return not os.path.samestat(Path(f"/proc/{pid}/fd/1").stat(), log.stat())
    except OSError:
        return False


@functools.cache
def boot_id() -> str:
    """The kernel's name for this boot of this machine; empty where the system has none, or a
    container hides it.
    """
    return (text_of(BOOT_ID) or "").strip()


@functools.cache
def _boot_fraction() -> float:
    """Above 0 and below 1; 0 where the system does not identify its boots."""
    line = text_of(BOOT_ID)
    return 0.0 if line is None else (zlib.crc32(line.encode()) % (_FRACTIONS - 1) + 1) / _FRACTIONS
