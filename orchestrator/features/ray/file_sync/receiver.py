"""The receiving side: chunks become files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from orchestrator.core.errors import errors_name
from orchestrator.core.files.atomic_files import sync_directory
from orchestrator.features.ray.file_sync import chunks
from orchestrator.features.ray.file_sync.chunks import Chunk, FileSyncError
from orchestrator.features.ray.file_sync.storage import Storage


class Receiver:
    """Applies the chunks of one :class:`Sender` to a job directory, beginning with the first.

    Files appear whole, by rename. An incomplete file is kept in one hidden file of the job
    directory; one left by an earlier receiver that was killed is removed.

    :param root: the job directory; created if missing.
    :param storage: where the files of :class:`StoredFile` are.
    :param name: different for each receiver that uses the directory at the same time (ranks on
        several machines).
    :param durable: whether files must survive a power failure, as in a run directory.

    Receivers of different directories may be used from different threads.
    """

    def __init__(
        self, root: Path, *, storage: Storage | None = None, name: str = "", durable: bool = True
    ) -> None:
        self._root = root
        self._storage = storage
        self._durable = durable
        root.mkdir(parents=True, exist_ok=True)
        self._partial = root / f".arriving{name}.tmp"
        self._received: tuple[str, int] | None = None
        """Path of the incomplete file, and the number of its bytes received."""
        self.close()

    def close(self) -> None:
        self._received = None
        self._partial.unlink(missing_ok=True)

    def apply(self, chunk: Chunk) -> None:
        """Make the change that ``chunk`` describes.

        :raises FileSyncError: its path leaves the directory or leads through a link, or it does not
            continue the chunks applied before.
        :raises OSError: an error of disk or storage, naming the path; ``ENOSPC`` for a full disk. A
            table is then unchanged, and an incomplete file discarded.
        """
        target = self._target(chunk.path)
        match chunk:
            case chunks.FilePart():
                self._write_part(target, chunk)
            case chunks.Appended():
                self._append(target, chunk)
            case chunks.StoredFile():
                self._fetch_stored(target, chunk)
            case chunks.RemovedFile():
                self._remove(target)

    def _target(self, path: str) -> Path:
        """``path`` below the root. :raises FileSyncError: it is outside, or behind a link, which
        may lead there.
        """
        parts = path.split("/")
        if "\0" in path or any(part in ("", ".", "..") for part in parts):
            raise FileSyncError(f"{path!r} is not a path inside a job directory")
        target = self._root
        for part in parts:
            target /= part
            if target.is_symlink():
                raise FileSyncError(
                    f"{target}: is a symbolic link; files are not written through links. Replace it by a folder"
                )
        return target

    def _write_part(self, target: Path, part: chunks.FilePart) -> None:
        if part.offset and self._received != (part.path, part.offset):
            raise FileSyncError(
                f"{target}: received its bytes from {part.offset} on, after {self._received}"
            )
        raw = part.payload.raw()
        self._write(
            target, lambda file: file.write(raw), begin=part.offset == 0, finish=part.is_last
        )
        self._received = None if part.is_last else (part.path, part.offset + len(raw))

    def _fetch_stored(self, target: Path, stored: chunks.StoredFile) -> None:
        storage = self._storage
        if storage is None:
            raise FileSyncError(
                f"{target}: the file is in a storage, and no storage is configured here"
            )

        def fetch(file: BinaryIO) -> None:
            storage.fetch(stored.name, file)
            if file.tell() != stored.size:
                raise FileSyncError(
                    f"{target}: {storage.named} has {file.tell()} bytes, not {stored.size}"
                )

        self._write(target, fetch, begin=True, finish=True)
        # The file has arrived; the run removes the rest of the storage at its end.
        with contextlib.suppress(OSError):
            storage.remove(stored.name)

    def _write(
        self, target: Path, write: Callable[[BinaryIO], object], *, begin: bool, finish: bool
    ) -> None:
        try:
            with errors_name(target):
                with self._partial.open("wb" if begin else "ab") as file:
                    write(file)
                    if finish and self._durable:
                        file.flush()
                        os.fsync(file.fileno())
                if finish:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    self._partial.replace(target)
                    if self._durable:
                        sync_directory(target.parent)
        except BaseException:
            self.close()
            raise

    def _append(self, target: Path, chunk: chunks.Appended) -> None:
        raw = chunk.payload.raw()
        with errors_name(target), target.open("r+b", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            if size != chunk.offset:
                raise FileSyncError(
                    f"{target}: has {size} bytes; the bytes to append begin at {chunk.offset}"
                )
            try:
                written = 0
                while written < len(raw):
                    written += file.write(raw[written:])
            except OSError:
                file.truncate(size)
                raise

    def _remove(self, target: Path) -> None:
        with errors_name(target):
            target.unlink(missing_ok=True)
        for folder in target.parents:
            if folder == self._root:
                return
            with contextlib.suppress(OSError):  # it is not empty, or missing
                folder.rmdir()
