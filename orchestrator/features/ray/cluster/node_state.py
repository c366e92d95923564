"""The record of what ``cluster up`` or ``cluster join`` started on this machine, which ``cluster
down`` ends.

One small file per machine in the user's state directory: a user runs at most one node of a cluster
on a machine, or the machine's cores would be counted twice.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from orchestrator.core.decoding import decode
from orchestrator.core.errors import UsageError
from orchestrator.core.files.atomic_files import write_whole
from orchestrator.core.processes.procfs import is_zombie, text_of
from orchestrator.core.text import joined
from orchestrator.executors.orphan_reaper import carriers
from orchestrator.features.ray.cluster import address
from orchestrator.machine.process_identity import boot_id, process_start, same_process

Role = Literal["head", "node"]
ADDRESS_VARIABLE = "RAY_ADDRESS"
AUTO = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProcess:
    name: str
    pid: int
    start: float
    """As :func:`process_start` returns it: together they identify the process until the next
    boot."""

    def is_running(self) -> bool:
        """False for a zombie, which some containers never reap."""
        return same_process(self.pid, self.start) and not is_zombie(self.pid)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalNode:
    role: Role
    cluster: str
    address: str
    insecure: bool
    mark: str
    """A random word, not secret, that every process of the node has in its environment
    (``ORCHESTRATOR_TOKEN``)."""
    directory: str
    """Ray's temporary directory, accessible to its owner only."""
    started: str
    boot: str
    processes: tuple[NodeProcess, ...] = ()

    def running_processes(self) -> tuple[NodeProcess, ...]:
        """The recorded processes that still run, and those started since."""
        if self.boot != boot_id():
            return ()
        recorded = tuple(process for process in self.processes if process.is_running())
        return recorded + tuple(
            process for process in processes_with(self.mark) if process not in recorded
        )

    def is_intact(self) -> bool:
        names = {process.name for process in self.processes if process.is_running()}
        return self.boot == boot_id() and set(self.essential) <= names

    @property
    def essential(self) -> tuple[str, ...]:
        """Names of the processes without which it is no node."""
        return ("raylet", "gcs_server") if self.role == "head" else ("raylet",)

    def ended_processes(self) -> tuple[NodeProcess, ...]:
        """The recorded processes without which it is no node, as far as they have ended since the
        last boot.
        """
        if self.boot != boot_id():
            return ()
        return tuple(
            one for one in self.processes if one.name in self.essential and not one.is_running()
        )

    def __str__(self) -> str:
        if self.role == "head":
            return f"the head at {self.cluster}"
        return f"a node of the cluster at {self.cluster}"


def processes_with(mark: str) -> tuple[NodeProcess, ...]:
    return tuple(
        NodeProcess(name=_process_name(pid), pid=pid, start=start)
        for pid in sorted(carriers({mark.encode()}))
        if (start := process_start(pid)) is not None
    )


def _process_name(pid: int) -> str:
    """The name of the program, or of the script that a Python process runs."""
    name = (text_of(Path(f"/proc/{pid}/comm")) or "").strip()
    command = (text_of(Path(f"/proc/{pid}/cmdline")) or "").split("\0")
    scripts = [Path(word).stem for word in command[1:4] if word.endswith(".py")]
    return scripts[0] if name.startswith("python") and scripts else name


def path() -> Path:
    """Path of the record; it contains the host name, as machines may share home directories."""
    states = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(states).expanduser() / "orchestrator" / f"cluster-{socket.gethostname()}.json"


def load() -> LocalNode | None:
    """The recorded node, which may have ended since; None: nothing was started, or `cluster down`
    ended it.

    :raises UsageError: the file is damaged.
    """
    file = path()
    try:
        return decode(LocalNode, file.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError:
        advice = "Remove the file, and end Ray's remaining processes yourself"
        raise UsageError(f"{file}: not a valid record of a cluster's node. {advice}") from None


def save(node: LocalNode) -> None:
    file = path()
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, json.dumps(dataclasses.asdict(node), indent=1) + "\n")


def delete() -> None:
    path().unlink(missing_ok=True)


@contextlib.contextmanager
def exclusive() -> Iterator[None]:
    """No other command of this user starts or ends a node here during the block. :raises
    UsageError: one does.
    """
    path().parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path().with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "rb+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                "another `cluster` command is running on this machine; wait until it has ended"
            ) from None
        yield


def address_in(cluster: str) -> str | None:
    """Address of this machine in ``cluster``, by which a driver finds its node; None if no such
    node was started here.

    Ray would search all visible processes for raylets, and use any that belongs to the cluster.
    """
    node = load()
    if node is None or node.cluster != cluster or not node.is_intact():
        return None
    return node.address


def local_cluster() -> str | None:
    """``HOST:PORT`` of the cluster that this machine is a node of; None if no node was started
    here.
    """
    node = load()
    return node.cluster if node is not None and node.is_intact() else None


def usual_cluster() -> str | None:
    """``HOST:PORT`` of the cluster that is meant where none is named: the one that this machine is
    a node of, or else the one in ``RAY_ADDRESS``. None: neither.

    ``RAY_ADDRESS=auto`` means the former, as it does for Ray.

    :raises UsageError: ``RAY_ADDRESS`` is not an address, or its host is unknown.
    """
    if (cluster := local_cluster()) is not None:
        return cluster
    named = os.environ.get(ADDRESS_VARIABLE)
    if not named or named == AUTO:
        return None
    try:
        return address.host_port(*address.parse(named, address.DEFAULT_PORT))
    except UsageError as error:
        raise UsageError(
            f"the environment's {ADDRESS_VARIABLE}: {error}; correct the variable, or unset it"
        ) from None


def refuse_broken(cluster: str | None) -> None:
    """Ray would wait for a minute where the processes have ended by which this machine asks the
    cluster.

    :param cluster: ``HOST:PORT``; None: the one that this machine is a node of.
    :raises UsageError: processes of the node here have ended; the message names them.
    """
    node = load()
    if node is None or cluster not in (None, node.cluster):
        return
    ended = node.ended_processes()
    if not ended:
        return
    which = joined([f"{process.name} (process {process.pid})" for process in ended])
    again = (
        "`cluster up` starts a new one"
        if node.role == "head"
        else f"`cluster join {node.cluster}` joins it again"
    )
    have = "has" if len(ended) == 1 else "have"
    text = f"{which} of {node} {have} ended, without which this machine can neither ask it nor take jobs"
    raise UsageError(
        f"{node.cluster}: {text}. `cluster down` ends what is left of it here, then {again}"
    )
