"""What attempts have on a node: a folder each, locked while in use, and removed by whoever comes once it is not."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from orchestrator.core.atomic_files import write_whole
from orchestrator.executors.ray.driver_directory import DriverDirectory
from orchestrator.machine.cpu_locks import shared_directory
from orchestrator.machine.process_identity import same_process

LEFTOVER_PATIENCE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The process of an attempt's task, and the CPUs that it has, as both stand in the attempt's folder."""

    home: str
    """:attr:`DriverDirectory.identity` of the driver's run directory."""
    key: str
    """Of the attempt on its node."""
    cpus: tuple[int, ...]
    pid: int
    pid_start: float | None

    @classmethod
    def read(cls, folder: Path) -> Holder | None:
        try:
            values = json.loads((folder / "holder").read_text())
            return cls(**{**values, "cpus": tuple(values["cpus"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def write(self, folder: Path) -> None:
        write_whole(folder / "holder", json.dumps(dataclasses.asdict(self)), durable=False)

    def is_alive(self) -> bool:
        return self.pid_start is not None and same_process(self.pid, self.pid_start)

    def kill(self) -> None:
        """Its workers are tied to it."""
        if self.is_alive():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signal.SIGKILL)

    def end_if_of(self, home: DriverDirectory) -> None:
        """End what a driver before ours has left running of the same run directory: no other driver can hold it now."""
        if self.home != home.identity:
            return
        deadline = time.monotonic() + LEFTOVER_PATIENCE_S
        while self.is_alive() and time.monotonic() < deadline:
            self.kill()
            time.sleep(0.01)


class ScratchDirectory:
    """A folder for one session on one node: ``<temporary directory>/orchestrator-<uid>/ray/<session>/<node>``.

    It is locked as long as its keeper lives, and so is each attempt's folder in it as long as that does; what is not
    has been left behind, and goes when the next keeper starts.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock: IO[bytes] | None = None

    @classmethod
    def claimed(cls, session: str, node_id: str) -> ScratchDirectory:
        base = shared_directory()
        everyones = Path(tempfile.mkdtemp(prefix="orchestrator-ray-")) if base is None else base / "ray"
        scratch = cls(everyones / session / node_id[:16])
        scratch.root.mkdir(parents=True, exist_ok=True)
        scratch._lock = lock(scratch.root)
        return scratch

    def remove_left(self) -> None:
        """What sessions that are over have left."""
        for left in self.root.parents[1].glob("*/*"):
            if left != self.root:
                ScratchDirectory(left).remove()

    def holders_elsewhere(self) -> list[Holder]:
        """Of the attempts of other sessions on this machine, which may be several nodes of this one."""
        folders = [folder for folder in self.root.parents[1].glob("*/*/*/") if self.root.parent not in folder.parents]
        return [holder for folder in folders if (holder := Holder.read(folder)) is not None]

    def holders(self) -> list[Holder]:
        """Of attempts of this session that run."""
        found = (Holder.read(folder) for folder in self.root.glob("*/"))
        return [holder for holder in found if holder is not None and holder.is_alive()]

    def attempt(self, key: str) -> Path:
        """The folder of one attempt."""
        return self.root / key.replace("/", "@")

    def remove(self) -> None:
        """Unless somebody else holds it, or an attempt in it."""
        if self._lock is None:
            self._lock = lock(self.root)
        if self._lock is None:
            return
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._lock)
            self._lock = None
            for folder in self.root.glob("*/"):
                held = lock(folder)
                if held is None:
                    return
                stack.enter_context(held)
            shutil.rmtree(self.root, ignore_errors=True)
            with contextlib.suppress(OSError):
                self.root.parent.rmdir()  # unless there are other nodes of it on this machine


def order_file(attempt: Path) -> Path:
    """Where the keeper leaves an order for the attempt whose folder it is."""
    return attempt / "order"


def lock(folder: Path) -> IO[bytes] | None:
    """A lock on ``folder``; None where another holds it, or there is no such folder.

    The kernel gives it back when its holder ends.
    """
    try:
        file = (folder / "lock").open("ab")
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file
