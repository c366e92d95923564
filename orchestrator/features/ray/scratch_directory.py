"""Folders of attempts on a node: locked while in use, and removed by the next node agent if left
behind.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import itertools
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, TypeAlias

from orchestrator.core.files.atomic_files import write_whole
from orchestrator.core.files.record_file import read_record
from orchestrator.features.ray.driver_directory import DriverDirectory
from orchestrator.machine.process_identity import same_process
from orchestrator.machine.users import private_directory

KILL_TIMEOUT_S = 5.0

Order: TypeAlias = Literal["exit", "kill", "checkpoint"]
"""The driver's order to an attempt, which the node agent leaves in its folder."""
_ORDERS: Mapping[str, Order] = {"exit": "exit", "kill": "kill", "checkpoint": "checkpoint"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The process of an attempt's Ray task and its CPUs, as written to the attempt's folder."""

    home: str
    """:attr:`DriverDirectory.identity` of the run directory."""
    key: str
    cpus: tuple[int, ...]
    pid: int
    pid_start: float | None
    job_id: str = ""
    work: str = ""
    """:attr:`orchestrator.core.job.Job.work`"""

    @classmethod
    def read(cls, folder: Path) -> Holder | None:
        """None where nobody has taken it yet."""
        return read_record(cls, folder / "holder")

    def write(self, folder: Path) -> None:
        write_whole(folder / "holder", json.dumps(dataclasses.asdict(self)), durable=False)

    def is_alive(self) -> bool:
        return self.pid_start is not None and same_process(self.pid, self.pid_start)

    def kill(self) -> None:
        """Kill the process; its workers end with it."""
        if self.is_alive():
            # It has just ended, and its number may be that of another user's process.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signal.SIGKILL)

    def kill_if_of(self, driver_directory: DriverDirectory) -> None:
        """Kill what an earlier driver of the same run directory left running: no other driver can
        have it locked.
        """
        if self.home != driver_directory.identity:
            return
        deadline = time.monotonic() + KILL_TIMEOUT_S
        while self.is_alive() and time.monotonic() < deadline:
            self.kill()
            time.sleep(0.01)


class ScratchDirectory:
    """The folder of one session on one node: ``<temporary
    directory>/orchestrator-<uid>/ray/<session>/<node>``.

    Its node agent locks it while it lives, and each attempt locks its own folder in it. What is not
    locked was left behind, and is removed when the next node agent starts.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock: IO[bytes] | None = None

    @classmethod
    def create(cls, session: str, node_id: str) -> ScratchDirectory:
        parent = private_directory()
        sessions = (
            Path(tempfile.mkdtemp(prefix="orchestrator-ray-")) if parent is None else parent / "ray"
        )
        scratch = cls(sessions / session / node_id[:16])
        scratch.root.mkdir(parents=True, exist_ok=True)
        scratch._lock = lock(scratch.root)
        return scratch

    def remove_stale(self) -> None:
        for folder in self.root.parents[1].glob("*/*"):
            if folder != self.root:
                ScratchDirectory(folder).remove()

    def other_sessions(self) -> list[Holder]:
        """The attempts of other sessions on this machine, which may be several nodes of this
        session.
        """
        folders = [
            folder
            for folder in self.root.parents[1].glob("*/*/*/")
            if self.root.parent not in folder.parents
        ]
        return [holder for folder in folders if (holder := Holder.read(folder)) is not None]

    def holders(self) -> list[Holder]:
        holders = (Holder.read(folder) for folder in self.root.glob("*/"))
        return [holder for holder in holders if holder is not None and holder.is_alive()]

    def attempt(self, key: str) -> Path:
        return self.root / key.replace("/", "@")

    def remove(self) -> None:
        """Remove it unless another process has locked it or an attempt in it."""
        with contextlib.ExitStack() as stack:
            held = self._lock or lock(self.root)
            self._lock = None
            for locked in itertools.chain([held], map(lock, self.root.glob("*/"))):
                if locked is None:
                    return
                stack.enter_context(locked)
            shutil.rmtree(self.root, ignore_errors=True)
            with contextlib.suppress(OSError):
                self.root.parent.rmdir()  # fails if the session has other nodes on this machine


def write_order(folder: Path, order: Order) -> None:
    """Leave an order in the folder of an attempt, perhaps before it has begun."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "order", order, durable=False)


def take_order(folder: Path) -> Order | None:
    """A new order in the folder of an attempt; the last one of several, but nothing revokes a
    ``kill``.
    """
    taken = folder / "order.taken"
    try:
        (folder / "order").rename(taken)  # later orders are written to a new file
        return _ORDERS.get(taken.read_text(), "exit")
    except FileNotFoundError:
        return None


def lock(folder: Path) -> IO[bytes] | None:
    """Lock ``folder``, until the process ends at the latest; None if another has it locked, or it
    does not exist.
    """
    # Another process has it locked, or it has been removed.
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        file = stack.enter_context((folder / "lock").open("ab"))
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        stack.pop_all()
        return file
    return None
