"""Identity of a process: its pid together with its start time."""

from __future__ import annotations

from orchestrator.core.procfs import process_stat


def process_start(pid: int) -> float | None:
    """When ``pid`` started, in clock ticks since boot; None where there is no such process. A zombie still is one."""
    stat = process_stat(pid)
    return None if stat is None else float(stat.start_ticks)


def same_process(pid: int, start: float) -> bool:
    """Whether the process known as ``pid``, started at ``start``, still exists (perhaps as a zombie)."""
    return process_start(pid) == start
