"""The folder of a round: that of a self-test that was killed is removed by the next one in the same
directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from orchestrator.features.selftest.small_experiment import RUN_DIR

PREFIX = "selftest-"
MARK = ".under-way"
"""A file in the folder, locked for as long as the round lasts."""


def campaign_folder(directory: Path) -> Path:
    """A new folder for the rounds of a self-test. :raises OSError: it cannot be made."""
    directory.mkdir(parents=True, exist_ok=True)
    _sweep(directory)
    return Path(tempfile.mkdtemp(prefix=PREFIX, dir=directory)).absolute()


@contextlib.contextmanager
def under_way(folder: Path) -> Iterator[None]:
    """Make ``folder``, which belongs to a round for the block; what is in it afterwards is kept."""
    folder.mkdir()
    with (folder / MARK).open("wb") as mark:
        with contextlib.suppress(OSError):  # a file system without locks, where nothing is swept
            fcntl.flock(mark, fcntl.LOCK_EX)
        yield
        (folder / MARK).unlink(missing_ok=True)


def unmount(folder: Path) -> None:
    subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)


def _sweep(directory: Path) -> None:
    """Remove the rounds at which self-tests of this user were killed. Rounds that had fallen short
    stay.
    """
    for mark in directory.glob(f"{PREFIX}*/round-*/{MARK}"):
        folder = mark.parent
        # It is under way, or something fell short.
        with contextlib.suppress(OSError), mark.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file.fileno()).st_uid == os.geteuid():
                if os.path.ismount(folder / RUN_DIR):
                    unmount(folder / RUN_DIR)
                shutil.rmtree(folder, ignore_errors=True)
                folder.parent.rmdir()
