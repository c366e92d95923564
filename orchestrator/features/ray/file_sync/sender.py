"""The sending side: the changes of a job directory, as chunks."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import os
import time
from collections.abc import Collection, Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from orchestrator.core.files.log_limit import dropped_bytes
from orchestrator.core.files.regular_files import open_regular
from orchestrator.features.ray.file_sync import chunks, patterns
from orchestrator.features.ray.file_sync.chunks import Chunk, FileSyncError, Payload
from orchestrator.features.ray.file_sync.patterns import (
    FileKind,
    FilePatterns,
    InputFiles,
    ResultFiles,
)
from orchestrator.features.ray.file_sync.storage import Storage

STORED_FROM_BYTES = 64 * 2**10
"""Smaller files are not worth the detour through a storage."""
SETTLED_NS = 50_000_000
"""A file modified less than this before it was read may change again within the same tick of the
file system's clock: an unchanged modification time proves nothing then."""


class SendResult(enum.Enum):
    SENT = enum.auto()
    VANISHED = enum.auto()
    CHANGED = enum.auto()
    """It changed while it was read. The next scan sends it again; the parts sent have no effect."""


@dataclass(frozen=True, slots=True)
class _FileState:
    """A file when it was read. The sender remembers this of every file that it has sent."""

    inode: int
    size: int
    mtime_ns: int
    is_settled: bool
    end: bytes = b""
    """The last bytes sent; of tables and logs only."""
    dropped: int = 0
    """Bytes that are missing from a log because of its limit
    (:mod:`orchestrator.core.files.log_limit`)."""

    @classmethod
    def of(cls, file: BinaryIO) -> _FileState:
        now_ns = time.time_ns()
        status = os.fstat(file.fileno())
        return cls(
            inode=status.st_ino,
            size=status.st_size,
            mtime_ns=status.st_mtime_ns,
            is_settled=abs(now_ns - status.st_mtime_ns) > SETTLED_NS,
        )

    def is_unchanged(self, status: os.stat_result) -> bool:
        now = (status.st_ino, status.st_size, status.st_mtime_ns)
        return (self.inode, self.size, self.mtime_ns) == now


