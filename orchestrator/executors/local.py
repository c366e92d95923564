"""Attempts as subprocesses of this machine: one exec a rank, own session, own cores, nothing shared.

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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.executors import orphan_reaper, process, rank_group
from orchestrator.executors.base import Event, Handle, Launch, Progressed, Sampled
from orchestrator.executors.process import WorkerProcess
from orchestrator.executors.rank_group import RankExit, RankGroup
from orchestrator.machine import cgroup

WORKER_COMMAND = (sys.executable, "-m", "orchestrator.worker")
SAMPLE_EVERY_S = 2.0
LISTEN_EVERY_S = 0.25
"""An end is noticed at once; what workers say is gathered, or many of them would keep us awake."""
EXIT_POLL_S = 0.05
"""How often exits are looked for where the kernel has no pidfd."""
SENTINEL_PATIENCE_S = 5.0


class OrphanReaper:
    """Our end of the sentinel process (:mod:`orchestrator.executors.orphan_reaper`)."""

    def __init__(self, token: str, *, apart: bool = False) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-I", "-S", orphan_reaper.__file__, token, *(["apart"] if apart else [])],
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
    :param environment: variables added to every worker's environment; None: taken out of it.
    :param reaper_apart: whether this process may take its children with it when it ends.

    Call everything from one thread: the kernel ends workers when the thread that spawned them ends.
    """

    worker_command: Sequence[str] = WORKER_COMMAND
    environment: Mapping[str, str | None] = field(default_factory=dict)
    reaper_apart: bool = False
    _token: str = field(default_factory=lambda: secrets.token_hex(16), init=False)
    _gangs: dict[Handle, RankGroup[WorkerProcess]] = field(default_factory=dict, init=False)
    _ends: selectors.BaseSelector | None = field(default=None, init=False)
    """Of pidfds: becomes ready when a rank ends."""
    _channels: selectors.BaseSelector | None = field(default=None, init=False)
    _sentinel: OrphanReaper | None = field(default=None, init=False)
    _next_sample: float = field(default=0.0, init=False)
    _oom_kills: int | None = field(default=None, init=False)
    """As of the last sample, less those that explain an exit since."""

    def submit(self, launch: Launch) -> Handle:
        self._open()
        token = f"{self._token}/{launch.job_id}/{launch.number}"
        try:
            started = rank_group.start(self.worker_command, launch, token=token, added=self.environment)
        except BaseException:
            self._sweep(token)
            raise
        self._gangs[started.handle] = started
        assert self._ends is not None
        assert self._channels is not None
        for worker in started.running:
            self._channels.register(worker.channel, selectors.EVENT_READ, (started, worker))
            if worker.pidfd is not None:
                self._ends.register(worker.pidfd, selectors.EVENT_READ, (started, worker))
        return started.handle

    def poll(self, timeout_s: float) -> Sequence[Event]:
        deadline = time.monotonic() + timeout_s
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            ended = self._wait_for_ends(left_s)
            events = self._listen()
            for one, worker in ended:
                events += self._reap(one, worker)
            waiting = [one for one in self._gangs.values() if one.waits]
            events += self._settle(dict.fromkeys([*(one for one, _ in ended), *waiting]))
            events += self._sample()
            if events or left_s == 0.0:
                return events

    def cancel(self, handle: Handle, *, kill: bool) -> None:
        one = self._gangs.get(handle)
        if one is None:
            return
        if kill:
            one.kill()
        else:
            one.ask_to_leave()

    def close(self) -> None:
        for one in self._gangs.values():
            one.kill()
        for one in self._gangs.values():
            for worker in list(one.running):
                self._reap(one, worker)
        self._gangs.clear()
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
            self._oom_kills = cgroup.oom_kills()
        if self._sentinel is None or not self._sentinel.is_alive():
            if self._sentinel is not None:
                self._sentinel.close()
            self._sentinel = None
            self._sentinel = OrphanReaper(self._token, apart=self.reaper_apart)

    def _wait_for_ends(self, timeout_s: float) -> list[tuple[RankGroup[WorkerProcess], WorkerProcess]]:
        """Ranks that have ended; waits for the first, but not longer than it takes to have something to read."""
        if self._ends is None or not self._gangs:
            select.select([], [], [], timeout_s)
            return []
        blind = [(one, worker) for one in self._gangs.values() for worker in one.running if worker.pidfd is None]
        ready = self._ends.select(min(timeout_s, EXIT_POLL_S if blind else LISTEN_EVERY_S))
        return [key.data for key, _ in ready] + [(one, worker) for one, worker in blind if worker.has_ended()]

    def _listen(self) -> list[Event]:
        if self._channels is None:
            return []
        events: list[Event] = []
        for key, _ in self._channels.select(0):
            one, worker = key.data
            said, goes_on = _heard(one, worker)
            events += said
            if not goes_on:
                self._channels.unregister(worker.channel)
        return events

    def _reap(self, one: RankGroup[WorkerProcess], worker: WorkerProcess) -> list[Event]:
        """Take a rank that has ended out of its gang. Returns the last things it said."""
        said, _ = _heard(one, worker)
        for selector, file in ((self._channels, worker.channel), (self._ends, worker.pidfd)):
            if selector is not None and file is not None:
                with contextlib.suppress(KeyError):  # the worker had closed its side
                    selector.unregister(file)
        one.running.remove(worker)
        returncode = worker.reap()
        self._sweep(worker.token)
        oom_killed = returncode == -signal.SIGKILL and not one.rest_killed and self._is_oom_kill()
        one.note(RankExit(rank=worker.rank, returncode=returncode, oom_killed=oom_killed))
        return said

    def _settle(self, gangs: Iterable[RankGroup[WorkerProcess]]) -> list[Event]:
        """The ends of attempts that have lost ranks."""
        ends = [end for one in gangs if (end := one.settle()) is not None]
        for end in ends:
            del self._gangs[end.handle]
        return list(ends)

    def _sweep(self, token: str) -> None:
        if self._sentinel is not None:
            self._sentinel.sweep(token)

    def _is_oom_kill(self) -> bool:
        """Whether the kernel has killed, for want of memory, more processes lately than we know of."""
        kills = cgroup.oom_kills()
        if kills is None or self._oom_kills is None or kills <= self._oom_kills:
            return False
        self._oom_kills += 1
        return True

    def _sample(self) -> list[Event]:
        now = time.monotonic()
        if now < self._next_sample or not self._gangs:
            return []
        self._next_sample = now + SAMPLE_EVERY_S
        self._oom_kills = cgroup.oom_kills()
        return [Sampled(one.handle, _resident_mib(one)) for one in self._gangs.values()]


def _resident_mib(one: RankGroup[WorkerProcess]) -> float:
    return sum(process.resident_mib(worker.pid) for worker in one.running)


def _heard(one: RankGroup[WorkerProcess], worker: WorkerProcess) -> tuple[list[Event], bool]:
    """What a rank has said meanwhile, and whether it may say more. Rank 0 speaks for all."""
    said, goes_on = worker.read()
    return [Progressed(one.handle, progress) for progress in said if worker.rank == 0], goes_on
