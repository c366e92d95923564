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
