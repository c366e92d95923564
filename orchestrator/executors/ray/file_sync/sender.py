"""The sending side: what has changed in a job directory, as pieces."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import errno
import os
import stat
import time
from collections.abc import Collection, Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from orchestrator.executors.ray.file_sync import chunks, patterns
from orchestrator.executors.ray.file_sync.chunks import (
    Appended,
    Chunk,
    FilePart,
    FileSyncError,
    Payload,
    RemovedFile,
    StoredFile,
)
from orchestrator.executors.ray.file_sync.patterns import FileKind, InputFiles, ResultFiles
from orchestrator.executors.ray.file_sync.storage import Storage

STORED_FROM_BYTES = 64 * 2**10
"""Smaller files are not worth the way through a storage."""
SETTLED_NS = 50_000_000
"""A file changed so shortly before it was looked at may have changed again within the same tick of the file system's
clock: that it looks the same next time says nothing."""


class SendResult(enum.Enum):
    """What became of sending a file."""

    SENT = enum.auto()
    VANISHED = enum.auto()
    CHANGED = enum.auto()
    """While it was read. It is sent anew next time; what was sent of it has no effect."""


@dataclass(frozen=True, slots=True)
class _FileState:
    """A file as it was when it was looked at. Those that have been sent are remembered so."""

    inode: int
    size: int
    mtime_ns: int
    is_settled: bool
    end: bytes = b""
    """Of tables and logs: the last bytes sent."""

    @classmethod
    def at(cls, file: BinaryIO) -> _FileState:
        now_ns = time.time_ns()
        found = os.fstat(file.fileno())
        return cls(found.st_ino, found.st_size, found.st_mtime_ns, abs(now_ns - found.st_mtime_ns) > SETTLED_NS)

    def is_still(self, found: os.stat_result) -> bool:
        return (self.inode, self.size, self.mtime_ns) == (found.st_ino, found.st_size, found.st_mtime_ns)


class Sender:
    """A job directory away, whose changes go home. Between scans it remembers what was sent, never contents.

    Every piece that a scan yields must be applied; a scan may be given up between two of them.

    :param root: the job directory.
    :param storage: where whole files go that are not small.
    :param ranks: whose files go home, where others run elsewhere; None: all. What belongs to no rank by its name
        is of rank 0.
    :param choice: which files travel.
    """

    def __init__(
        self,
        root: Path,
        *,
        storage: Storage | None = None,
        ranks: Collection[int] | None = None,
        choice: type[ResultFiles | InputFiles] = ResultFiles,
    ) -> None:
        self._root, self._storage = root, storage
        self._choice = choice(None if ranks is None else frozenset(ranks))
        self._sent: dict[str, _FileState] = {}
        self.is_behind = False
        """Whether the last scan had to leave something to the next, because files changed meanwhile."""

    @classmethod
    def of_copy(cls, root: Path, *, storage: Storage | None = None, ranks: Collection[int] | None = None) -> Sender:
        """The source of a directory that holds what came from home, and nothing else yet.

        To be made before the worker starts.
        """
        source = cls(root, storage=storage, ranks=ranks)
        for path in patterns.listing(root, source._choice):
            with _opened(root / path) as file:
                look = dataclasses.replace(_FileState.at(file), is_settled=True)  # nobody writes meanwhile
                if patterns.kind(path) is FileKind.TABLE:
                    end = _read(file, max(0, look.size - chunks.COMPARED_BYTES), chunks.COMPARED_BYTES)
                    look = dataclasses.replace(look, end=end)
            source._sent[path] = look
        return source

    def scan(self) -> Iterator[Chunk]:
        """What has changed since the last scan.

        Tables go before the checkpoints that need their rows, and rows of replay buffers too; an older checkpoint goes
        away after a newer one has come; ``exit.json`` comes last of all. When nothing has changed, no file is opened.

        :raises OSError: as disk or storage answer; ``root`` is not there.
        """
        self.is_behind = True
        with contextlib.ExitStack() as stack:
            files, tables = self._snapshot(stack)
            gone = [path for path in self._sent if path not in files]
            given_up = _given_up(gone, files)
            yield from self._forget(given_up)
            for path, file in tables.items():
                if not (yield from self._send_table(path, file)):
                    return
        new: dict[FileKind, list[str]] = {one: [] for one in FileKind}
        for path, found in files.items():
            if self._is_new(path, found):
                new[patterns.kind(path)].append(path)
        for path in new[FileKind.ROWS]:  # one that has vanished was needed by no checkpoint that is still there
            if (yield from self._send_whole(path)) is SendResult.CHANGED:
                return
        for path in sorted(new[FileKind.CHECKPOINT], reverse=True):
            if (yield from self._send_whole(path)) is not SendResult.SENT:
                return
        fates = []
        for path in new[FileKind.RESULT]:
            fates.append((yield from self._send_whole(path)))
        yield from self._forget(sorted(set(gone) - set(given_up), key=lambda path: (-patterns.kind(path), path)))
        for path in new[FileKind.LAST_WORD]:
            fates.append((yield from self._send_whole(path)))
        self.is_behind = any(fate is not SendResult.SENT for fate in fates)

    def _snapshot(self, stack: contextlib.ExitStack) -> tuple[Mapping[str, os.stat_result], Mapping[str, BinaryIO]]:
        """The files as they are now, and those tables and logs opened that may have changed.

        All as of one instant as far as checkpoints are concerned: none came or went meanwhile.
        """
        while True:
            tables: dict[str, BinaryIO] = {}
            before = patterns.checkpoints(self._root)
            files = patterns.listing(self._root, self._choice)
            for path, found in files.items():
                if patterns.kind(path) is FileKind.TABLE and self._is_new(path, found):
                    with contextlib.suppress(FileNotFoundError):
                        tables[path] = stack.enter_context(_opened(self._root / path))
            if patterns.checkpoints(self._root) == before:
                return files, tables
            stack.close()

    def _is_new(self, path: str, found: os.stat_result) -> bool:
        """Whether the file may be another than the one that was sent."""
        sent = self._sent.get(path)
        return sent is None or not (sent.is_settled and sent.is_still(found))

    def _forget(self, paths: Collection[str]) -> Iterator[Chunk]:
        for path in paths:
            del self._sent[path]
            yield RemovedFile(path)

    def _send_table(self, path: str, file: BinaryIO) -> Generator[Chunk, None, bool]:
        """What a table or log has grown by, or all of it. Returns False when it changed otherwise meanwhile."""
        look, sent = _FileState.at(file), self._sent.get(path)
        # A table that is cut back and written anew is another file; one that is cut in place has another end.
        grows = (
            sent is not None
            and sent.inode == look.inode
            and sent.size <= look.size
            and _read(file, sent.size - len(sent.end), len(sent.end)) == sent.end
        )
        at, end = (sent.size, sent.end) if sent is not None and grows else (0, b"")
        pack = True
        while True:
            length = min(chunks.CHUNK_BYTES, look.size - at)
            read = _read(file, at - len(end), len(end) + length)
            if len(read) < len(end) + length or not read.startswith(end):
                return False
            data = Payload.of(read[len(end) :], pack=pack)
            begins, at, pack, end = at, at + length, data.is_packed, read[-chunks.COMPARED_BYTES :]
            is_last = at == look.size
            if is_last or grows:
                is_settled = look.is_settled and is_last
                self._sent[path] = dataclasses.replace(look, size=at, is_settled=is_settled, end=end)
            if not grows:
                yield FilePart(path, begins, data, is_last)
            elif length:
                yield Appended(path, begins, data)
            if is_last:
                return True

    def _send_whole(self, path: str) -> Generator[Chunk, None, SendResult]:
        try:
            file = _opened(self._root / path)
        except FileNotFoundError:
            return SendResult.VANISHED
        with file:
            look = _FileState.at(file)
            if self._storage is not None and look.size >= STORED_FROM_BYTES:
                return (yield from self._send_stored(path, file, look, self._storage))
            at, pack = 0, True
            while True:
                raw = _read(file, at, min(chunks.CHUNK_BYTES, look.size - at))
                begins, at = at, at + len(raw)
                is_last = at == look.size
                if not (raw or is_last) or (is_last and not look.is_still(os.fstat(file.fileno()))):
                    return SendResult.CHANGED
                data = Payload.of(raw, pack=pack)
                pack = data.is_packed
                if is_last:
                    self._sent[path] = look
                yield FilePart(path, begins, data, is_last)
                if is_last:
                    return SendResult.SENT

    def _send_stored(
        self, path: str, file: BinaryIO, look: _FileState, storage: Storage
    ) -> Generator[Chunk, None, SendResult]:
        name = storage.put(file)
        if not look.is_still(os.fstat(file.fileno())):
            storage.remove(name)
            return SendResult.CHANGED
        self._sent[path] = look
        yield StoredFile(path, name, look.size)
        return SendResult.SENT


def outgoing_chunks(
    root: Path, *, storage: Storage | None = None, ranks: Collection[int] | None = None
) -> Iterator[Chunk]:
    """What a worker needs of the job directory at home: spec, robot, checkpoints with their replay buffers, tables.

    All checkpoints go, not the newest alone: a worker that finds that one damaged goes on from the one before.

    :param ranks: those that will run there; each needs its own replay buffer only. None: all of them.
    :raises FileSyncError: a link is among the files, or they change meanwhile.
    :raises OSError: as disk or storage answer; ``root`` is not there.
    """
    source = Sender(root, storage=storage, ranks=ranks, choice=InputFiles)
    yield from source.scan()
    if source.is_behind:
        raise FileSyncError(f"{root}: its files changed while they were sent; does another program write there?")


def _given_up(gone: Collection[str], files: Collection[str]) -> list[str]:
    """Checkpoints that a worker did not go on from, having found them damaged: it went on from an older one, or anew.

    Others are gone because there are newer ones: all that are left are.
    """
    left = [path for path in files if patterns.kind(path) is FileKind.CHECKPOINT]
    oldest = min(left, default="")
    return [path for path in gone if patterns.kind(path) is FileKind.CHECKPOINT and path > oldest]


def _opened(path: Path) -> BinaryIO:
    """:raises FileNotFoundError: it is not there, or has become something other than a regular file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise FileNotFoundError(errno.ENOENT, "is a link", str(path)) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, "is no regular file", str(path))
    return os.fdopen(descriptor, "rb", buffering=0)


def _read(file: BinaryIO, at: int, length: int) -> bytes:
    """Up to ``length`` bytes from ``at``: fewer at the end of the file only."""
    return os.pread(file.fileno(), length, at)
