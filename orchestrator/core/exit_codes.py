"""Exit codes of child processes."""

from __future__ import annotations

import enum
import errno
import signal

CANNOT_RENDER = 3
"""Exit code of a child process that should draw, where nothing can be drawn."""
DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)
KILLS = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
"""Signals that end a process from outside. The others come from a fault in it, and would come
again."""


def is_killed_from_outside(returncode: int) -> bool:
    return -returncode in KILLS


def how_it_ended(returncode: int) -> str:
    """``exit code 3``; of a process that a signal has ended: which, and who may have sent it."""
    if returncode >= 0:
        return f"exit code {returncode}"
    text = f"signal {-returncode} ({signal.strsignal(-returncode)})"
    if -returncode == signal.SIGKILL:
        text += ", which the kernel sends when memory runs out (`journalctl -k` says so), or another process has sent"
    elif is_killed_from_outside(returncode):
        text += ", which another process or a terminal has sent"
    return text


class ExitCode(enum.IntEnum):
    """Exit codes of a worker. A negative return code, as usual, is the signal that killed it."""

    SUCCEEDED = 0
    ERROR = 1
    """A Python exception; it would occur again."""
    DIVERGED = 10
    """Non-finite physics, rewards or losses; it would occur again."""
    INTERRUPTED = 11
    """Stopped on request, after a checkpoint."""
    DISK_FULL = 12
    """No space left on the disk; the last checkpoint is intact."""
    ORPHANED = 13
    """The supervisor is gone, or the next attempt of the job has begun elsewhere."""
    RANK_LOST = 14
    """Another rank ended or did not answer: a consequence, never the cause of a failure."""
    PAUSED = 15
    """At :attr:`~orchestrator.core.worker_spec.WorkerSpec.pause_at`, after a checkpoint."""
