"""Runs attempts as processes of this machine, one per rank, each in its own session and on its own
cores.

They are exec'ed, or forked from a template process (:mod:`orchestrator.executors.worker_template`).

Four mechanisms make sure that no worker outlives its supervisor, each covering what the one before
cannot: the parent-death signal, which the worker sets first; the channel, a socket whose
end-of-file makes the worker's watchdog kill its process group; the orphan reaper, which kills every
process that carries the supervisor's token; and, at the next start, the pids and start times in the
ledger.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.core.files import log_limit
from orchestrator.core.processes.child_process import has_ended, spawn
from orchestrator.executors import orphan_reaper, rank_group
from orchestrator.executors.executor import AttemptId, Event, Placed, Progressed, Sampled
from orchestrator.executors.launcher import Launch
from orchestrator.executors.oom_kills import OomKills
from orchestrator.executors.rank_group import RankExit, RankGroup
from orchestrator.executors.worker_process import WorkerProcess
from orchestrator.executors.worker_template import TEMPLATE_COMMAND, WorkerTemplate
from orchestrator.machine import process_tree

WORKER_COMMAND = (sys.executable, "-m", "orchestrator.worker")
SAMPLE_EVERY_S = 2.0
LISTEN_EVERY_S = 0.25
"""How often progress is read. (Exits are noticed at once.) More often, many workers would keep the
supervisor busy."""
EXIT_POLL_S = 0.05
"""How often exits are polled where the kernel has no pidfd."""
REAPER_PATIENCE_S = 5.0


class OrphanReaper:
    """Starts and controls the process :mod:`orchestrator.executors.orphan_reaper`."""

    def __init__(self, token: str, *, apart: bool = False) -> None:
        command = [sys.executable, "-I", "-S", orphan_reaper.__file__, token]
        if apart:
            command.append("apart")
        self._popen = spawn(command, stdin=subprocess.PIPE)
        assert self._popen.stdin is not None
        self._pipe = self._popen.stdin
        os.set_blocking(self._pipe.fileno(), False)

    def is_alive(self) -> bool:
        return self._popen.poll() is None

    def sweep(self, token: str) -> None:
        """Make the reaper kill every process that carries ``token``; does not wait for that."""
        # If the reaper was killed or stopped, the sweep at the end and the other mechanisms remain.
        with contextlib.suppress(BrokenPipeError, BlockingIOError):
            os.write(self._pipe.fileno(), token.encode() + b"\n")

    def close(self) -> None:
        """Make the reaper kill every process that carries the supervisor's token; returns when that
        is done.
        """
        self._pipe.close()
        try:
            self._popen.wait(REAPER_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()


@dataclass(slots=True, kw_only=True)
class Processes:
    """See :class:`.Launcher`. The kernel kills workers when the thread that started them ends.

    :param worker_command: the command of a worker, to which job directory and attempt number are
        appended.
    :param environment: variables set in every worker's environment; None removes one.
    :param template_command: the command of the template process, from which workers are forked
        where a launch says so.
    :param reaper_apart: whether this process may kill its children when it ends.
    """

    worker_command: Sequence[str] = WORKER_COMMAND
    environment: Mapping[str, str | None] = field(default_factory=dict)
    template_command: Sequence[str] = TEMPLATE_COMMAND
    reaper_apart: bool = False
    _token: str = field(default_factory=lambda: secrets.token_hex(16), init=False)
    _groups: dict[AttemptId, RankGroup[WorkerProcess]] = field(default_factory=dict, init=False)
    _placed: list[Event] = field(default_factory=list, init=False)
    """Attempts that were started since the last :meth:`poll`."""
    _ends: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector, init=False)
    """Over pidfds, which become readable when a rank ends."""
    _channels: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector, init=False)
    _reaper: OrphanReaper | None = field(default=None, init=False)
    _template: WorkerTemplate = field(init=False)
    _next_sample: float = field(default=0.0, init=False)
    _last_sample: float = field(default=0.0, init=False)
    _oom_kills: OomKills = field(default_factory=OomKills, init=False)

    def __post_init__(self) -> None:
        self._template = WorkerTemplate(command=self.template_command, token=self._token)

    @property
    def never_forks(self) -> str:
        is_worker = tuple(self.worker_command) == WORKER_COMMAND
        has_own_template = tuple(self.template_command) != TEMPLATE_COMMAND
        if is_worker or has_own_template:
            return ""
        return "another program is started in place of the worker"

    def prepare_to_fork(self) -> bool:
        return self._template.prepare(self.environment)

    def submit(self, launch: Launch) -> AttemptId:
        if not self._groups and time.monotonic() >= self._next_sample:
            self._template.take_kills()  # they are in the number that follows
            self._oom_kills.begin()
        self._ensure_reaper()
        token = f"{self._token}/{launch.job_id}/{launch.number}"
        try:
            template = self._template if launch.fork else None
            group = rank_group.start(
                self.worker_command, launch, token=token, added=self.environment, template=template
            )
        except BaseException:
            self._sweep(token)
            raise
        try:
            self._watch(group)
        except BaseException:
            self._end(group)
            raise
        self._groups[launch.id] = group
        first = group.running[0]
        self._placed.append(
            Placed(
                attempt=launch.id,
                cpus=launch.cpus,
                gpus=launch.gpus,
                pid=first.pid,
                pid_start=first.pid_start,
            )
        )
        return launch.id

    def _watch(self, group: RankGroup[WorkerProcess]) -> None:
        """Notice what the ranks of ``group`` say, and their ends. :raises OSError: that is not
        possible.
        """
        try:
            for worker in group.running:
                self._channels.register(worker.channel, selectors.EVENT_READ, (group, worker))
                if worker.pidfd is not None:
                    self._ends.register(worker.pidfd, selectors.EVENT_READ, (group, worker))
        except OSError as error:
            text = "the kernel watches no further descriptor (fs.epoll.max_user_watches)"
            raise OSError(errno.EAGAIN, text) from error  # its ENOSPC is not about the disk

    def _end(self, group: RankGroup[WorkerProcess]) -> None:
        """Kill and reap all ranks of ``group``."""
        group.rest_killed = True
        group.kill()
        for worker in list(group.running):
            self._reap(group, worker)

    def poll(self, timeout_s: float) -> Sequence[Event]:
        deadline = time.monotonic() + timeout_s
        if not self._groups:
            self._template.wait(timeout_s)
            return []
        events = self._placed
        self._placed = []
        while True:
            ended = self._wait_for_exits(0.0 if events else max(0.0, deadline - time.monotonic()))
            events += self._read_channels()
            for group, worker in ended:
                events += self._reap(group, worker)
            to_settle = [group for group, _ in ended]
            to_settle += [group for group in self._groups.values() if group.waits_for_cause]
            for group in dict.fromkeys(to_settle):
                if (exited := group.settle()) is not None:
                    del self._groups[exited.attempt]
                    events.append(exited)
            events += self._sample()
            if events or time.monotonic() >= deadline:
                return events

    def cancel(self, attempt: AttemptId, *, kill: bool) -> None:
        group = self._groups.get(attempt)
        if group is not None and kill:
            group.kill()
        elif group is not None:
            group.request_exit()

    def checkpoint(self, attempt: AttemptId) -> None:
        if (group := self._groups.get(attempt)) is not None:
            group.request_checkpoint()

    def move(self, attempt: AttemptId, to: Mapping[int, int]) -> bool:
        """Let all processes of an attempt run on other CPUs. Returns whether they do: it may have
        ended.

        They stay where they are if the kernel refuses one of them, such as when a cpuset has become
        smaller.

        :param to: CPU → the one to use in its place.
        """
        group = self._groups.get(attempt)
        if group is None:
            return False
        back = {new: old for old, new in to.items()}
        for number, worker in enumerate(group.running, 1):
            try:
                process_tree.move(worker.pid, to)
            except OSError:  # another program has taken these CPUs from this one
                for moved in group.running[:number]:  # and this one, which may have moved in part
                    # Where that fails, too, they have the CPUs that the kernel has left them.
                    with contextlib.suppress(OSError):
                        process_tree.move(moved.pid, back)
                return False
        return True

    def close(self) -> None:
        for group in self._groups.values():
            group.kill()
        for group in self._groups.values():
            for worker in list(group.running):
                self._reap(group, worker)
        self._groups.clear()
        self._placed.clear()
        self._ends.close()
        self._channels.close()
        self._template.close()
        if self._reaper is not None:
            self._reaper.close()
            self._reaper = None

    def _ensure_reaper(self) -> None:
        """Start the reaper, or another one in place of one that was killed."""
        if self._reaper is not None and self._reaper.is_alive():
            return
        if self._reaper is not None:
            self._reaper.close()
        self._reaper = None  # if the next one cannot be started
        self._reaper = OrphanReaper(self._token, apart=self.reaper_apart)

    def _wait_for_exits(
        self, timeout_s: float
    ) -> list[tuple[RankGroup[WorkerProcess], WorkerProcess]]:
        """Ranks that have ended. Waits for the first one, but returns when progress is to be
        read.
        """
        polled = [
            (group, worker)
            for group in self._groups.values()
            for worker in group.running
            if worker.pidfd is None
        ]
        ready = self._ends.select(min(timeout_s, EXIT_POLL_S if polled else LISTEN_EVERY_S))
        ended = [key.data for key, _ in ready]
        ended += [(group, worker) for group, worker in polled if has_ended(worker.pid)]
        return ended

    def _read_channels(self) -> list[Event]:
        events: list[Event] = []
        for key, _ in self._channels.select(0):
            group, worker = key.data
            progress, is_open = _progress(group, worker)
            events += progress
            if not is_open:
                self._channels.unregister(worker.channel)
        return events

    def _reap(self, group: RankGroup[WorkerProcess], worker: WorkerProcess) -> list[Event]:
        """Remove a rank that has ended from its group. Returns its last progress."""
        progress, _ = _progress(group, worker)
        for selector, file in ((self._channels, worker.channel), (self._ends, worker.pidfd)):
            if file is not None:
                with contextlib.suppress(KeyError):  # the worker has closed its end
                    selector.unregister(file)
        group.running.remove(worker)
        returncode = worker.reap()
        self._sweep(worker.token)
        is_unexpected_kill = returncode == -signal.SIGKILL and not group.rest_killed
        oom_killed = is_unexpected_kill and self._take_oom_kill()
        group.note(RankExit(rank=worker.rank, returncode=returncode, oom_killed=oom_killed))
        return progress

    def _sweep(self, token: str) -> None:
        """Kill every process that carries ``token``."""
        if self._reaper is not None:
            self._reaper.sweep(token)

    def _take_oom_kill(self) -> bool:
        """Returns whether the kernel has killed a worker because memory ran out, which explains no
        other exit.
        """
        return self._oom_kills.explain_exit(self._template.take_kills())

    def _sample(self) -> list[Event]:
        """Measure all attempts, if it is time to; their logs are limited then, too."""
        now = time.monotonic()
        if now < self._next_sample or not self._groups:
            return []
        elapsed_s = now - self._last_sample
        self._last_sample = now
        self._next_sample = now + SAMPLE_EVERY_S
        self._oom_kills.sample(self._template.take_kills())
        workers = [worker for group in self._groups.values() for worker in group.running]
        log_limit.limit({worker.log: worker.log_bytes for worker in workers})
        return [
            Sampled(
                group.id,
                sum(process_tree.resident_mib(worker.pid) for worker in group.running),
                _wait_shares(group, elapsed_s),
            )
            for group in self._groups.values()
        ]


def _wait_shares(group: RankGroup[WorkerProcess], elapsed_s: float) -> tuple[float, ...]:
    """By rank; one that has ended waits for nothing."""
    shares = [0.0] * group.ranks
    for worker in group.running:
        shares[worker.rank] = worker.longest_wait_ns() / 1e9 / elapsed_s
    return tuple(shares)


def _progress(group: RankGroup[WorkerProcess], worker: WorkerProcess) -> tuple[list[Event], bool]:
    """New progress of a rank (rank 0 reports for all), and whether its channel is still open."""
    records, is_open = worker.read()
    return [Progressed(group.id, progress) for progress in records if worker.rank == 0], is_open
