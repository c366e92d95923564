"""Attempts as subprocesses of this machine: one exec each, own session, own cores, nothing shared.

No worker outlives its supervisor, by four means, each covering what the one before cannot: the
parent-death signal that the worker sets first thing; the channel, a socket whose end-of-file makes
the worker's watchdog kill its process group; the sentinel process, which afterwards kills whatever
still carries the supervisor's token; and, at the next start, the ledger's pids with start times.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator import machine
from orchestrator.contract import CHANNEL_VARIABLE, TOKEN_VARIABLE, JobPaths, Progress
from orchestrator.executors import sentinel
from orchestrator.executors.base import Event, Exited, Handle, Launch, Progressed, Sampled
from orchestrator.threads import worker_thread_settings

WORKER_COMMAND = (sys.executable, "-m", "orchestrator.worker")
SAMPLE_EVERY_S = 2.0
EXIT_POLL_S = 0.05
"""How often exits are looked for where the kernel has no pidfd."""
MIB = 2**20
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(slots=True, kw_only=True)
class _Process:
    handle: Handle
    popen: subprocess.Popen[bytes]
    channel: socket.socket
    pidfd: int | None
    token: str
    partial: bytes = b""
    open: bool = True
    """Whether the worker's side of the channel still is."""


@dataclass(slots=True, kw_only=True)
class LocalExecutor:
    """See :class:`orchestrator.executors.base.Executor`.

    :param worker_command: what is started in the worker's place, with job directory and attempt
        number appended.
    :param environment: variables added to every worker's environment.

    Call everything from one thread: the kernel ends workers when the thread that spawned them ends.
    """

    worker_command: Sequence[str] = WORKER_COMMAND
    environment: Mapping[str, str] = field(default_factory=dict)
    _token: str = field(default_factory=lambda: secrets.token_hex(16), init=False)
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector, init=False)
    _processes: dict[int, _Process] = field(default_factory=dict, init=False)
    _sentinel: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _next_sample: float = field(default=0.0, init=False)
    _oom_kills: int | None = field(default=None, init=False)

    def submit(self, launch: Launch) -> Handle:
        if self._sentinel is None:
            self._oom_kills = machine.oom_kills()
            self._sentinel = subprocess.Popen(
                [sys.executable, "-I", "-S", sentinel.__file__, self._token],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        token = f"{self._token}/{launch.job_id}/{launch.number}"
        attempt = JobPaths(launch.job_dir).attempt(launch.number)
        attempt.root.mkdir(parents=True, exist_ok=True)
        ours, theirs = socket.socketpair()
        try:
            with attempt.worker_log.open("ab") as log:
                popen = subprocess.Popen(
                    [*self.worker_command, str(launch.job_dir), str(launch.number)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=[theirs.fileno()],
                    env=worker_environment(launch, channel=theirs.fileno(), token=token, added=self.environment),
                )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        # Before the new process has run a line of Python: it starts, imports and trains on its own cores.
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(popen.pid, launch.cpus)
        ours.setblocking(False)
        handle = Handle(launch.job_id, launch.number, popen.pid, machine.process_start(popen.pid))
        process = _Process(handle=handle, popen=popen, channel=ours, pidfd=_pidfd(popen.pid), token=token)
        self._processes[popen.pid] = process
        self._selector.register(ours, selectors.EVENT_READ, process)
        if process.pidfd is not None:
            self._selector.register(process.pidfd, selectors.EVENT_READ, process)
        return handle

    def poll(self, timeout_s: float) -> Sequence[Event]:
        if any(process.pidfd is None for process in self._processes.values()):
            timeout_s = min(timeout_s, EXIT_POLL_S)
        ready = self._selector.select(timeout_s) if self._processes else _pause(timeout_s)
        events: list[Event] = []
        ended: dict[int, _Process] = {}
        for key, _ in ready:
            process: _Process = key.data
            if key.fileobj == process.pidfd:
                ended[process.popen.pid] = process
            else:
                events += self._read(process)
        for process in self._processes.values():
            if process.pidfd is None and _has_ended(process.popen.pid):
                ended[process.popen.pid] = process
        for process in ended.values():
            events += self._read(process)
            events.append(self._reap(process))
        events += self._sample()
        return events

    def cancel(self, handle: Handle, *, kill: bool) -> None:
        process = self._processes.get(handle.pid or 0)
        if process is None or process.handle != handle:
            return
        # Not reaped yet, so the pid and the group of that name are still this worker's.
        with contextlib.suppress(ProcessLookupError):
            if kill:
                os.killpg(process.popen.pid, signal.SIGKILL)
            else:
                process.popen.send_signal(signal.SIGTERM)

    def close(self) -> None:
        for process in list(self._processes.values()):
            self.cancel(process.handle, kill=True)
            os.waitid(os.P_PID, process.popen.pid, os.WEXITED | os.WNOWAIT)
            self._reap(process)
        self._selector.close()
        if self._sentinel is not None and self._sentinel.stdin is not None:
            self._sentinel.stdin.close()
            self._sentinel.wait()
            self._sentinel = None

    def _read(self, process: _Process) -> list[Event]:
        """Everything the worker has said; a line that is not a record is left aside."""
        events: list[Event] = []
        while process.open:
            try:
                chunk = process.channel.recv(65536)
            except BlockingIOError:
                break
            except ConnectionResetError:
                chunk = b""
            if not chunk:
                process.open = False
                self._selector.unregister(process.channel)
                break
            *lines, process.partial = (process.partial + chunk).split(b"\n")
            for line in lines:
                with contextlib.suppress(ValueError, TypeError):  # a descendant wrote to the inherited socket
                    events.append(Progressed(process.handle, Progress.from_line(line)))
        return events

    def _reap(self, process: _Process) -> Exited:
        pid = process.popen.pid
        # While the leader is a zombie its pid cannot be given away: the group is certainly ours.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        returncode = process.popen.wait()
        if process.open:
            self._selector.unregister(process.channel)
        process.channel.close()
        if process.pidfd is not None:
            self._selector.unregister(process.pidfd)
            os.close(process.pidfd)
        del self._processes[pid]
        oom_killed = False
        if returncode == -signal.SIGKILL:
            kills = machine.oom_kills()
            oom_killed = kills is not None and self._oom_kills is not None and kills > self._oom_kills
            self._oom_kills = kills
        self._tell_sentinel(process.token)
        return Exited(process.handle, returncode, oom_killed)

    def _tell_sentinel(self, token: str) -> None:
        """Descendants in sessions of their own are the sentinel's; it sweeps behind our back."""
        if self._sentinel is None or self._sentinel.stdin is None:
            return
        with contextlib.suppress(BrokenPipeError):  # someone killed it; the other means remain
            self._sentinel.stdin.write(token.encode() + b"\n")
            self._sentinel.stdin.flush()

    def _sample(self) -> list[Event]:
        now = time.monotonic()
        if now < self._next_sample:
            return []
        self._next_sample = now + SAMPLE_EVERY_S
        return [Sampled(process.handle, resident_mib(process.popen.pid)) for process in self._processes.values()]


def worker_environment(launch: Launch, *, channel: int, token: str, added: Mapping[str, str]) -> dict[str, str]:
    """Our environment, with the thread budget and the accelerators of this attempt."""
    environment = dict(os.environ)
    environment.update(worker_thread_settings(launch.threads))
    environment["CUDA_VISIBLE_DEVICES"] = ",".join(launch.gpus)
    environment["PYTHONUNBUFFERED"] = "1"
    environment[CHANNEL_VARIABLE] = str(channel)
    environment[TOKEN_VARIABLE] = token
    environment.update(package_path())
    environment.update(added)
    return environment


def package_path() -> dict[str, str]:
    """PYTHONPATH for a child, where the package is not installed: it is found where we found it."""
    parent = str(Path(__file__).resolve().parents[2])
    if parent in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        return {}
    return {"PYTHONPATH": os.pathsep.join(filter(None, [parent, os.environ.get("PYTHONPATH")]))}


def resident_mib(pid: int) -> float:
    """Resident memory of ``pid`` and its descendants in MiB; 0 when it is gone."""
    total = 0
    waiting = [pid]
    while waiting:
        pid = waiting.pop()
        try:
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
            for task in os.listdir(f"/proc/{pid}/task"):
                waiting += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
        except OSError:  # ended meanwhile, or a kernel that does not list children
            continue
    return total / MIB


def _pidfd(pid: int) -> int | None:
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:  # kernels and sandboxes without it
        return None


def _has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def _pause(seconds: float) -> list[tuple[selectors.SelectorKey, int]]:
    time.sleep(max(0.0, seconds))
    return []
