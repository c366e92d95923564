"""Temporary folders that do not stay behind: those of a process that was killed are removed at the
next start.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import tempfile
import time
import weakref
from pathlib import Path

PREFIX = "orchestrator-temporary-"
SWEPT_AFTER_S = 60.0
"""A folder that was changed since may not be locked yet."""


class TemporaryFolder:
    """A new folder, removed at the end of its ``with`` block, with this object, or with the process
    that made it.

    A process that was forked from that one does not remove it, however it ends: the folder is still
    in use. It is locked for as long as it is there: an unlocked one belongs to nobody.
    """

    def __init__(self) -> None:
        sweep()
        self.name = tempfile.mkdtemp(prefix=PREFIX)
        """Its absolute path."""
        lock = os.open(self.name, os.O_RDONLY | os.O_DIRECTORY)
        with contextlib.suppress(OSError):  # a file system without locks, where nothing is swept
            fcntl.flock(lock, fcntl.LOCK_EX)
        self._removal = weakref.finalize(self, _remove_own, Path(self.name), lock, os.getpid())

    def __enter__(self) -> str:
        return self.name

    def __exit__(self, *_: object) -> None:
        self.cleanup()

    def cleanup(self) -> None:
        """Remove it, if this process has made it. May be called again."""
        self._removal()


def _remove_own(folder: Path, lock: int, owner: int) -> None:
    """:param owner: the process that has made it."""
    if os.getpid() == owner:
        _remove(folder)
    os.close(lock)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        _make_writable(folder)
        shutil.rmtree(folder, ignore_errors=True)


def _make_writable(folder: Path) -> None:
    """For its owner, so that what lies in it can be removed: a copied folder may be read-only."""
    for where, inner, _ in os.walk(folder):
        for path in (Path(where, name) for name in inner):
            if not path.is_symlink():
                with contextlib.suppress(OSError):  # it belongs to somebody else
                    path.chmod(0o700)


@functools.cache
def sweep() -> None:
    """Remove what killed processes of this user left behind; once in a process."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        # It is in use, belongs to somebody else, or another process has swept it.
        with contextlib.suppress(OSError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                status = os.fstat(lock)
                age_s = time.time() - status.st_mtime
                if status.st_uid == os.geteuid() and age_s > SWEPT_AFTER_S:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove(folder)
            finally:
                os.close(lock)
