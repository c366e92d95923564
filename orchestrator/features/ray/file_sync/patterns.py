"""Which files of a job directory are synchronised, in what order, and how they are listed."""

from __future__ import annotations

import contextlib
import enum
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeAlias

from orchestrator.core.paths import DAMAGED, JobPaths
from orchestrator.features.ray.file_sync.chunks import FileSyncError

_JOB = JobPaths(Path())
_ATTEMPTS = _JOB.attempts.name
_CHECKPOINTS = _JOB.checkpoints.name
_ROBOT = _JOB.robot.name
_EXIT_RECORD = _JOB.attempt(0).exit.name
_RENDEZVOUS = re.compile(rf"{_ATTEMPTS}/[^/]+/{_JOB.attempt(0).rendezvous.name}$")
_OF_A_SHORTER_TRAINING = (_JOB.eval.name, _JOB.moment.name, _JOB.preview.name)
"""A worker removes them when it writes another policy."""
_CHECKPOINT = ".pt"
_RANK = re.compile(rf"{_ATTEMPTS}/[^/]+/rank-(\d+)\.|{_JOB.replay(1).as_posix()[:-1]}(\d+)(?:/|$)")


class FileKind(enum.IntEnum):
    """In the order of sending: a file is sent after those that it depends on."""

    TABLE = enum.auto()
    """Tables and logs, which grow at their ends. Resuming from a checkpoint needs the rows up to
    it."""
    REPLAY = enum.auto()
    CHECKPOINT = enum.auto()
    RESULT = enum.auto()
    EXIT_RECORD = enum.auto()
    """Says that the attempt is over, so every other file must be there."""


def file_kind(path: str) -> FileKind:
    folder, _, rest = path.partition("/")
    if folder == _CHECKPOINTS and "/" in rest:
        return FileKind.REPLAY
    if folder == _CHECKPOINTS and path.endswith(_CHECKPOINT):
        return FileKind.CHECKPOINT
    if path.endswith((".csv", ".log")):
        return FileKind.TABLE
    if folder == _ATTEMPTS and path.endswith(_EXIT_RECORD):
        return FileKind.EXIT_RECORD
    return FileKind.RESULT


def rank_in_name(path: str) -> int | None:
    """The rank in the name of a file or folder. Files without one belong to rank 0, which writes
    for all ranks.
    """
    match = _RANK.match(path)
    return None if match is None else int(match[1] or match[2])


@dataclass(frozen=True, slots=True)
class ResultFiles:
    """From a node to the driver: every file that ``ranks`` (None: all) write there, except hidden
    ones (unfinished).
    """

    ranks: frozenset[int] | None
    rejects_links: ClassVar[bool] = False
    """Whether a symbolic link is an error; otherwise it is left out."""

    def matches(self, path: str) -> bool:
        if (
            path in (_JOB.spec.name, _JOB.robot_hash.name, _JOB.init.name)
            or _is_hidden(path)
            or _RENDEZVOUS.match(path)
        ):
            return False
        return self.ranks is None or (rank_in_name(path) or 0) in self.ranks

    def may_contain(self, folder: str) -> bool:
        """Whether ``folder`` may contain files that match."""
        return folder != _ROBOT and not _is_hidden(folder)


@dataclass(frozen=True, slots=True)
class InputFiles:
    """From the driver to a node: what ``ranks`` start or resume from, each with its own replay
    buffer only.
    """

    ranks: frozenset[int] | None
    rejects_links: ClassVar[bool] = True

    def matches(self, path: str) -> bool:
        top, _, rest = path.partition("/")
        if top in (
            _JOB.spec.name,
            _JOB.init.name,
            _JOB.progress_csv.name,
            _JOB.timings_csv.name,
            _ROBOT,
        ):
            return True
        if top in _OF_A_SHORTER_TRAINING:  # so that they are removed at the driver too
            return True
        return top == _CHECKPOINTS and not _is_hidden(rest) and not rest.endswith(DAMAGED)

    def may_contain(self, folder: str) -> bool:
        top, _, rest = folder.partition("/")
        is_of_other_rank = (
            bool(rest) and self.ranks is not None and (rank_in_name(folder) or 0) not in self.ranks
        )
        return top == _ROBOT or (top == _CHECKPOINTS and not is_of_other_rank)


FilePatterns: TypeAlias = ResultFiles | InputFiles


def _is_hidden(path: str) -> bool:
    return path.rpartition("/")[2].startswith(".")


def list_files(root: Path, patterns: FilePatterns) -> dict[str, os.stat_result]:
    """The regular files below ``root`` that match, without following links.

    Files that are sent later are listed earlier, so that whatever they depend on is seen too: first
    the attempts, then the job's own files, then checkpoints, and last the rows of their replay
    buffers.

    :raises OSError: ``root`` does not exist.
    :raises FileSyncError: a link matches, and ``patterns`` rejects links.
    """
    listed = dict(_walk(root, _ATTEMPTS, patterns))
    files, folders = _list_folder(root, "", patterns)
    listed.update(files)
    for folder in sorted(folders, key=lambda name: (name == _CHECKPOINTS, name)):
        if folder != _ATTEMPTS:
            listed.update(_walk(root, folder, patterns))
    return listed


def checkpoint_names(root: Path) -> frozenset[str]:
    try:
        names = os.listdir(root / _CHECKPOINTS)
    except FileNotFoundError:
        return frozenset()
    return frozenset(name for name in names if name.endswith(_CHECKPOINT))


def _walk(root: Path, folder: str, patterns: FilePatterns) -> Iterator[tuple[str, os.stat_result]]:
    if not patterns.may_contain(folder) or (root / folder).is_symlink():
        return
    try:
        files, folders = _list_folder(root, folder, patterns)
    except FileNotFoundError:  # removed since it was listed, or not made yet
        return
    yield from files.items()
    for subfolder in folders:
        yield from _walk(root, subfolder, patterns)


def _list_folder(
    root: Path, folder: str, patterns: FilePatterns
) -> tuple[dict[str, os.stat_result], list[str]]:
    files: dict[str, os.stat_result] = {}
    folders: list[str] = []
    with os.scandir(root / folder) as entries:
        for entry in entries:
            path = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_symlink():
                if patterns.rejects_links and (
                    patterns.matches(path) or patterns.may_contain(path)
                ):
                    hint = "symbolic links are not copied to nodes; replace the link by its target"
                    raise FileSyncError(f"{root / path}: {hint}")
            elif entry.is_dir(follow_symlinks=False):
                folders.append(path)
            elif patterns.matches(path) and entry.is_file(follow_symlinks=False):
                with contextlib.suppress(FileNotFoundError):  # removed since it was listed
                    files[path] = entry.stat(follow_symlinks=False)
    return files, folders
