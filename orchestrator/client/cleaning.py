"""`clean`: removes from a run directory what nothing needs any more.

Everything is recognised by its name and place; what is not known is left, and no symbolic link is
followed or removed. What `report`, `verify`, `play`, `retry` and resuming need stays: the policy
and the newest checkpoint of every job, all tables, all exit records, and the log of the last
attempt.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.errors import RunDirError
from orchestrator.core.job import Succeeded
from orchestrator.core.paths import CHECKPOINT, DAMAGED, JobPaths, RunPaths
from orchestrator.experiment import left_batch_jobs, run_directory

_ASIDE = re.compile(rf".+{run_directory.TIME}")
_LOG = re.compile(r"worker\.log|rank-\d+\.log")

FORMER = "former run directories (--fresh)"
REPLACED = "replaced job directories and ledgers"
DAMAGED_CHECKPOINTS = "damaged checkpoints"
LOGS = "logs of earlier attempts"
CHECKPOINTS = "older checkpoints of jobs that succeeded"
KINDS = (FORMER, REPLACED, DAMAGED_CHECKPOINTS, LOGS, CHECKPOINTS)


@dataclass(frozen=True, slots=True)
class Leftover:
    """A file or folder to remove."""

    kind: str
    path: Path
    size: int
    """Bytes of all files in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    run_dir: Path
    leftovers: Sequence[Leftover]
    """What was found; it is removed unless that was not wanted."""
    is_removed: bool
    problems: Sequence[str]
    """Why some of it could not be removed."""


def clean(run_dir: Path, *, dry_run: bool) -> Cleaned:
    """Find what is not needed any more and, unless ``dry_run``, remove it.

    :raises UsageError: not a run directory, held by a supervisor, batch jobs may still train it, or
        its ledger cannot be read.
    """
    run_directory.existing_run(run_dir)
    with run_directory.claim(run_dir) as paths:
        left_batch_jobs.refuse_beside(paths, "nothing is removed while jobs may still be trained")
        with run_directory.reading_ledger(paths) as ledger:
            rows = ledger.jobs()
        leftovers = [*_former(paths), *_replaced_files(paths)]
        for row in rows:
            job = paths.job(row.job_id)
            is_done = isinstance(row.state, Succeeded) and job.model.is_file()
            leftovers += [
                *_checkpoints(job, is_done=is_done),
                *_earlier_logs(job, row.attempts - 1),
            ]
        problems: list[str] = []
        for leftover in leftovers if not dry_run else ():
            problem = _remove(leftover)
            if problem is not None:
                problems.append(problem)
    return Cleaned(run_dir=run_dir, leftovers=leftovers, is_removed=not dry_run, problems=problems)


def _former(paths: RunPaths) -> Iterator[Leftover]:
    """Run directories that ``--fresh`` renamed; those that somebody uses again are no leftovers."""
    root = paths.root.absolute()
    for entry in _entries(root.parent.resolve()):
        former = RunPaths(Path(entry.path))
        if (
            re.fullmatch(re.escape(root.name) + run_directory.TIME, entry.name)
            and entry.is_dir(follow_symlinks=False)
            and run_directory.is_run_directory(former)
            and run_directory.holder(former) is None
        ):
            yield _leftover(FORMER, former.root)


def _replaced_files(paths: RunPaths) -> Iterator[Leftover]:
    for entry in _entries(paths.replaced):
        if _ASIDE.fullmatch(entry.name) and not entry.is_symlink():
            yield _leftover(REPLACED, Path(entry.path))


def _checkpoints(job: JobPaths, *, is_done: bool) -> Iterator[Leftover]:
    """Damaged ones; of a job that is done all but the newest."""
    found = _entries(job.checkpoints)
    names = [entry.name for entry in found if entry.is_file(follow_symlinks=False)]
    whole = [name for name in names if CHECKPOINT.fullmatch(name)]
    for name in names:
        if name.endswith(DAMAGED) and CHECKPOINT.fullmatch(name.removesuffix(DAMAGED)):
            yield _leftover(DAMAGED_CHECKPOINTS, job.checkpoints / name)
        elif is_done and name in whole[:-1]:
            yield _leftover(CHECKPOINTS, job.checkpoints / name)


def _earlier_logs(job: JobPaths, last_attempt: int) -> Iterator[Leftover]:
    for attempt in _entries(job.attempts):
        if attempt.name.isdecimal() and int(attempt.name) < last_attempt:
            for entry in _entries(Path(attempt.path)):
                if _LOG.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                    yield _leftover(LOGS, Path(entry.path))


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """What is in ``folder``, by name; nothing if it is missing, or reached over a symbolic link
    below the root.
    """
    try:
        if not stat.S_ISDIR(folder.lstat().st_mode):
            return []
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except FileNotFoundError:
        return []


def _leftover(kind: str, path: Path) -> Leftover:
    return Leftover(kind, path, _size(path))


def _size(path: Path) -> int:
    if not stat.S_ISDIR(path.lstat().st_mode):
        return path.lstat().st_size
    files = (Path(folder, name) for folder, _, names in os.walk(path) for name in names)
    return sum(file.lstat().st_size for file in files)


def _remove(leftover: Leftover) -> str | None:
    """Remove it; returns why that was not possible."""
    path = leftover.path
    try:
        if leftover.kind == FORMER:
            with run_directory.claim(path):  # nobody begins to use it meanwhile
                shutil.rmtree(path)
        elif stat.S_ISDIR(path.lstat().st_mode):
            shutil.rmtree(path)
        else:
            path.unlink()
    except OSError as error:
        return f"{error.filename or path}: cannot be removed ({error.strerror})"
    except RunDirError as error:
        return str(error)
    return None
