"""Python code of the user that jobs import: how it gets to nodes that do not have it.

The driver reads the folder of the job file once. An attempt uses the folder of the same path on its node if the code
there is the same; otherwise it gets the driver's.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.core.environment import SEARCH_PATH_VARIABLE
from orchestrator.core.errors import OrchestratorError, UsageError
from orchestrator.core.job import Job
from orchestrator.executors.ray import internals
from orchestrator.machine.imported_code import Files, code_folder, digest, python_files

FETCH_TIMEOUT_S = 120.0
CODE_FOLDER = "code"
"""In a session's scratch directory, beside the folders of attempts, which have ``@`` in their names."""


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


def _fetch(reference: Any) -> Files:
    import ray

    try:
        files: Files = internals.keeping_cpus(lambda: ray.get(reference, timeout=FETCH_TIMEOUT_S))
    except ray.exceptions.GetTimeoutError as error:
        raise OrchestratorError(
            "the code that the job imports is not on this node, and could not be fetched from the driver's in time"
        ) from error
    return files
