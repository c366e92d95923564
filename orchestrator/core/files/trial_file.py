"""What a file system makes of files of this process."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def status_of_new_file(folder: Path) -> os.stat_result:
    """The status of a file that is made in ``folder`` for that, and is gone then.

    It shows how the file system presents what is ours: network and container file systems may give
    every file one owner, others keep no permission bits.

    :raises OSError: no file can be made there.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        return os.fstat(file.fileno())


def write_trial(folder: Path, *, size: int, at: int) -> None:
    """Write ``size`` bytes from the byte ``at`` on into a file that is made in ``folder`` for that,
    and is gone then.

    :raises OSError: as a file of that size would: the disk is full, a quota or the limit on the
        size of a file is reached, no file can be made there.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        file.seek(at)
        file.write(bytes(size))
        file.flush()
        os.fsync(file.fileno())  # a quota may be told only now
