"""One rank of an attempt as a process of this machine: start it, read its progress, measure it, and
end it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeAlias

from orchestrator.core.files import log_limit
from orchestrator.core.files.atomic_files import no_follow
from orchestrator.core.messages import Progress
from orchestrator.core.paths import JobPaths
from orchestrator.core.processes import environment_variables
from orchestrator.core.processes.child_process import (
    ForkedProcess,
    end_group,
    package_path,
    spawn,
    working_directory,
)
from orchestrator.core.processes.process_setup import CHECKPOINT_SIGNAL
from orchestrator.executors.launcher import Launch
from orchestrator.machine import process_tree
from orchestrator.machine.process_identity import process_start
from orchestrator.machine.topology import MIB

if TYPE_CHECKING:
    from orchestrator.executors.worker_template import WorkerTemplate

CHUNK = 1 << 16
MAX_CHUNKS = 16
"""Most chunks read at a time, so that a worker that floods its channel does not delay the
others."""


Started: TypeAlias = tuple[subprocess.Popen[bytes] | ForkedProcess, socket.socket]
"""A process, and the supervisor's end of its channel."""


@dataclass(slots=True, kw_only=True, eq=False)
class WorkerProcess:
    """A started worker. Until :meth:`reap`, its pid cannot belong to another process."""

    rank: int
    popen: subprocess.Popen[bytes] | ForkedProcess
    pid_start: float | None
    channel: socket.socket
    pidfd: int | None
    """Readable once the process has ended; None where the kernel or sandbox has no pidfds."""
    token: str
    log: Path
    log_bytes: int
    """Limit on ``log``."""
    partial: bytes = b""
    """The beginning of a line of its channel, of which the rest has not come yet."""
    waited_ns: dict[int, int] = field(default_factory=dict)
    """Each of its threads → how long that has waited for a CPU so far."""

    @property
    def pid(self) -> int:
        return self.popen.pid

    # None of these signals reaches a worker that has ended, or one that the user's code runs as
    # another user: its channel ends it.

    def request_exit(self) -> None:
        # Not Popen.send_signal, which may reap the process.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, signal.SIGTERM)

    def request_checkpoint(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, CHECKPOINT_SIGNAL)

    def kill(self) -> None:
        """Kill the whole process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def longest_wait_ns(self) -> int:
        """How long the thread of it that waited most for a CPU has waited since the last call."""
        before = self.waited_ns
        self.waited_ns = process_tree.waited_ns(self.pid)
        since_then = [
            waited - before[thread] for thread, waited in self.waited_ns.items() if thread in before
        ]
        return max(since_then, default=0)

    def read(self) -> tuple[list[Progress], bool]:
        """New progress, and whether the channel is still open. Other lines, of descendants with it,
        are ignored.
        """
        records: list[Progress] = []
        for _ in range(MAX_CHUNKS):
            try:
                chunk = self.channel.recv(CHUNK)
            except BlockingIOError:
                break
            except OSError:  # it has ended
                chunk = b""
            if not chunk:
                return records, False
            *lines, self.partial = (self.partial + chunk).split(b"\n")
            self.partial = self.partial[:CHUNK]
            for line in lines:
                with contextlib.suppress(ValueError):  # of a descendant
                    records.append(Progress.from_line(line))
        return records, True

    def reap(self) -> int | None:
        """Wait for the end, kill the rest of the process group, and close everything. Returns the
        exit code.
        """
        try:
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            # Other code in this process waits for children or ignores SIGCHLD, and was faster.
            returncode = None
            self.popen.wait()
        else:
            # While the leader is a zombie its pid is not reused: no other group can be hit.
            self.kill()
            returncode = self.popen.wait()
        self.channel.close()
        if self.pidfd is not None:
            os.close(self.pidfd)
        log_limit.limit({self.log: self.log_bytes})
        return returncode


def start(
    command: Sequence[str],
    launch: Launch,
    rank: int = 0,
    *,
    token: str,
    added: Mapping[str, str | None],
    template: WorkerTemplate | None = None,
) -> WorkerProcess:
    """Start a worker in its own session, its output in a log file. :raises OSError: nothing of it
    is left.

    :param template: forks the worker, where it can; otherwise it is exec'ed, and its log says why.
    """
    log_path = JobPaths(launch.job_dir).attempt(launch.number).log_of(launch.first_rank + rank)
    with open(log_path, "ab", opener=no_follow) as log:
        started: Started | str = launch.why_exec
        if template is not None:
            started = template.fork(launch, log, token=token, added=added)
        if isinstance(started, str):  # it was not forked, and this says why
            if started:
                line = f"worker: started by exec, and not by fork: {started}\n"
                log.write(line.encode(errors="backslashreplace"))
                log.flush()
            added = {**added, environment_variables.START_VARIABLE: started or None}
            started = _exec(command, launch, rank, log, token=token, added=added)
    popen, channel = started
    try:
        # While the worker waits for the word, so that it also imports on its own cores.
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(popen.pid, launch.cpus_of(rank))
            if launch.nice > max(0, os.getpriority(os.PRIO_PROCESS, popen.pid)):
                os.setpriority(os.PRIO_PROCESS, popen.pid, launch.nice)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has been killed
            channel.sendall(environment_variables.GO)
        channel.setblocking(False)
        pid_start = process_start(popen.pid)
        pidfd = _pidfd(popen.pid)
    except BaseException:
        channel.close()
        end_group(popen)
        raise
    return WorkerProcess(
        rank=rank,
        popen=popen,
        pid_start=pid_start,
        channel=channel,
        pidfd=pidfd,
        token=token,
        log=log_path,
        log_bytes=launch.log_mib * MIB,
    )


def _exec(
    command: Sequence[str],
    launch: Launch,
    rank: int,
    log: IO[bytes],
    *,
    token: str,
    added: Mapping[str, str | None],
) -> Started:
    """A new process that runs ``command``, and its channel."""
    ours, theirs = socket.socketpair()
    try:
        with theirs, _checkpoint_signal_blocked():
            popen = spawn(
                [*command, str(launch.job_dir), str(launch.number)],
                folder=working_directory(launch.job_dir),
                environment=worker_environment(
                    launch, rank, channel=theirs.fileno(), token=token, added=added
                ),
                stdout=log,
                stderr=subprocess.STDOUT,
                inherited=[theirs.fileno()],
            )
    except BaseException:
        ours.close()
        raise
    return popen, ours


@contextlib.contextmanager
def _checkpoint_signal_blocked() -> Iterator[None]:
    """A process started within inherits the mask, so that the signal waits until it has a handler,
    and kills nobody.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [CHECKPOINT_SIGNAL])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def worker_environment(
    launch: Launch, rank: int, *, channel: int | None, token: str, added: Mapping[str, str | None]
) -> dict[str, str]:
    """The environment for ``rank``: that of this process, except for what describes a rank.

    :param added: set last; None removes a variable.
    """
    nice = max(launch.nice, os.getpriority(os.PRIO_PROCESS, 0))
    gpu_share = f"{launch.gpu_share:g}" if 0 < launch.gpu_share < 1 else None
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in environment_variables.DISTRIBUTED_VARIABLES
    }
    variables: dict[str, str | None] = {
        **inherited,
        **_rank_variables(rank, launch.ranks),
        **environment_variables.worker_thread_settings(launch.threads),
        "CUDA_VISIBLE_DEVICES": ",".join(launch.gpus_of(rank)),
        "PYTHONUNBUFFERED": "1",
        # Environments that iterate over a set of strings would otherwise differ between attempts.
        "PYTHONHASHSEED": "0",
        environment_variables.CHANNEL_VARIABLE: None if channel is None else str(channel),
        environment_variables.TOKEN_VARIABLE: token,
        environment_variables.NICE_VARIABLE: str(nice) if nice > 0 else None,
        environment_variables.GPU_SHARE_VARIABLE: gpu_share,
        **package_path(),
        **added,
    }
    return {name: value for name, value in variables.items() if value is not None}


def _rank_variables(rank: int, ranks: int) -> dict[str, str]:
    """As PyTorch's launchers set them. There is no address: the ranks meet in the attempt's
    directory.
    """
    if ranks == 1:
        return {}
    return {
        environment_variables.RANK_VARIABLE: str(rank),
        environment_variables.WORLD_SIZE_VARIABLE: str(ranks),
        environment_variables.LOCAL_RANK_VARIABLE: str(rank),
    }


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # a kernel without pidfds
        return None
