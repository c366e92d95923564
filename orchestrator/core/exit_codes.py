"""How a worker process ends: its exit codes."""

from __future__ import annotations

import enum
import errno

DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)


class ExitCode(enum.IntEnum):
    """How a worker leaves. A negative return code is, as everywhere, the signal that killed it."""

    SUCCEEDED = 0
    ERROR = 1
    """A Python error; it would happen again."""
    DIVERGED = 10
    """Non-finite physics, rewards or losses; it would happen again."""
    INTERRUPTED = 11
    """Left on request, at a whole checkpoint."""
    DISK_FULL = 12
    """No space left; the last whole checkpoint stands."""
    ORPHANED = 13
    """The supervisor went away first, or the job's next attempt has begun elsewhere."""
    RANK_LOST = 14
    """Another rank went away or did not answer: never the cause of an end, only its consequence."""
