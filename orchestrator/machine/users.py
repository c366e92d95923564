"""Names of users, what another user than root decides, and a directory of this user alone for small
files that programs of one machine share.
"""

from __future__ import annotations

import functools
import os
import pwd
import stat
import tempfile
from pathlib import Path

NOBODY = 65534
"""A user with no rights but those that everybody has."""


@functools.cache
def user_name(uid: int) -> str:
    """``uid 1234`` for one without a name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def sudo_name(uid: int) -> str:
    """The user as ``sudo -u`` takes it: by number where there is no name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"'#{uid}'"


def ask_owner(path: Path) -> str:
    """What to do where this user may not read or change ``path``; empty where that belongs to this
    user or is not there, and for root, whom no owner stops.
    """
    try:
        owner = path.stat().st_uid
    except PermissionError:  # the owner of the folder says so
        return ask_owner(path.parent)
    except OSError:  # there is none
        return ""
    if os.geteuid() in (0, owner):
        return ""
    return ask_user(user_name(owner))


def ask_user(user: str) -> str:
    """What to do where something belongs to this user."""
    return f"it belongs to {user}: ask {user}, or do it as {user}"


def user_who_decides(path: Path) -> int | None:
    """The user who decides what is at ``path``, if that is not root alone: root reads what it was
    not asked for by name only as this user.

    Who owns ``path``, a folder above it or a link on the way may put anything there, at any moment.
    :data:`NOBODY` where others may write, or what is there cannot be seen. None: root alone decides,
    there is nothing, or this process is not root's.
    """
    if os.geteuid() != 0:
        return None
    try:
        return _who_decides(path.absolute(), is_above=False)
    except FileNotFoundError:
        return None
    except OSError:  # of its file system
        return NOBODY


def _who_decides(path: Path, *, is_above: bool) -> int | None:
    """From the top down: nothing is touched below what is not root's.

    :param is_above: it is a folder on the way. If it is like ``/tmp`` (sticky), nobody can replace
        what root has in it.
    :raises OSError: it cannot be seen, or is not there.
    """
    above = path.parent
    if above != path and (user := _who_decides(above, is_above=True)) is not None:
        return user
    status = path.lstat()
    if status.st_uid != 0:
        return status.st_uid
    if stat.S_ISLNK(status.st_mode):
        path.stat()  # an error where links go round in a circle
        return _who_decides(above / path.readlink(), is_above=is_above)
    others_may_write = bool(status.st_mode & 0o022)
    is_sticky = bool(status.st_mode & stat.S_ISVTX)
    return NOBODY if others_may_write and not (is_above and is_sticky) else None


def private_directory() -> Path | None:
    """``<temporary directory>/orchestrator-<uid>``, created when it is missing; None when it cannot
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
    """Whether this is a directory, and no link to one, that only the user ``uid`` may change."""
    return stat.S_ISDIR(status.st_mode) and status.st_uid == uid and not status.st_mode & 0o022
