"""One rank of an attempt as a process of this machine: how it is started, listened to, measured and ended."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import subprocess
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.environment import (
    CHANNEL_VARIABLE,
    DISTRIBUTED_VARIABLES,
    LOCAL_RANK_VARIABLE,
    RANK_VARIABLE,
    TOKEN_VARIABLE,
    WORLD_SIZE_VARIABLE,
    worker_thread_settings,
)
from orchestrator.core.messages import Progress
from orchestrator.core.paths import JobPaths
from orchestrator.executors.base import Launch
from orchestrator.machine.process_identity import process_start

MIB = 2**20
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
CHUNK = 1 << 16
MAX_CHUNKS = 16
"""Read at a time: a worker that floods its channel does not keep us from the others."""


@dataclass(slots=True, kw_only=True, eq=False)
class WorkerProcess:
    """A started worker. Its pid is certainly its own until :meth:`reap`."""

    rank: int
    popen: subprocess.Popen[bytes]
    pid_start: float | None
    channel: socket.socket
    pidfd: int | None
    """Readable once the process has ended; None on kernels and in sandboxes without."""
    token: str
    partial: bytes = b""

    @property
    def pid(self) -> int:
        return self.popen.pid

    def ask_to_leave(self) -> None:
        # Not Popen.send_signal, which may reap on the way.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """The whole process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def read(self) -> tuple[list[Progress], bool]:
        """What the worker has said meanwhile, and whether it may say more.

        A line that is not a record is left aside: descendants may have inherited the socket.
        """
        said: list[Progress] = []
        for _ in range(MAX_CHUNKS):
            try:
                chunk = self.channel.recv(CHUNK)
            except BlockingIOError:
                break
            except OSError:
                chunk = b""
            if not chunk:
                return said, False
            *lines, self.partial = (self.partial + chunk).split(b"\n")
            self.partial = self.partial[:CHUNK]
            for line in lines:
                with contextlib.suppress(ValueError):
                    said.append(Progress.from_line(line))
        return said, True

    def has_ended(self) -> bool:
        return has_ended(self.pid)

    def reap(self) -> int | None:
        """Wait for the end, end the process group, give everything back. Returns the exit code.

        None where it cannot be had: something else in this program waits for children, or ignores
        SIGCHLD, and was faster.
        """
        try:
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            returncode = None
            self.popen.wait()
        else:
            # While the leader is a zombie its pid cannot be given away: the group is certainly ours.
            self.kill()
            returncode = self.popen.wait()
        self._close()
        return returncode

    def _close(self) -> None:
        self.channel.close()
        if self.pidfd is not None:
            os.close(self.pidfd)


def start(
    command: Sequence[str], launch: Launch, rank: int = 0, *, token: str, added: Mapping[str, str | None]
) -> WorkerProcess:
    """Start a worker on its own cores, in its own session, its output in a log of its own.

    :raises OSError: when it could not be started; nothing is left of it then.
    """
    ours, theirs = socket.socketpair()
    popen: subprocess.Popen[bytes] | None = None
    try:
        with theirs, JobPaths(launch.job_dir).attempt(launch.number).log_of(launch.first_rank + rank).open("ab") as log:
            popen = subprocess.Popen(
                [*command, str(launch.job_dir), str(launch.number)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=[theirs.fileno()],
                env=worker_environment(launch, rank, channel=theirs.fileno(), token=token, added=added),
            )
        # Before the new process has run a line of Python: it starts, imports and trains on its own cores.
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(popen.pid, launch.cpus_of(rank))
        ours.setblocking(False)
        return WorkerProcess(
            rank=rank,
            popen=popen,
            pid_start=process_start(popen.pid),
            channel=ours,
            pidfd=_pidfd(popen.pid),
            token=token,
        )
    except BaseException:
        ours.close()
        if popen is not None:
            end_group(popen)
        raise


def has_ended(pid: int) -> bool:
    """Whether a child of ours is over; it is left to be reaped."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
    except ChildProcessError:  # something else in this program waits for children, and was faster
        return True


def end_group(popen: subprocess.Popen[bytes]) -> int:
    """Kill what is left of the process group that ``popen`` leads, and reap it. Returns the exit code, also again."""
    if popen.returncode is None:
        # Before it is reaped: a zombie leads its group, so that the number cannot be another's.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(popen.pid, signal.SIGKILL)
        popen.wait()
    return popen.returncode


def worker_environment(
    launch: Launch, rank: int, *, channel: int, token: str, added: Mapping[str, str | None]
) -> dict[str, str]:
    """Our environment, with the thread budget and the accelerators of this rank, and its place among the others.

    Whatever has made us one of several says nothing about our workers.

    :param added: put in last; None: taken out.
    """
    variables: dict[str, str | None] = {
        **{name: value for name, value in os.environ.items() if name not in DISTRIBUTED_VARIABLES},
        **(_place(rank, launch.ranks) if launch.ranks > 1 else {}),
        **worker_thread_settings(launch.threads),
        "CUDA_VISIBLE_DEVICES": ",".join(launch.gpus_of(rank)),
        "PYTHONUNBUFFERED": "1",
        # Environments that walk through a set of strings would otherwise differ from attempt to attempt.
        "PYTHONHASHSEED": "0",
        CHANNEL_VARIABLE: str(channel),
        TOKEN_VARIABLE: token,
        **package_path(),
        **added,
    }
    return {name: value for name, value in variables.items() if value is not None}


def _place(rank: int, ranks: int) -> dict[str, str]:
    """Under the names of PyTorch's launchers. Without an address: the ranks meet in the attempt's directory."""
    return {RANK_VARIABLE: str(rank), WORLD_SIZE_VARIABLE: str(ranks), LOCAL_RANK_VARIABLE: str(rank)}


def package_path() -> dict[str, str]:
    """PYTHONPATH for a child, where the package is not installed: it is found where we found it."""
    parent = _parent_of_package()
    if parent is None:
        return {}
    return {"PYTHONPATH": os.pathsep.join(filter(None, [parent, os.environ.get("PYTHONPATH")]))}


@functools.cache
def _parent_of_package() -> str | None:
    parent = str(Path(__file__).resolve().parents[2])
    return None if parent in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")) else parent


def resident_mib(pid: int) -> float:
    """Resident memory of ``pid`` and its descendants in MiB; 0 when it is gone.

    What forked processes share is counted once: of several, each counts with its proportional share.
    """
    pids = with_descendants(pid)
    return sum(map(_rss_bytes if len(pids) == 1 else _pss_bytes, pids)) / MIB


def with_descendants(pid: int) -> list[int]:
    """``pid``, and every process that it or one of these has started and that still is."""
    pids = [pid]
    for one in pids:  # grows meanwhile
        try:
            for task in os.listdir(f"/proc/{one}/task"):
                pids += map(int, _content(f"/proc/{one}/task/{task}/children").split())
        except OSError:  # ended meanwhile, or a kernel that does not list children
            continue
    return pids


def _rss_bytes(pid: int) -> int:
    try:
        return int(_content(f"/proc/{pid}/statm").split()[1]) * PAGE_BYTES
    except (OSError, IndexError):
        return 0


def _pss_bytes(pid: int) -> int:
    try:
        for line in _content(f"/proc/{pid}/smaps_rollup").splitlines():
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:  # gone, or a kernel without it
        pass
    return _rss_bytes(pid)


def _content(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, CHUNK)
    finally:
        os.close(descriptor)


def _pidfd(pid: int) -> int | None:
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None
