"""Names of users, and a directory of this user alone for small files that programs of one machine
share.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pwd
import stat
import tempfile
from pathlib import Path


@functools.cache
def user_name(uid: int) -> str:
    """``uid 1234`` for one without a name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def ask_owner(path: Path) -> str:
    """What to do where this user may not change ``path``; empty where that belongs to this user, or is
    not there.
    """
    try:
        owner = path.stat().st_uid
    except OSError:  # there is none, or it may not be seen
        return ""
    if owner == os.geteuid():
        return ""
    return (
        f"it belongs to {user_name(owner)}: ask {user_name(owner)}, or do it as {user_name(owner)}"
    )


def private_directory() -> Path | None:
    """``<temporary directory>/orchestrator-<uid>``, created when it is missing; None when it cannot
    be trusted.

    Everybody may write to the temporary directory, so that the name may belong to another user, or
    be a link.
    """
    path = Path(tempfile.gettempdir()) / f"orchestrator-{os.getuid()}"
    try:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        status = path.lstat()
    except OSError:  # the temporary directory is read-only, full or missing
        return None
    return path if is_own(status, os.getuid()) else None


def is_own(status: os.stat_result, uid: int) -> bool:
    """Whether this is a directory, and no link to one, that only the user ``uid`` may change."""
    return stat.S_ISDIR(status.st_mode) and status.st_uid == uid and not status.st_mode & 0o022
