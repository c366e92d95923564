"""Python code of the user that jobs import: how it gets to nodes that do not have it.

The driver reads the folder of the job file once. An attempt uses the folder of the same path on its node if the code
there is the same; otherwise it gets the driver's.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from orchestrator.core.environment import SEARCH_PATH_VARIABLE
from orchestrator.core.errors import OrchestratorError, UsageError
from orchestrator.core.job import Job
from orchestrator.core.paths import RunPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.machine.topology import MIB

MOST_FILES = 2_000
MOST_FOLDERS = 5_000
MOST_MIB = 16
"""There are three limits because every attempt reads the folder again, on every node that has one of that path."""
FETCH_TIMEOUT_S = 120.0
CODE_FOLDER = "code"
"""In a session's scratch directory, beside the folders of attempts, which have ``@`` in their names."""

Files: TypeAlias = Mapping[str, bytes]
"""Path below a folder → content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserCode:
    """The code that jobs import from a folder, as the driver has read it."""

    folder: str
    digest: str
    files: Any
    """Reference to an object of Ray's, a :data:`Files`: only nodes that need it fetch it."""

    def variables(self, scratch: Path) -> dict[str, str]:
        """The variables by which a worker on this node finds the code.

        :param scratch: the session's scratch directory on this node.
        :raises OrchestratorError: the code is not on this node, and fetching it timed out.
        :raises OSError: it could not be written.
        """
        return {SEARCH_PATH_VARIABLE: str(self._same_folder() or self._copy(scratch))}

    def _same_folder(self) -> Path | None:
        folder = Path(self.folder)
        with contextlib.suppress(UsageError, OSError):  # too large or unreadable: its code is another
            if digest(python_files(folder)) == self.digest:
                return folder
        return None

    def _copy(self, scratch: Path) -> Path:
        target = scratch / CODE_FOLDER / self.digest
        if target.is_dir():
            return target
        temporary = target.with_name(f".{self.digest[:8]}-{os.getpid()}")
        try:
            for name, content in _fetch(self.files).items():
                path = temporary / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            temporary.rename(target)
        except OSError:
            if not target.is_dir():  # else another attempt was faster
                raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return target


def upload(jobs: Iterable[Job]) -> dict[str, UserCode]:
    """Put the code of all ``jobs`` that import some into Ray's object store. Returns it by ``job_id``.

    :raises UsageError: the code is too large, or cannot be read.
    """
    import ray

    by_folder: dict[str, UserCode | None] = {}
    by_job = {}
    for job in jobs:
        folder = code_folder(job.spec)
        if folder is None:
            continue
        if folder not in by_folder:
            try:
                files = python_files(Path(folder))
            except OSError as error:
                raise UsageError(f"{error.filename or folder}: cannot be read ({error.strerror})") from error
            by_folder[folder] = UserCode(folder=folder, digest=digest(files), files=ray.put(files)) if files else None
        if (code := by_folder[folder]) is not None:
            by_job[job.job_id] = code
    return by_job


def code_folder(spec: WorkerSpec) -> str | None:
    """Where a job imports code from; None if it names no module. (An id without colon is an installed environment.)"""
    return None if spec.env is not None and ":" not in spec.env else spec.search_path


def python_files(folder: Path) -> Files:
    """The Python files below ``folder``, following links; empty if there is no such folder.

    Hidden and unreadable files are left out, and so is what is not the user's own code: ``__pycache__``, virtual
    environments and run directories.

    :raises UsageError: there are too many.
    """
    files: dict[str, bytes] = {}
    size = 0
    for folders, (root, subfolders, names) in enumerate(os.walk(folder, followlinks=True), start=1):
        parent = Path(root)
        subfolders[:] = [name for name in subfolders if _may_contain_code(parent / name)]
        for path in (parent / name for name in names if name.endswith(".py") and not name.startswith(".")):
            if path.is_file() and os.access(path, os.R_OK):
                size += path.stat().st_size
                if size <= MOST_MIB * MIB:
                    files[path.relative_to(folder).as_posix()] = path.read_bytes()
        for amount, most, what in (
            (folders, MOST_FOLDERS, f"{MOST_FOLDERS:,} folders"),
            (len(files), MOST_FILES, f"{MOST_FILES:,} Python files"),
            (size, MOST_MIB * MIB, f"{MOST_MIB} MiB of Python files"),
        ):
            if amount > most:
                raise UsageError(
                    f"{folder}: jobs import code from this folder, so its Python files are copied to the nodes of the"
                    f" cluster, and there are more than {what} below it. Put job file and code into a separate folder"
                )
    return files


def digests(jobs: Iterable[Job]) -> dict[str, str]:
    """Each folder that ``jobs`` import code from, with the digest of its code; not those that are too large."""
    found = {}
    for folder in sorted({folder for job in jobs if (folder := code_folder(job.spec)) is not None}):
        with contextlib.suppress(UsageError, OSError):
            if files := python_files(Path(folder)):
                found[folder] = digest(files)
    return found


def _may_contain_code(folder: Path) -> bool:
    if folder.name.startswith(".") or folder.name == "__pycache__":
        return False
    if folder.is_symlink() and folder.resolve() in map(Path.resolve, folder.parents):  # an endless loop
        return False
    markers = (folder / "pyvenv.cfg", folder / "conda-meta", RunPaths(folder).ledger)
    return not any(marker.exists() for marker in markers)


def digest(files: Files) -> str:
    """SHA-256 over names and contents."""
    total = hashlib.sha256()
    for name in sorted(files):
        total.update(os.fsencode(name) + b"\0" + hashlib.sha256(files[name]).digest())
    return total.hexdigest()


def _fetch(reference: Any) -> Files:
    import ray

    try:
        files: Files = ray.get(reference, timeout=FETCH_TIMEOUT_S)
    except ray.exceptions.GetTimeoutError as error:
        raise OrchestratorError(
            "the code that the job imports is not on this node, and could not be fetched from the driver's in time"
        ) from error
    return files
