"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from orchestrator.core.text import storable

FICLONE = 0x40049409
"""The request of Linux to give a file the blocks of another one; each gets its own when it is
written."""
SYNCED_AT_ONCE = 16
DEVICE_FOLDERS = ("/dev", "/proc")
"""Links there, such as ``/dev/stdout``, name what a process has open."""


def write_whole(
    path: Path, data: str | bytes | Callable[[BinaryIO], object], *, durable: bool = True
) -> None:
    """Write so that ``path`` has the old content or the new, never a part of it: to a temporary
    file, fsync, rename.

    :param durable: whether the content must survive a power cut; False for a file that can be made
        again.
    :raises OSError: of the file system (``ENOSPC`` on a full disk); the temporary file is removed.
    """
    with writing_whole(path, durable=durable) as file:
        if callable(data):
            data(file)
        else:
            file.write(storable(data).encode() if isinstance(data, str) else data)


def refuse_special_file(path: Path) -> None:
    """Refuse a target that a user has named and that is there, but is no regular file: in the place
    of a device such as ``/dev/stdout`` there would be a file.

    :raises OSError: it is a device, a pipe, a directory, or a link that names an open file.
    """
    names_open_file = path.is_symlink() and any(map(path.is_relative_to, DEVICE_FOLDERS))
    if names_open_file or (path.exists() and not path.is_file()):
        raise OSError(errno.EINVAL, "is not a regular file, so it is not replaced", str(path))


def remove_partial_files(directory: Path, name: str = "") -> None:
    """Remove the temporary files of killed processes that wrote ``name``, or any file, in
    ``directory``.
    """
    for partial in directory.glob(f".{name}*.tmp"):
        partial.unlink(missing_ok=True)


@contextlib.contextmanager
def writing_whole(path: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """As :func:`write_whole`, for content written in parts; it appears when the block ends without
    an exception.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(beside, "wb", opener=no_follow) as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    if durable:
        sync_directory(path.parent)


def clone_tree(source: Path, target: Path) -> None:
    """Copy a folder to ``target``, which must not exist, with modes and times. Before it is whole,
    its owner alone can read it.

    :raises OSError: of the first file that cannot be copied, with its errno, which
        :func:`shutil.copytree` hides.
    """
    target.mkdir(mode=0o700, parents=True)
    for path in source.iterdir():
        copy = clone_tree if path.is_dir() else _clone_file
        copy(path, target / path.name)
    shutil.copystat(source, target)


def _clone_file(source: Path, target: Path) -> None:
    """Copy a file with its mode and times, as :func:`shutil.copy2` does.

    On file systems that can (Btrfs, XFS, bcachefs), both share their blocks until one of them
    changes. They are no hard links: an edit of one copy must not change the others.
    """
    with source.open("rb") as original, open(target, "wb", opener=_private) as copy:
        try:
            fcntl.ioctl(copy, FICLONE, original.fileno())
        except OSError:  # this file system shares no blocks, or these are two
            shutil.copyfileobj(original, copy)
    shutil.copystat(source, target)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def no_follow(path: str, flags: int) -> int:
    """Opener for :func:`open`: raises OSError for a symbolic link (``ELOOP``), and for a pipe that
    nobody reads.
    """
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    os.set_blocking(descriptor, True)
    return descriptor


def opened_log(path: Path, warn: Callable[[str], object]) -> int:
    """The descriptor of a log that is added to. Where it cannot be written ``warn`` is told, and it is
    that of ``/dev/null``: the jobs matter more than their log.
    """
    try:
        return no_follow(str(path), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    except OSError as error:
        nothing = os.open(os.devnull, os.O_WRONLY)
        warn(f"{path}: cannot be written ({error.strerror}), so there is no log")
        return nothing


def sync_trees(folders: Sequence[Path]) -> None:
    """Make every file and every name in ``folders`` survive a power cut. Disks do many at once much
    faster.
    """
    from concurrent.futures import ThreadPoolExecutor  # not needed by workers

    with ThreadPoolExecutor(SYNCED_AT_ONCE) as pool:
        list(pool.map(_sync_tree, folders))  # raises what a thread has raised


def _sync_tree(folder: Path) -> None:
    for parent, _, names in os.walk(folder):
        for path in (Path(parent), *(Path(parent, name) for name in names)):
            sync_directory(path)


def sync_directory(path: Path) -> None:
    """Make the names in a folder survive a power cut; of a file, its content."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
