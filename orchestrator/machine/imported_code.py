"""The user's own Python code that jobs import: the files of a folder, and a digest by which two
copies are compared.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

from orchestrator.core.errors import UsageError, errors_name
from orchestrator.core.job import Job
from orchestrator.core.paths import RunPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.machine.topology import MIB

MOST_FILES = 2_000
MOST_FOLDERS = 5_000
MOST_MIB = 16
"""There are three limits because every attempt reads the folder again, on every node that has one
of that path."""

Files: TypeAlias = Mapping[str, bytes]
"""Path below a folder → content."""


def code_folder(spec: WorkerSpec) -> str | None:
    """Where a job imports code from; None if it names no module. (An id without colon is an
    installed environment.)
    """
    return spec.search_path if code_name(spec) else None


def code_name(spec: WorkerSpec) -> str:
    """What a job imports, as the job file names it."""
    named = (spec.entry_point or spec.env or spec.task, spec.algo)
    return " and ".join(name for name in named if name is not None and ":" in name)


def python_files(folder: Path) -> Files:
    """The Python files below ``folder``, following links; empty if there is no such folder.

    Hidden and unreadable files are left out, and so is what is not the user's own code:
    ``__pycache__``, virtual environments and run directories.

    :raises UsageError: there are too many.
    :raises OSError: one cannot be read, although its permissions allow that.
    """
    files: dict[str, bytes] = {}
    size = 0
    for n_folders, (root, subfolders, names) in enumerate(os.walk(folder, followlinks=True), 1):
        parent = Path(root)
        subfolders[:] = [name for name in subfolders if _may_contain_code(parent / name)]
        for name in names:
            path = parent / name
            is_code = name.endswith(".py") and not name.startswith(".")
            if is_code and path.is_file() and os.access(path, os.R_OK):
                with errors_name(path):
                    content = path.read_bytes()
                files[path.relative_to(folder).as_posix()] = content
                size += len(content)
        if n_folders > MOST_FOLDERS or len(files) > MOST_FILES or size > MOST_MIB * MIB:
            raise UsageError(
                f"{folder}: jobs import code from this folder, so its Python files are copied to the"
                f" nodes of the cluster, and there are more than {MOST_FOLDERS:,} folders, {MOST_FILES:,}"
                f" Python files or {MOST_MIB} MiB of them below it. Put job file and code into a separate folder"
            )
    return files


def digests(jobs: Iterable[Job]) -> dict[str, str]:
    """Each folder that ``jobs`` import code from, with the digest of its code; not those that are
    too large.
    """
    found = {}
    folders = {code_folder(job.spec) for job in jobs}
    for folder in sorted(folder for folder in folders if folder is not None):
        # Too large, or it cannot be read: no comparison says then whether it has changed.
        with contextlib.suppress(UsageError, OSError):
            if files := python_files(Path(folder)):
                found[folder] = digest(files)
    return found


def _may_contain_code(folder: Path) -> bool:
    if folder.name.startswith(".") or folder.name == "__pycache__":
        return False
    is_loop = folder.is_symlink() and folder.resolve() in map(Path.resolve, folder.parents)
    if is_loop:
        return False
    markers = (folder / "pyvenv.cfg", folder / "conda-meta", RunPaths(folder).ledger)
    return not any(marker.exists() for marker in markers)


def digest(files: Files) -> str:
    """SHA-256 over names and contents."""
    total = hashlib.sha256()
    for name in sorted(files):
        total.update(os.fsencode(name) + b"\0" + hashlib.sha256(files[name]).digest())
    return total.hexdigest()
