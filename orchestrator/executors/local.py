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
import select
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator import machine
from orchestrator.executors import process, sentinel
from orchestrator.executors.base import Event, Exited, Handle, Launch, Progressed, Sampled
from orchestrator.executors.process import WorkerProcess

WORKER_COMMAND = (sys.executable, "-m", "orchestrator.worker")
SAMPLE_EVERY_S = 2.0
LISTEN_EVERY_S = 0.25
"""An end is noticed at once; what workers say is gathered, or many of them would keep us awake."""
EXIT_POLL_S = 0.05
"""How often exits are looked for where the kernel has no pidfd."""
SENTINEL_PATIENCE_S = 5.0


class Sentinel:
    """Our end of the sentinel process (:mod:`orchestrator.executors.sentinel`)."""

    def __init__(self, token: str) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-I", "-S", sentinel.__file__, token],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            bufsize=0,
        )
        assert self._popen.stdin is not None
        self._pipe = self._popen.stdin
        os.set_blocking(self._pipe.fileno(), False)

    def is_alive(self) -> bool:
        return self._popen.poll() is None

    def sweep(self, token: str) -> None:
        """Kill what an attempt that has ended left behind in sessions of their own; does not wait for it."""
        # Killed or stopped by someone: then the sweep at the very end does it, and other means remain.
        with contextlib.suppress(BrokenPipeError, BlockingIOError):
            self._pipe.write(token.encode() + b"\n")

    def close(self) -> None:
        """Kill everything that carries our token; returns when that is done."""
        self._pipe.close()
        try:
            self._popen.wait(SENTINEL_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()


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
    _processes: dict[int, WorkerProcess] = field(default_factory=dict, init=False)
    _ends: selectors.BaseSelector | None = field(default=None, init=False)
    """Of pidfds: becomes ready when a worker ends."""
    _channels: selectors.BaseSelector | None = field(default=None, init=False)
    _sentinel: Sentinel | None = field(default=None, init=False)
    _next_sample: float = field(default=0.0, init=False)
    _oom_kills: int | None = field(default=None, init=False)
    """As of the last sample, less those that explain an exit since."""

    def submit(self, launch: Launch) -> Handle:
        self._open()
        token = f"{self._token}/{launch.job_id}/{launch.number}"
        worker = process.start(self.worker_command, launch, token=token, added=self.environment)
        self._processes[worker.pid] = worker
        assert self._ends is not None
        assert self._channels is not None
        self._channels.register(worker.channel, selectors.EVENT_READ, worker)
        if worker.pidfd is not None:
            self._ends.register(worker.pidfd, selectors.EVENT_READ, worker)
        return worker.handle

    def poll(self, timeout_s: float) -> Sequence[Event]:
        deadline = time.monotonic() + timeout_s
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            ended = self._wait_for_ends(left_s)
            events = self._listen()
            for worker in ended:
                events += self._reap(worker)
            events += self._sample()
            if events or left_s == 0.0:
                return events

    def cancel(self, handle: Handle, *, kill: bool) -> None:
        worker = self._processes.get(handle.pid or 0)
        if worker is None or worker.handle != handle:
            return
        if kill:
            worker.kill()
        else:
            worker.ask_to_leave()

    def close(self) -> None:
        for worker in self._processes.values():
            worker.kill()
        for worker in list(self._processes.values()):
            self._reap(worker)
        for selector in (self._ends, self._channels):
            if selector is not None:
                selector.close()
        self._ends = self._channels = None
        if self._sentinel is not None:
            self._sentinel.close()
            self._sentinel = None

    def _open(self) -> None:
        if self._ends is None:
            self._ends, self._channels = selectors.DefaultSelector(), selectors.DefaultSelector()
            self._oom_kills = machine.oom_kills()
        if self._sentinel is None or not self._sentinel.is_alive():
            if self._sentinel is not None:
                self._sentinel.close()
            self._sentinel = None
            self._sentinel = Sentinel(self._token)

    def _wait_for_ends(self, timeout_s: float) -> list[WorkerProcess]:
        """Workers that have ended; waits for the first, but not longer than it takes to have something to read."""
        if self._ends is None or not self._processes:
            select.select([], [], [], timeout_s)
            return []
        blind = [worker for worker in self._processes.values() if worker.pidfd is None]
        ready = self._ends.select(min(timeout_s, EXIT_POLL_S if blind else LISTEN_EVERY_S))
        return [key.data for key, _ in ready] + [worker for worker in blind if worker.has_ended()]

    def _listen(self) -> list[Event]:
        if self._channels is None:
            return []
        events: list[Event] = []
        for key, _ in self._channels.select(0):
            worker: WorkerProcess = key.data
            said, goes_on = worker.read()
            events += [Progressed(worker.handle, progress) for progress in said]
            if not goes_on:
                self._channels.unregister(worker.channel)
        return events

    def _reap(self, worker: WorkerProcess) -> list[Event]:
        """The last things it said, and its end."""
        said, _ = worker.read()
        for selector, file in ((self._channels, worker.channel), (self._ends, worker.pidfd)):
            if selector is not None and file is not None:
                with contextlib.suppress(KeyError):  # the worker had closed its side
                    selector.unregister(file)
        del self._processes[worker.pid]
        returncode = worker.reap()
        if self._sentinel is not None:
            self._sentinel.sweep(worker.token)
        oom_killed = returncode == -signal.SIGKILL and self._is_oom_kill()
        return [*(Progressed(worker.handle, one) for one in said), Exited(worker.handle, returncode, oom_killed)]

    def _is_oom_kill(self) -> bool:
        """Whether the kernel has killed, for want of memory, more processes lately than we know of."""
        kills = machine.oom_kills()
        if kills is None or self._oom_kills is None or kills <= self._oom_kills:
            return False
        self._oom_kills += 1
        return True

    def _sample(self) -> list[Event]:
        now = time.monotonic()
        if now < self._next_sample or not self._processes:
            return []
        self._next_sample = now + SAMPLE_EVERY_S
        self._oom_kills = machine.oom_kills()
        return [Sampled(worker.handle, process.resident_mib(worker.pid)) for worker in self._processes.values()]
