"""Python code of the user's own: how it gets to nodes that do not have it as the driver has.

The driver reads what lies below the folder of the job file, once. An attempt that needs it and finds the same under
the same path on its node uses that; elsewhere, also where something else lies there, it gets the driver's.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from orchestrator.core.environment import SEARCH_PATH_VARIABLE
from orchestrator.core.errors import OrchestratorError, UsageError
from orchestrator.core.job import Job
from orchestrator.core.paths import RunPaths
from orchestrator.core.worker_spec import WorkerSpec

MOST_FILES = 2_000
MOST_FOLDERS = 5_000
MOST_MIB = 16
"""All three are looked at again for every attempt, on every node that has a folder of that name."""
MIB = 1 << 20
PATIENCE_S = 120.0
PLACE = "code"
"""Of a session's scratch: beside the folders of attempts, which have ``@`` in their names."""

Files: TypeAlias = Mapping[str, bytes]
"""Path below a folder → content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserCode:
    """What jobs import from a folder, as the driver has found it."""

    folder: str
    digest: str
    files: Any
    """:data:`Files`, as a reference to an object of Ray's: who has no need of it does not get it."""

    def variables(self, scratch: Path, fetch: Callable[[Any], Files] | None = None) -> dict[str, str]:
        """For a worker on this node: where it finds the code.

        :param scratch: of the session on this node; goes with it.
        :param fetch: ``files`` → what it refers to.
        :raises OrchestratorError: it is not here and did not come.
        :raises OSError: it could not be written.
        """
        return {SEARCH_PATH_VARIABLE: str(self._here() or self._brought(scratch, fetch or _fetched))}

    def _here(self) -> Path | None:
        folder = Path(self.folder)
        with contextlib.suppress(UsageError, OSError):  # it has more, or what we cannot read: it is something else
            if digest(found(folder)) == self.digest:
                return folder
        return None

    def _brought(self, scratch: Path, fetch: Callable[[Any], Files]) -> Path:
        place = scratch / PLACE / self.digest
        if place.is_dir():
            return place
        beside = place.with_name(f".{self.digest[:8]}-{os.getpid()}")
        try:
            for name, content in fetch(self.files).items():
                path = beside / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            try:
                beside.rename(place)
            except OSError:
                if not place.is_dir():  # else another attempt was faster
                    raise
        finally:
            shutil.rmtree(beside, ignore_errors=True)
        return place


def sent(jobs: Iterable[Job]) -> dict[str, UserCode]:
    """The code of all ``jobs`` that have some, by ``job_id``; on its way from now on, to whoever asks for it.

    :raises UsageError: it is more than should travel.
    """
    import ray

    by_folder: dict[str, UserCode | None] = {}
    by_job = {}
    for job in jobs:
        folder = folder_of(job.spec)
        if folder is None:
            continue
        if folder not in by_folder:
            try:
                files = found(Path(folder))
            except OSError as error:
                raise UsageError(f"{error.filename or folder}: cannot be read ({error.strerror})") from error
            by_folder[folder] = UserCode(folder=folder, digest=digest(files), files=ray.put(files)) if files else None
        if (code := by_folder[folder]) is not None:
            by_job[job.job_id] = code
    return by_job


def folder_of(spec: WorkerSpec) -> str | None:
    """Where a job imports code from; None: it names no module. (A plain id is of an environment that is installed.)"""
    return None if spec.env is not None and ":" not in spec.env else spec.search_path


def found(folder: Path) -> Files:
    """The Python files below ``folder``, through links too; empty where there is no such folder.

    Left out is what is hidden, what cannot be read, and what is not the user's own code: ``__pycache__``, virtual
    environments and run directories.

    :raises UsageError: there are more than travel.
    """
    files: dict[str, bytes] = {}
    size = 0
    for folders, (root, below, names) in enumerate(os.walk(folder, followlinks=True), start=1):
        here = Path(root)
        below[:] = [name for name in below if _may_hold_code(here / name)]
        for path in (here / name for name in names if name.endswith(".py") and not name.startswith(".")):
            if path.is_file() and os.access(path, os.R_OK):
                size += path.stat().st_size
                if size <= MOST_MIB * MIB:
                    files[path.relative_to(folder).as_posix()] = path.read_bytes()
        for has, most, what in (
            (folders, MOST_FOLDERS, f"{MOST_FOLDERS:,} folders"),
            (len(files), MOST_FILES, f"{MOST_FILES:,} Python files"),
            (size, MOST_MIB * MIB, f"{MOST_MIB} MiB of Python files"),
        ):
            if has > most:
                raise UsageError(
                    f"{folder}: jobs import code from this folder, so that its Python files go to the nodes of the"
                    f" cluster; there are more than {what} below it. Put job file and code into a folder of their own"
                )
    return files


def _may_hold_code(folder: Path) -> bool:
    if folder.name.startswith(".") or folder.name == "__pycache__":
        return False
    if folder.is_symlink() and folder.resolve() in map(Path.resolve, folder.parents):  # it leads round in a circle
        return False
    marks = (folder / "pyvenv.cfg", folder / "conda-meta", RunPaths(folder).ledger)
    return not any(mark.exists() for mark in marks)


def digest(files: Files) -> str:
    """SHA-256 over names and contents, as hexadecimal text."""
    total = hashlib.sha256()
    for name in sorted(files):
        total.update(os.fsencode(name) + b"\0" + hashlib.sha256(files[name]).digest())
    return total.hexdigest()


def _fetched(reference: Any) -> Files:
    import ray

    try:
        files: Files = ray.get(reference, timeout=PATIENCE_S)
    except ray.exceptions.GetTimeoutError as error:
        raise OrchestratorError(
            "the code that it imports is not on this node and did not come from the driver's"
        ) from error
    return files
