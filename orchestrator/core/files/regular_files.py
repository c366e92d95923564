"""Reading files that other processes may have put in place: nothing is waited for, and nothing is
read without end.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

LARGEST_BYTES = 1 << 30
"""A larger file is read by nobody who needs the whole of it at once."""
CHUNK = 1 << 20


def open_regular(path: Path, *, follow: bool = True, buffering: int = -1) -> BinaryIO:
    """Open for reading. A named pipe would be waited for, and a device such as ``/dev/zero`` may
    have no end.

    :param follow: whether ``path`` may be a symbolic link.
    :raises OSError: also for anything but a regular file.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    if not follow:
        flags |= os.O_NOFOLLOW
    descriptor = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    return os.fdopen(descriptor, "rb", buffering=buffering)


def open_below(folder: Path, path: Path) -> BinaryIO:
    """As :func:`open_regular`, for others to read: nothing that a symbolic link leads to outside of
    ``folder``.

    What was opened is examined, so that no link can take its place in between.

    :raises OSError: also where ``path`` itself is a symbolic link, even to a place in ``folder``.
    """
    file = open_regular(path, follow=False)
    if not Path(f"/proc/self/fd/{file.fileno()}").resolve().is_relative_to(folder.resolve()):
        file.close()
        raise OSError(errno.ELOOP, f"a link leads out of {folder}", str(path))
    return file


def read_regular(path: Path, most_bytes: int = LARGEST_BYTES) -> bytes:
    """The content of a regular file.

    :raises OSError: as :func:`open_regular`.
    :raises ValueError: it has more than ``most_bytes``.
    """
    with open_regular(path) as file:
        is_too_large = os.fstat(file.fileno()).st_size > most_bytes
        content = b"" if is_too_large else read_up_to(file, most_bytes + 1)
    if is_too_large or len(content) > most_bytes:  # it may have grown meanwhile
        raise ValueError(f"larger than {most_bytes >> 20} MiB")
    return content


def read_up_to(file: BinaryIO, most_bytes: int) -> bytes:
    """The next ``most_bytes`` of a file or fewer. Unlike ``file.read`` it allocates what there is,
    not the limit.
    """
    content = bytearray()
    while len(content) < most_bytes and (chunk := file.read(min(CHUNK, most_bytes - len(content)))):
        content += chunk
    return bytes(content)
