"""What small files of the Linux kernel say (``proc(5)``): about a process, and about the CPUs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

PROC = Path("/proc")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_BUSY = (0, 1, 2, 5, 6)
"""Fields of a CPU's line in ``/proc/stat``: user, nice, system, irq, softirq (proc_stat(5))."""
_MOST_BYTES = 1 << 16
"""Of a file that are read by :func:`content_of`."""


def text_of(path: Path) -> str | None:
    """The content of a small kernel file; None where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:  # this kernel does not have it, or its process has ended
        return None


def content_of(path: str | Path) -> bytes:
    """Likewise, at once and without decoding: of files that are read again and again. Empty where it
    cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    # This kernel does not have it, there is no such process, it is hidden, or this process has too many
    # files open.
    except OSError:
        return b""
    try:
        return os.read(descriptor, _MOST_BYTES)
    except OSError:  # the process has ended meanwhile
        return b""
    finally:
        os.close(descriptor)


def names_in(folder: str | Path) -> list[str]:
    """The names in a folder of the kernel; none where it cannot be read, such as that of a process
    that has ended.
    """
    try:
        return os.listdir(folder)
    except OSError:
        return []


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStat:
    """Some fields of ``/proc/PID/stat``, of a process or of one thread."""

    state: str
    """One letter: ``R`` is runnable, ``Z`` a zombie, ``X`` is being reaped."""
    parent: int
    own_ticks: int
    """User and system time, in clock ticks."""
    start_ticks: int
    """When it started, after the boot."""
    cpu: int
    """On which it ran last."""

    @property
    def has_ended(self) -> bool:
        """Whether it runs no more, and only waits to be reaped."""
        return self.state in ("Z", "X")


def process_stat(pid: int | Literal["self"], proc: Path = PROC) -> ProcessStat | None:
    """The stat of a process; None where there is no such process, or no such file system."""
    return stat_in(f"{proc}/{pid}")


def stat_in(folder: str) -> ProcessStat | None:
    """The stat of the process or thread whose folder below ``/proc`` this is; None likewise.

    A folder is no :class:`~pathlib.Path` here: this file of every process of the machine is read
    every few seconds, and to put a path together takes longer than to read it.
    """
    # The second field is the command in parentheses, and may hold anything.
    fields = content_of(f"{folder}/stat").rpartition(b")")[2].split()
    if len(fields) < 37:
        return None
    return ProcessStat(
        state=fields[0].decode(),
        parent=int(fields[1]),
        own_ticks=int(fields[11]) + int(fields[12]),
        start_ticks=int(fields[19]),
        cpu=int(fields[36]),
    )


def is_zombie(pid: int) -> bool:
    """Whether the process has ended and still waits to be reaped, which some containers never
    do.
    """
    stat = process_stat(pid)
    return stat is not None and stat.has_ended


def busy_ticks(proc: Path = PROC) -> dict[int, int]:
    """CPU → clock ticks since the boot in which it was not idle; empty where the kernel does not
    say.
    """
    busy = {}
    for line in (text_of(proc / "stat") or "").splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name[3:].isdecimal() and len(fields) > max(_BUSY):
            busy[int(name[3:])] = sum(int(fields[index]) for index in _BUSY)
    return busy


def is_running(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    stat = process_stat(pid)
    return stat is not None and not stat.has_ended
