"""Python code of the user that jobs import: how it gets to nodes that do not have it.

The driver reads the folder of the job file when a job is added that names other code than those
before. An attempt uses the folder of the same path on its node if the code there is
the same; otherwise it gets the driver's.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.core.errors import OrchestratorError, UsageError, is_disk_full
from orchestrator.core.processes.environment_variables import SEARCH_PATH_VARIABLE
from orchestrator.features.ray import internals
from orchestrator.features.ray.driver_directory import DriverDirectory
from orchestrator.machine.imported_code import Files, digest, python_files

FETCH_TIMEOUT_S = 120.0
CODE_FOLDER = "code"
"""In a session's scratch directory, beside the folders of attempts, which have ``@`` in their
names."""


class CodeCopyError(OSError):
    """The user's code cannot be copied. ``errno`` is that of the cause, None if the code is too
    large.
    """

    def __init__(self, number: int | None, message: str) -> None:
        """:param message: what is wrong, where, and what to do; without a full stop."""
        super().__init__(number, message)

    def __str__(self) -> str:
        return str(self.args[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class UserCode:
    """The code that jobs import from a folder, as the driver has read it."""

    folder: str
    digest: str
    copy: Path
    """The driver's copy, pickled :data:`Files`, on its machine: only nodes that need it fetch it.

    It is no object of Ray's: a driver that has one ends without a message when the cluster does.
    """

    def variables(self, scratch: Path, driver_node: str) -> dict[str, str]:
        """The variables by which a worker on this node finds the code.

        :param scratch: the session's scratch directory on this node.
        :param driver_node: id of the driver's node.
        :raises OrchestratorError: the code is not on this node, and fetching it timed out.
        :raises OSError: it could not be written.
        """
        return {
            SEARCH_PATH_VARIABLE: str(
                self._same_folder() or self._fetch_folder(scratch, driver_node)
            )
        }

    def _same_folder(self) -> Path | None:
        folder = Path(self.folder)
        # A folder that is too large or unreadable has other code.
        with contextlib.suppress(UsageError, OSError):
            if digest(python_files(folder)) == self.digest:
                return folder
        return None

    def _fetch_folder(self, scratch: Path, driver_node: str) -> Path:
        target = scratch / CODE_FOLDER / self.digest
        if target.is_dir():
            return target
        temporary = target.with_name(f".{self.digest[:8]}-{os.getpid()}")
        try:
            files: Files = pickle.loads(_fetch(self.copy, driver_node))
            for name, content in files.items():
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


@dataclass(slots=True, kw_only=True)
class CodeFolders:
    """The code of the folders that jobs import from, as it was when a job was first known that
    imports it.
    """

    driver_directory: DriverDirectory
    """Receives the copies."""
    _read: dict[tuple[str, str], UserCode | UsageError | None] = field(
        default_factory=dict, init=False
    )

    def code(self, folder: str | None, name: str) -> UserCode | None:
        """Return the code in :attr:`Launch.code_folder`, with :attr:`Launch.code_name`, or None if
        there is none. The folder is read when a name is first asked for.

        :raises CodeCopyError: the code is too large, which stands until the next run, or cannot be
            read or copied.
        """
        if folder is None:
            return None
        if (folder, name) not in self._read:
            try:
                self._read[folder, name] = _copy(folder, self.driver_directory)
            except UsageError as error:
                self._read[folder, name] = error
        code = self._read[folder, name]
        if isinstance(code, UsageError):
            raise CodeCopyError(None, str(code)) from code
        return code


def _copy(folder: str, driver_directory: DriverDirectory) -> UserCode | None:
    """:raises CodeCopyError: the folder cannot be read, or its copy not be written. :raises
    UsageError: too large.
    """
    try:
        files = python_files(Path(folder))
    except OSError as error:
        place = f"{error.filename or folder}: jobs import code from {folder}"
        text = f"{place}, and this file cannot be copied to nodes ({error.strerror}). Make it readable or remove it"
        raise CodeCopyError(error.errno, text) from error
    if not files:
        return None
    name = digest(files)
    try:
        return UserCode(
            folder=folder, digest=name, copy=driver_directory.keep(name[:8], pickle.dumps(files))
        )
    except OSError as error:
        what = (
            f"{driver_directory.root}: the code that jobs import from {folder} "
            "cannot be copied there for other nodes"
        )
        cure = "Free some space" if is_disk_full(error) else "Correct that"
        raise CodeCopyError(error.errno, f"{what} ({error.strerror}). {cure}") from error


def _fetch(copy: Path, driver_node: str) -> bytes:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    on_driver = NodeAffinitySchedulingStrategy(driver_node, soft=False)
    remote: Any = ray.remote(Path.read_bytes)
    reference = remote.options(num_cpus=0, max_retries=0, scheduling_strategy=on_driver).remote(
        copy
    )
    try:
        content: bytes = internals.keeping_cpus(lambda: ray.get(reference, timeout=FETCH_TIMEOUT_S))
    except ray.exceptions.GetTimeoutError as error:
        raise OrchestratorError(
            "the code that the job imports is not on this node, and could not be fetched from the driver's in time"
        ) from error
    return content
