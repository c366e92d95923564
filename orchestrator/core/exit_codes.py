"""Exit codes of child processes."""

from __future__ import annotations

import enum
import errno

CANNOT_RENDER = 3
"""Exit code of a child process that should draw, where nothing can be drawn."""
DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)


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
