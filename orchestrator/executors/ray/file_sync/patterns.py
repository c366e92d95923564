"""Which files of a job directory travel, in what order, and how they are found."""

from __future__ import annotations

import contextlib
import enum
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from orchestrator.core.paths import JobPaths
from orchestrator.executors.ray.file_sync.chunks import FileSyncError

_JOB = JobPaths(Path())
_ATTEMPTS, _CHECKPOINTS, _ROBOT = _JOB.attempts.name, _JOB.checkpoints.name, _JOB.robot.name
_LAST_WORD = _JOB.attempt(0).exit.name
_MEETING_PLACE = re.compile(rf"{_ATTEMPTS}/[^/]+/{_JOB.attempt(0).rendezvous.name}$")
_CHECKPOINT = ".pt"
_RANK = re.compile(rf"{_ATTEMPTS}/[^/]+/rank-(\d+)\.|{_JOB.replay(1).as_posix()[:-1]}(\d+)(?:/|$)")


class FileKind(enum.IntEnum):
    """In the order in which they are sent: whatever relies on others comes after them."""

    TABLE = enum.auto()
    """Tables and logs, which grow at their ends. Who goes on from a checkpoint needs the rows up to it."""
    ROWS = enum.auto()
    """Of a replay buffer."""
    CHECKPOINT = enum.auto()
    RESULT = enum.auto()
    LAST_WORD = enum.auto()
    """Says that all is done, so that all must be there."""


def kind(path: str) -> FileKind:
    folder, _, rest = path.partition("/")
    if folder == _CHECKPOINTS and "/" in rest:
        return FileKind.ROWS
    if folder == _CHECKPOINTS and path.endswith(_CHECKPOINT):
        return FileKind.CHECKPOINT
    if path.endswith((".csv", ".log")):
        return FileKind.TABLE
    return FileKind.LAST_WORD if folder == _ATTEMPTS and path.endswith(_LAST_WORD) else FileKind.RESULT


def rank_named(path: str) -> int | None:
    """The rank that a file or folder belongs to by its name. What names none is of rank 0, which writes for all."""
    match = _RANK.match(path)
    return None if match is None else int(match[1] or match[2])


class FilePatterns(Protocol):
    """Which files travel."""

    refuses_links: ClassVar[bool]
    """Whether a link is an error; otherwise it is left out."""

    def has(self, path: str) -> bool: ...

    def may_hold(self, folder: str) -> bool:
        """Whether it is worth looking into ``folder``."""
        ...


@dataclass(frozen=True, slots=True)
class ResultFiles:
    """All that arises where ``ranks`` run (None: all of them), but for what is hidden: files that are being written."""

    ranks: frozenset[int] | None
    refuses_links: ClassVar[bool] = False

    def has(self, path: str) -> bool:
        if path in (_JOB.spec.name, _JOB.robot_hash.name) or _is_hidden(path) or _MEETING_PLACE.match(path):
            return False
        return self.ranks is None or (rank_named(path) or 0) in self.ranks

    def may_hold(self, folder: str) -> bool:
        return folder != _ROBOT and not _is_hidden(folder)


@dataclass(frozen=True, slots=True)
class InputFiles:
    """What a worker begins with or goes on from, where ``ranks`` run: each needs its own replay buffer only."""

    ranks: frozenset[int] | None
    refuses_links: ClassVar[bool] = True

    def has(self, path: str) -> bool:
        top, _, rest = path.partition("/")
        if top in (_JOB.spec.name, _JOB.progress_csv.name, _JOB.timings_csv.name, _ROBOT):
            return True
        return top == _CHECKPOINTS and not _is_hidden(rest)

    def may_hold(self, folder: str) -> bool:
        top, _, rest = folder.partition("/")
        is_others = bool(rest) and self.ranks is not None and (rank_named(folder) or 0) not in self.ranks
        return top == _ROBOT or (top == _CHECKPOINTS and not is_others)


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _is_hidden(path: str) -> bool:
    return _name(path).startswith(".")


def listing(root: Path, choice: FilePatterns) -> dict[str, os.stat_result]:
    """The regular files below ``root``, without following links.

    What is sent later is looked at earlier, so that what it relies on is seen too: first the attempts, then the
    job's own files, checkpoints last and the rows of their replay buffers after them.

    :raises OSError: ``root`` is not there.
    :raises FileSyncError: a link is among them, and ``choice`` refuses links.
    """
    found = dict(_under(root, _ATTEMPTS, choice))
    files, folders = _look(root, "", choice)
    found.update(files)
    for folder in sorted(folders, key=lambda name: (name == _CHECKPOINTS, name)):
        if folder != _ATTEMPTS:
            found.update(_under(root, folder, choice))
    return found


def checkpoints(root: Path) -> frozenset[str]:
    """Names of the checkpoint files below ``root``."""
    try:
        names = os.listdir(root / _CHECKPOINTS)
    except FileNotFoundError:
        return frozenset()
    return frozenset(name for name in names if name.endswith(_CHECKPOINT))


def _under(root: Path, folder: str, choice: FilePatterns) -> Iterator[tuple[str, os.stat_result]]:
    if not choice.may_hold(folder) or (root / folder).is_symlink():
        return
    try:
        files, folders = _look(root, folder, choice)
    except FileNotFoundError:  # removed meanwhile, or not made yet
        return
    yield from files.items()
    for one in folders:
        yield from _under(root, one, choice)


def _look(root: Path, folder: str, choice: FilePatterns) -> tuple[dict[str, os.stat_result], list[str]]:
    """The files of one folder, those that travel, and its folders."""
    files: dict[str, os.stat_result] = {}
    folders: list[str] = []
    with os.scandir(root / folder) as entries:
        for entry in entries:
            path = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_symlink():
                if choice.refuses_links and (choice.has(path) or choice.may_hold(path)):
                    raise FileSyncError(
                        f"{root / path}: is a link, and links do not travel; put in its place what it means"
                    )
            elif entry.is_dir(follow_symlinks=False):
                folders.append(path)
            elif choice.has(path) and entry.is_file(follow_symlinks=False):
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    files[path] = entry.stat(follow_symlinks=False)
    return files, folders
