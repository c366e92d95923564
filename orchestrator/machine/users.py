"""Names of users, and a directory of this user alone for small files that programs of one machine
share.
"""

from __future__ import annotations

import functools
import os
import pwd
import stat
import tempfile
from pathlib import Path


@functools.cache
def user_name(uid: int) -> str:
    """Return the name of a user, or ``uid 1234`` if it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def ask_owner(path: Path) -> str:
    """Return advice for a ``path`` that belongs to another user. Empty if it is missing, if it is
    this user's own, and for root.
    """
    try:
        owner = path.stat().st_uid
    except PermissionError:  # the owner of the folder says so
        return ask_owner(path.parent)
    except OSError:  # there is none
        return ""
    if os.geteuid() in (0, owner):
        return ""
    user = user_name(owner)
    return f"it belongs to {user}: ask {user}, or do it as {user}"


def private_directory() -> Path | None:
    """Return ``<temporary directory>/orchestrator-<uid>``, created if missing, or None if it cannot
    be trusted.

    Everybody may write to the temporary directory, so that the name may belong to another user, or
    be a link.
    """
    path = Path(tempfile.gettempdir()) / f"orchestrator-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
    # The temporary directory is read-only, full or missing, or the name is not that of a directory.
    except OSError:
        return None
    return path if is_own(status, os.getuid()) else None


def is_own(status: os.stat_result, uid: int) -> bool:
    """Return whether this is a directory (no link) that only the user ``uid`` may change."""
    return stat.S_ISDIR(status.st_mode) and status.st_uid == uid and not status.st_mode & 0o022
