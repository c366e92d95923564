"""Temporary folders that do not stay behind: those of a process that was killed are removed at the next start."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from orchestrator.core.environment import SELFTEST_VARIABLE

PREFIX = "orchestrator-temporary-"


class TemporaryFolder(tempfile.TemporaryDirectory[str]):
    """Locked by this process for as long as it is there: an unlocked one belongs to nobody."""

    def __init__(self) -> None:
        sweep()
        super().__init__(os.environ.get(SELFTEST_VARIABLE), PREFIX, ignore_cleanup_errors=True)
        self._lock: int | None = _locked(Path(self.name))

    def cleanup(self) -> None:
        super().cleanup()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __exit__(self, *_: object) -> None:
        self.cleanup()


def _locked(folder: Path) -> int:
    while True:
        folder.mkdir(mode=0o700, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        with contextlib.suppress(OSError):  # a file system without locks, where nothing is swept
            fcntl.flock(lock, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), folder.stat()):
                return lock
        os.close(lock)  # another process swept it before it was locked


@functools.cache
def sweep() -> None:
    """Remove what killed processes of this user left behind; once in a process."""
    for folder in abandoned():
        shutil.rmtree(folder, ignore_errors=True)


def abandoned() -> Iterator[Path]:
    """The folders of killed processes of this user, each locked until the next one is asked for."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(lock).st_uid == os.geteuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    yield folder
            finally:
                os.close(lock)
