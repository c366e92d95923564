"""Reading files that other processes may have put in place: nothing is waited for, and nothing is read without end."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

LARGEST_BYTES = 1 << 30
"""A larger file is read by nobody who needs the whole of it at once."""


def open_regular(path: Path, *, follow: bool = True, buffering: int = -1) -> BinaryIO:
    """Open for reading. A named pipe would be waited for, and a device such as ``/dev/zero`` may have no end.

    :param follow: whether ``path`` may be a symbolic link.
    :raises OSError: also for anything but a regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    return os.fdopen(descriptor, "rb", buffering=buffering)


def read_regular(path: Path, most_bytes: int = LARGEST_BYTES) -> bytes:
    """The content of a regular file.

    :raises OSError: as :func:`open_regular`.
    :raises ValueError: it has more than ``most_bytes``.
    """
    with open_regular(path) as file:
        content = b"" if os.fstat(file.fileno()).st_size > most_bytes else file.read(most_bytes + 1)
        if (not content and os.fstat(file.fileno()).st_size) or len(content) > most_bytes:
            raise ValueError(f"larger than {most_bytes >> 20} MiB")
    return content
