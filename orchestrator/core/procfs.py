"""Small files of the Linux kernel, and what ``/proc/PID/stat`` says about a process (``proc(5)``)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

PROC = Path("/proc")


def text_of(path: Path) -> str | None:
    """The content of a small kernel file; None where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStat:
    """Some fields of ``/proc/PID/stat``."""

    state: str
    """One letter; ``Z`` is a zombie."""
    parent: int
    cpu_s: float
    """User and system time of the process and of its children that were waited for."""
    start_ticks: int


def process_stat(pid: int | Literal["self"], proc: Path = PROC) -> ProcessStat | None:
    """None where there is no such process, or no such file system."""
    # The second field is the command in parentheses, and may hold anything.
    fields = (text_of(proc / str(pid) / "stat") or "").rpartition(")")[2].split()
    if not fields:
        return None
    return ProcessStat(
        state=fields[0],
        parent=int(fields[1]),
        cpu_s=sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK"),
        start_ticks=int(fields[19]),
    )


def is_zombie(pid: int) -> bool:
    """Whether the process has ended and still waits to be reaped, which some containers never do."""
    return (stat := process_stat(pid)) is not None and stat.state in ("Z", "X")


def is_running(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    return (stat := process_stat(pid)) is not None and stat.state not in ("Z", "X")
