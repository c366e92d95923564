"""The receiving side: pieces become files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from orchestrator.executors.ray.file_sync.chunks import (
    Appended,
    Chunk,
    FilePart,
    FileSyncError,
    RemovedFile,
    StoredFile,
)
from orchestrator.executors.ray.file_sync.storage import Storage


class Receiver:
    """A job directory that pieces are applied to, those of one :class:`Sender` from its first.

    Files appear whole, by rename. What is not whole yet is in one hidden file of the job directory; one that an
    earlier Receiver left behind when it was killed is removed.

    :param root: the job directory; it is made where it is missing.
    :param storage: where files lie whose pieces only name them.
    :param name: different for each of several Homes of one directory at the same time (ranks on several machines).
    :param durable: whether whole files must survive a power cut, as in a run directory.

    Homes of different directories may be used from different threads.
    """

    def __init__(self, root: Path, *, storage: Storage | None = None, name: str = "", durable: bool = True) -> None:
        self._root, self._storage, self._durable = root, storage, durable
        root.mkdir(parents=True, exist_ok=True)
        self._beside = root / f".arriving{name}.tmp"
        self._arrived: tuple[str, int] | None = None
        """The file that is arriving, and how many bytes of it have."""
        self.close()

    def close(self) -> None:
        """Forget a file that has not arrived whole."""
        self._arrived = None
        self._beside.unlink(missing_ok=True)

    def apply(self, piece: Chunk) -> None:
        """Do what ``piece`` says.

        :raises FileSyncError: it leaves the directory, leads over a link, or does not follow on what was applied so
        far.
        :raises OSError: as disk or storage answer, with the path: ``ENOSPC`` when the disk is full. A table is as it
            was then, and a file as good as never begun.
        """
        target = self._place(piece.path)
        match piece:
            case FilePart():
                self._part(target, piece)
            case Appended():
                self._tail(target, piece)
            case StoredFile():
                self._stored(target, piece)
            case RemovedFile():
                self._remove(target)

    def _place(self, path: str) -> Path:
        """Where ``path`` is. :raises FileSyncError: outside, or behind a link that may lead there."""
        parts = path.split("/")
        if "\0" in path or any(part in ("", ".", "..") for part in parts):
            raise FileSyncError(f"{path!r} is no path inside a job directory")
        target = self._root
        for part in parts:
            target /= part
            if target.is_symlink():
                raise FileSyncError(
                    f"{target}: is a link; nothing is written where it leads. Put a folder in its place"
                )
        return target

    def _part(self, target: Path, piece: FilePart) -> None:
        if piece.offset and self._arrived != (piece.path, piece.offset):
            raise FileSyncError(f"{target}: its bytes from {piece.offset} on came, after {self._arrived}")
        raw = piece.data.raw()
        self._write(target, lambda file: file.write(raw), begin=piece.offset == 0, finish=piece.is_last)
        self._arrived = None if piece.is_last else (piece.path, piece.offset + len(raw))

    def _stored(self, target: Path, piece: StoredFile) -> None:
        storage = self._storage
        if storage is None:
            raise FileSyncError(f"{target}: it lies in a storage, and none was named here")

        def fetch(file: BinaryIO) -> None:
            storage.fetch(piece.name, file)
            if file.tell() != piece.size:
                raise FileSyncError(
                    f"{target}: {file.tell()} bytes of it are in --storage {storage.uri}, not {piece.size}"
                )

        self._write(target, fetch, begin=True, finish=True)
        with contextlib.suppress(OSError):  # it has arrived; what is left there goes with the run
            storage.remove(piece.name)

    def _write(self, target: Path, write: Callable[[BinaryIO], object], *, begin: bool, finish: bool) -> None:
        """``write`` to the file that is arriving, which, with ``finish``, becomes ``target``."""
        try:
            with _told(target):
                with self._beside.open("wb" if begin else "ab") as file:
                    write(file)
                    if finish and self._durable:
                        file.flush()
                        os.fsync(file.fileno())
                if finish:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    self._beside.replace(target)
                    if self._durable:
                        _sync(target.parent)
        except BaseException:
            self.close()
            raise

    def _tail(self, target: Path, piece: Appended) -> None:
        raw = piece.data.raw()
        with _told(target), target.open("r+b", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            if size != piece.offset:
                raise FileSyncError(f"{target}: has {size} bytes, and came to grow from {piece.offset}")
            try:
                written = 0
                while written < len(raw):
                    written += file.write(raw[written:])
            except OSError:
                file.truncate(size)
                raise

    def _remove(self, target: Path) -> None:
        with _told(target):
            target.unlink(missing_ok=True)
        for folder in target.parents:
            if folder == self._root:
                return
            with contextlib.suppress(OSError):  # not empty, or not there
                folder.rmdir()


@contextlib.contextmanager
def _told(target: Path) -> Iterator[None]:
    """Errors name ``target``, unless they name a file already."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(target)) from error


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