class Sender:
    """Finds what has changed in a job directory since the last scan. It remembers file states,
    never contents.

    Every chunk that a scan yields must be applied; a scan may be abandoned between two of them.

    :param root: the job directory.
    :param storage: where whole files go that are not small.
    :param ranks: the ranks whose files are sent, if others run elsewhere; None: all. A file without
        a rank in its name belongs to rank 0.
    :param direction: which files are sent.
    """

    def __init__(
        self,
        root: Path,
        *,
        storage: Storage | None = None,
        ranks: Collection[int] | None = None,
        direction: type[FilePatterns] = ResultFiles,
    ) -> None:
        self._root = root
        self._storage = storage
        self._patterns = direction(None if ranks is None else frozenset(ranks))
        self._sent: dict[str, _FileState] = {}
        self.is_incomplete = False
        """Whether files changed during the last scan, which left them to the next one."""

    @classmethod
    def of_copy(
        cls, root: Path, *, storage: Storage | None = None, ranks: Collection[int] | None = None
    ) -> Sender:
        """For a directory of files from the driver only, which are not sent back; before the worker
        starts.
        """
        sender = cls(root, storage=storage, ranks=ranks)
        for path in patterns.list_files(root, sender._patterns):
            with _open_regular(root / path) as file:
                # Nobody writes yet.
                state = dataclasses.replace(_FileState.of(file), is_settled=True)
                if patterns.file_kind(path) is FileKind.TABLE:
                    begin = max(0, state.size - chunks.COMPARED_BYTES)
                    end = _read_at(file, begin, chunks.COMPARED_BYTES)
                    state = dataclasses.replace(state, end=end)
            sender._sent[path] = state
        return sender

    def scan(self) -> Iterator[Chunk]:
        """The changes since the last scan.

        Tables, and rows of replay buffers, come before the checkpoints that need them; an old
        checkpoint is removed after a newer one has been sent; ``exit.json`` is last of all. If
        nothing has changed, no file is opened.

        :raises OSError: an error of disk or storage, or ``root`` does not exist.
        """
        self.is_incomplete = True
        with contextlib.ExitStack() as stack:
            files, tables = self._snapshot(stack)
            gone = [path for path in self._sent if path not in files]
            rejected = _rejected_checkpoints(gone, files)
            yield from self._forget(rejected)
            for path, file in tables.items():
                if not (yield from self._send_table(path, file)):
                    return
        new: dict[FileKind, list[str]] = {kind: [] for kind in FileKind}
        for path, status in files.items():
            if self._may_have_changed(path, status):
                new[patterns.file_kind(path)].append(path)
        for path in new[FileKind.REPLAY]:  # no remaining checkpoint needs rows that have vanished
            if (yield from self._send_whole(path)) is SendResult.CHANGED:
                return
        for path in sorted(new[FileKind.CHECKPOINT], reverse=True):
            if (yield from self._send_whole(path)) is not SendResult.SENT:
                return
        results = []
        for path in new[FileKind.RESULT]:
            results.append((yield from self._send_whole(path)))
        removed = set(gone) - set(rejected)
        yield from self._forget(sorted(removed, key=lambda path: (-patterns.file_kind(path), path)))
        for path in new[FileKind.EXIT_RECORD]:
            results.append((yield from self._send_whole(path)))
        self.is_incomplete = any(result is not SendResult.SENT for result in results)

    def _snapshot(
        self, stack: contextlib.ExitStack
    ) -> tuple[Mapping[str, os.stat_result], Mapping[str, BinaryIO]]:
        """The current files, and those tables and logs, opened, that may have changed.

        Consistent as far as checkpoints are concerned: none appeared or vanished during the
        snapshot.
        """
        while True:
            tables: dict[str, BinaryIO] = {}
            before = patterns.checkpoint_names(self._root)
            files = patterns.list_files(self._root, self._patterns)
            for path, status in files.items():
                is_table = patterns.file_kind(path) is FileKind.TABLE
                if is_table and self._may_have_changed(path, status):
                    with contextlib.suppress(FileNotFoundError):  # removed since it was listed
                        tables[path] = stack.enter_context(_open_regular(self._root / path))
            if patterns.checkpoint_names(self._root) == before:
                return files, tables
            stack.close()

    def _may_have_changed(self, path: str, status: os.stat_result) -> bool:
        sent = self._sent.get(path)
        return sent is None or not (sent.is_settled and sent.is_unchanged(status))

    def _forget(self, paths: Collection[str]) -> Iterator[Chunk]:
        for path in paths:
            del self._sent[path]
            yield chunks.RemovedFile(path)

    def _send_table(self, path: str, file: BinaryIO) -> Generator[Chunk, None, bool]:
        """Send the bytes appended to a table or log, or all of it. Returns False if it changed
        otherwise meanwhile.
        """
        dropped = dropped_bytes(file.fileno())
        state = dataclasses.replace(_FileState.of(file), dropped=dropped)
        sent = self._sent.get(path)
        # A table that is cut back and rewritten is another file; one that is truncated in place has
        # another end. A log that reached its limit has dropped more of its middle.
        grows = (
            sent is not None
            and (sent.inode, sent.dropped) == (state.inode, state.dropped)
            and sent.size <= state.size
            and _read_at(file, sent.size - len(sent.end), len(sent.end)) == sent.end
        )
        offset, end = (sent.size, sent.end) if sent is not None and grows else (0, b"")
        compress = True
        while True:
            length = min(chunks.CHUNK_BYTES, state.size - offset)
            read = _read_at(file, offset - len(end), len(end) + length)
            if len(read) < len(end) + length or not read.startswith(end):
                return False
            payload = Payload.of(read[len(end) :], compress=compress)
            start = offset
            offset += length
            end = read[-chunks.COMPARED_BYTES :]
            compress = payload.is_compressed
            is_last = offset == state.size
            if is_last or grows:
                is_settled = state.is_settled and is_last
                self._sent[path] = dataclasses.replace(
                    state, size=offset, is_settled=is_settled, end=end
                )
            if not grows:
                yield chunks.FilePart(path, start, payload, is_last)
            elif length:
                yield chunks.Appended(path, start, payload)
            if is_last:
                return True

    def _send_whole(self, path: str) -> Generator[Chunk, None, SendResult]:
        try:
            file = _open_regular(self._root / path)
        except FileNotFoundError:
            return SendResult.VANISHED
        with file:
            state = _FileState.of(file)
            if self._storage is not None and state.size >= STORED_FROM_BYTES:
                name = self._storage.put(file)
                if not state.is_unchanged(os.fstat(file.fileno())):
                    self._storage.remove(name)
                    return SendResult.CHANGED
                self._sent[path] = state
                yield chunks.StoredFile(path, name, state.size)
                return SendResult.SENT
            offset = 0
            compress = True
            while True:
                raw = _read_at(file, offset, min(chunks.CHUNK_BYTES, state.size - offset))
                start = offset
                offset += len(raw)
                is_last = offset == state.size
                if not raw and not is_last:  # it has become shorter
                    return SendResult.CHANGED
                if is_last and not state.is_unchanged(os.fstat(file.fileno())):
                    return SendResult.CHANGED
                payload = Payload.of(raw, compress=compress)
                compress = payload.is_compressed
                if is_last:
                    self._sent[path] = state
                yield chunks.FilePart(path, start, payload, is_last)
                if is_last:
                    return SendResult.SENT


def outgoing_chunks(
    root: Path, *, storage: Storage | None = None, ranks: Collection[int] | None = None
) -> Iterator[Chunk]:
    """The files of the driver's job directory that a worker needs: spec, robot, tables, checkpoints
    and replay buffers.

    All checkpoints are sent, not only the newest: a worker that finds it damaged resumes from the
    previous one.

    :param ranks: the ranks that will run there, each of which needs only its own replay buffer;
        None: all.
    :raises FileSyncError: a link is among the files, or they change meanwhile.
    :raises OSError: an error of disk or storage, or ``root`` does not exist.
    """
    sender = Sender(root, storage=storage, ranks=ranks, direction=InputFiles)
    yield from sender.scan()
    if sender.is_incomplete:
        raise FileSyncError(
            f"{root}: files changed while they were sent; does another program write there?"
        )


def _rejected_checkpoints(gone: Collection[str], files: Collection[str]) -> list[str]:
    """Checkpoints that the worker removed as damaged. Those older than all remaining ones gave way
    to newer ones.
    """
    checkpoints = [path for path in files if patterns.file_kind(path) is FileKind.CHECKPOINT]
    oldest = min(checkpoints, default="")
    return [
        path for path in gone if patterns.file_kind(path) is FileKind.CHECKPOINT and path > oldest
    ]


def _open_regular(path: Path) -> BinaryIO:
    """:raises FileNotFoundError: it has been removed since it was listed."""
    return open_regular(path, follow=False, buffering=0)


def _read_at(file: BinaryIO, offset: int, length: int) -> bytes:
    """``length`` bytes from ``offset``; fewer at the end of the file only."""
    return os.pread(file.fileno(), length, offset)
