"""What ``cluster up`` or ``cluster join`` has started here, so that ``cluster down`` ends that and nothing else.

One small file for each machine, in the user's state directory: at most one node of a cluster runs here for a user, or
the machine's cores would be counted twice.
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
from typing import Any, Literal

from orchestrator.core.atomic_files import write_whole
from orchestrator.core.errors import UsageError
from orchestrator.core.procfs import is_zombie, text_of
from orchestrator.executors.orphan_reaper import carriers
from orchestrator.machine.process_identity import process_start, same_process

Role = Literal["head", "node"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProcess:
    name: str
    pid: int
    start: float
    """As :func:`process_start` gives it: together they identify the process until the next boot."""

    def lives(self) -> bool:
        """A zombie does not: nothing is left of it but a number, and some containers never take it away."""
        return same_process(self.pid, self.start) and not is_zombie(self.pid)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalNode:
    """A node that we started here."""

    role: Role
    cluster: str
    """``HOST:PORT`` of the head."""
    address: str
    """This machine's, as the others know it."""
    insecure: bool
    mark: str
    """A secret-free random word that every process of the node has in its environment (``ORCHESTRATOR_TOKEN``)."""
    directory: str
    """Ray's temporary directory, ours alone."""
    started: str
    """UTC."""
    boot: str
    """The kernel's name for the time since the machine was started."""
    processes: tuple[NodeProcess, ...] = ()

    def living(self) -> tuple[NodeProcess, ...]:
        """What still runs of it, with what has come since."""
        if self.boot != boot():
            return ()
        recorded = tuple(process for process in self.processes if process.lives())
        return recorded + tuple(process for process in marked(self.mark) if process not in recorded)

    def is_whole(self) -> bool:
        """Whether all runs that the node cannot do without."""
        names = {process.name for process in self.processes if process.lives()}
        return self.boot == boot() and ({"raylet", "gcs_server"} if self.role == "head" else {"raylet"}) <= names


def marked(mark: str) -> tuple[NodeProcess, ...]:
    """The processes of this user that carry ``mark``, oldest first."""
    found = []
    for pid in sorted(carriers({mark.encode()})):
        start, name = process_start(pid), (text_of(Path(f"/proc/{pid}/comm")) or "").strip()
        if start is not None:
            found.append(NodeProcess(name=_told(pid, name), pid=pid, start=start))
    return tuple(found)


def _told(pid: int, name: str) -> str:
    """What a process is, in one word: the name it has given itself, or the module that an interpreter runs."""
    command = (text_of(Path(f"/proc/{pid}/cmdline")) or "").split("\0")
    scripts = [Path(word).stem for word in command[1:4] if word.endswith(".py")]
    return scripts[0] if name.startswith("python") and scripts else name


def boot() -> str:
    return (text_of(Path("/proc/sys/kernel/random/boot_id")) or "").strip()


def path() -> Path:
    """Of the file; by host name, as home directories may be shared between machines."""
    states = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(states).expanduser() / "orchestrator" / f"cluster-{socket.gethostname()}.json"


def load() -> LocalNode | None:
    """What was started here and not ended by us; it may have ended since. None: nothing.

    :raises UsageError: the file is damaged.
    """
    file = path()
    try:
        facts: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        processes = tuple(NodeProcess(**process) for process in facts.pop("processes"))
        return LocalNode(**facts, processes=processes)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UsageError(
            f"{file}: this is no record of a cluster's node. Remove it, and end what still runs of Ray by hand"
        ) from None


def save(node: LocalNode) -> None:
    file = path()
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, json.dumps(dataclasses.asdict(node), indent=1) + "\n")


def forget() -> None:
    path().unlink(missing_ok=True)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Nobody else starts or ends a node of this user here meanwhile. :raises UsageError: somebody does."""
    file = path().with_suffix(".lock")
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError("another `cluster` command is at work on this machine; wait until it has ended") from None
        yield
    finally:
        os.close(descriptor)


def address_in(cluster: str) -> str | None:
    """The address of this machine in ``cluster``, by which a driver finds its node; None where we have started none.

    Ray would look for raylets among all processes that it sees, and take any that the cluster knows.
    """
    node = load()
    return node.address if node is not None and node.cluster == cluster and node.is_whole() else None


def cluster_here() -> str | None:
    """``HOST:PORT`` of the cluster that this machine is a node of; None where we have started none."""
    node = load()
    return node.cluster if node is not None and node.is_whole() else None
