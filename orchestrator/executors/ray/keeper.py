"""One small actor on every node: hands out its CPUs, passes orders to attempts, says what the node is.

It lives as long as the driver that started it. Its own process needs no CPU to speak of.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import IO, Literal, TypeAlias

from orchestrator import machine as machines
from orchestrator.claims import CpuClaims, shared_directory
from orchestrator.contract import Progress, write_whole
from orchestrator.executors.ray.versions import Versions, found
from orchestrator.slots import Slot, SlotPool

NAMESPACE = "orchestrator"
NAME_PREFIX = "keeper"
"""Of an actor's name: ``keeper/<session>/<node>``. Whoever is in the cluster can find them by it."""

LEFTOVER_PATIENCE_S = 5.0

Order: TypeAlias = Literal["leave", "kill"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """A driver's run directory, and how a node can tell whether it is the one that it sees under the same path."""

    root: Path
    nonce_file: Path
    nonce: str
    host: str
    """The driver's: without a shared file system others may have a directory of the same path."""

    @property
    def identity(self) -> str:
        return f"{self.host}:{self.root}"

    @classmethod
    def at(cls, root: Path) -> Home:
        """With a file in ``root``, which is ours alone, that holds a random word; :meth:`leave` takes it away."""
        for left in root.glob(".driver-*"):  # by one that was killed
            left.unlink(missing_ok=True)
        nonce = secrets.token_hex(16)
        path = root / f".driver-{nonce[:8]}"
        path.write_text(nonce)
        return cls(root=root, nonce_file=path, nonce=nonce, host=socket.gethostname())

    def is_visible(self) -> bool:
        """And can be written to."""
        try:
            return self.nonce_file.read_text() == self.nonce and os.access(self.root, os.W_OK | os.X_OK)
        except OSError:
            return False

    def leave(self) -> None:
        self.nonce_file.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What a keeper says of its node."""

    host: str
    cores: int
    """As ``doctor`` counts them."""
    memory_mib: int
    cpu_model: str
    versions: Versions
    sees_home: bool
    searches: Mapping[str, bool]
    """Of the folders that jobs import code from, which are there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """What an attempt gets of a node's keeper."""

    cpus: tuple[int, ...]
    scratch: Path
    """The folder of the session on this node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """CPUs of an attempt, and the process that holds them for it."""

    slot: Slot
    cpus: tuple[int, ...]
    pid: int
    pid_start: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """An attempt on a node, as ``cluster status`` shows it."""

    key: str
    cpus: tuple[int, ...]
    progress: Progress | None
    """Its latest word."""


class Keeper:
    """See the module. One call at a time."""

    def __init__(self, session: str, node_id: str, cpus: int, home: Home, search_paths: Sequence[str]) -> None:
        """:param cpus: as Ray counts them; of more than there are each is shared."""
        self._home = home
        self._search_paths = search_paths
        self._machine = machines.detect()
        # How many run at once is Ray's to say; what they run on is ours.
        claims = CpuClaims(shared_directory(), (cpu.index for cpu in self._machine.cpus))
        self._pool = SlotPool(replace(self._machine, quota=None), cpus, claims)
        self._held: dict[str, Held] = {}
        self._said: dict[str, Progress] = {}
        self._scratch = Scratch.claimed(session, node_id)
        for holder in self._scratch.holders_elsewhere():
            holder.end_if_of(home)
        self._scratch.remove_left()

    def facts(self) -> NodeFacts:
        return NodeFacts(
            host=socket.gethostname(),
            cores=self._machine.capacity,
            memory_mib=self._machine.memory_total_mib,
            cpu_model=_cpu_model(),
            versions=dict(found()),
            sees_home=self._home.is_visible(),
            searches={path: Path(path).is_dir() for path in self._search_paths},
        )

    def take(self, key: str, cores: int, pid: int, pid_start: float | None) -> Granted | None:
        """CPUs of its own for attempt ``key``, held by process ``pid`` of this machine; None while there are none.

        Whose process is gone holds nothing any more.
        """
        for other, held in list(self._held.items()):
            if other == key or held.pid_start is None or not machines.same_process(held.pid, held.pid_start):
                self.give(other)
        there = min(cores, len(self._machine.cpus))
        slot = self._pool.acquire(there)
        if slot is None:
            return None
        cpus = tuple(islice(cycle(slot.cpus), cores))
        self._held[key] = Held(slot=slot, cpus=cpus, pid=pid, pid_start=pid_start)
        return Granted(cpus=cpus, scratch=self._scratch.root)

    def give(self, key: str) -> None:
        """Take the CPUs of ``key`` back, if it has any."""
        self._said.pop(key, None)
        held = self._held.pop(key, None)
        if held is not None:
            self._pool.release(held.slot)

    def heard(self, key: str, progress: Progress) -> None:
        """What an attempt has said last, kept for :meth:`running`."""
        if key in self._held:
            self._said[key] = progress

    def running(self) -> list[Running]:
        return [Running(key=key, cpus=held.cpus, progress=self._said.get(key)) for key, held in self._held.items()]

    def order(self, key: str, order: Order) -> None:
        """Left where the attempt looks for it; also before it has begun."""
        self._scratch.order_file(key).parent.mkdir(parents=True, exist_ok=True)
        beside = self._scratch.order_file(key).with_suffix(".tmp")
        beside.write_text(order)
        beside.replace(self._scratch.order_file(key))

    def meeting_point(self) -> tuple[str, int]:
        """An address of this node and a port that is free there now, for ranks to meet."""
        import ray

        address = ray.util.get_node_ip_address()
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.bind((address, 0))
            return address, int(probe.getsockname()[1])

    def close(self) -> None:
        """The session is over: leave nothing behind."""
        self._pool.close()
        self._scratch.remove()


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The process of an attempt's task, as it stands in the attempt's folder."""

    home: str
    """:attr:`Home.identity` of the driver's run directory."""
    pid: int
    pid_start: float | None

    @classmethod
    def read(cls, folder: Path) -> Holder | None:
        try:
            home, pid, start = json.loads((folder / "holder").read_text())
            return cls(home=home, pid=pid, pid_start=start)
        except (OSError, ValueError):
            return None

    def write(self, folder: Path) -> None:
        write_whole(folder / "holder", json.dumps([self.home, self.pid, self.pid_start]), durable=False)

    def end_if_of(self, home: Home) -> None:
        """End what a driver before ours has left running of the same run directory: no other driver can hold it now."""
        if self.home != home.identity or self.pid_start is None:
            return
        deadline = time.monotonic() + LEFTOVER_PATIENCE_S
        while machines.same_process(self.pid, self.pid_start) and time.monotonic() < deadline:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signal.SIGKILL)  # its workers are tied to it
            time.sleep(0.01)


class Scratch:
    """A folder for one session on one node: ``<temporary directory>/orchestrator-<uid>/ray/<session>/<node>``.

    It is locked as long as its keeper lives, and so is each attempt's folder in it as long as that does; what is not
    has been left behind, and goes when the next keeper starts.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock: IO[bytes] | None = None

    @classmethod
    def claimed(cls, session: str, node_id: str) -> Scratch:
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
                Scratch(left).remove()

    def holders_elsewhere(self) -> list[Holder]:
        """Of the attempts of other sessions on this machine."""
        folders = [folder for folder in self.root.parents[1].glob("*/*/*/") if self.root not in folder.parents]
        return [holder for folder in folders if (holder := Holder.read(folder)) is not None]

    def order_file(self, key: str) -> Path:
        return order_file(self.root, key)

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


def attempt_folder(scratch: Path, key: str) -> Path:
    """Of one attempt, in the folder of its session."""
    return scratch / key.replace("/", "@")


def order_file(scratch: Path, key: str) -> Path:
    return attempt_folder(scratch, key) / "order"


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


def _cpu_model() -> str:
    """Empty where the kernel does not say."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return os.uname().machine
