"""A directory of this user alone, for small files that the programs of one machine share while they run."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path


def private_directory() -> Path | None:
    """``<temporary directory>/orchestrator-<uid>``, created when it is missing; None when it cannot be trusted."""
    path = Path(tempfile.gettempdir()) / f"orchestrator-{os.getuid()}"
    return path if make_own(path, 0o700) else None


def make_own(path: Path, mode: int) -> bool:
    """Create ``path`` with ``mode``, unless it exists. Returns whether only this user may change it.

    Everybody may write to the folder around it, so that the name may belong to another user, or be a link.
    """
    try:
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            path.chmod(mode)
    except OSError:
        return False
    return is_own(path, os.getuid())


def is_own(path: Path, uid: int) -> bool:
    """Whether ``path`` is a directory, and no link to one, that only the user ``uid`` may change."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == uid and not status.st_mode & 0o022
