"""The attempts of a pilot in one session, started by the local executor on CPUs of the allocation.

All of them are handed back when the pilot has to end or to serve another supervisor.

An attempt that is handed back after its checkpoint costs its job nothing: it ends with
:attr:`.ExitCode.INTERRUPTED` and the reason why its pilot ends.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path

from orchestrator.core.errors import is_disk_full
from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.paths import JobPaths
from orchestrator.executors.executor import AttemptId, Event, Exited, Placed
from orchestrator.executors.processes import WORKER_COMMAND, Processes
from orchestrator.features.slurm.pilot_messages import LaunchOrder, spec_digest
from orchestrator.machine.cpu_load import CpuLoad
from orchestrator.machine.cpu_locks import CpuLocks, locks_folder
from orchestrator.machine.slots import Slot, SlotPool
from orchestrator.machine.topology import Machine

SIGNALLED = "it was stopped by a signal that its pilot did not send, such as Slurm sends before it ends a pilot"
"""Slurm signals the processes of a pilot one after the other: a worker may have ended before the
pilot knows why."""

FILES_PATIENCE_S = 90.0
"""For the files of an attempt: a network file system may show new ones late, and those before
instead."""


@dataclass(slots=True, kw_only=True)
class _Waiting:
    """An attempt that has not been started."""

    order: LaunchOrder
    files_until: float
    """Until when its files are awaited."""
    has_files: bool = False
    """Whether they are there: it waits for CPUs, or for what its worker is forked from."""


class PilotAttempts:
    """:param cores: number of CPUs for jobs; if they are more than the machine has, each is shared.
    :param run_dir: of the experiment, which other runs on this machine see by its name.
    """

    def __init__(self, machine: Machine, cores: int, node: str, run_dir: Path) -> None:
        locks = CpuLocks(locks_folder(), experiment=run_dir.name, run_dir=str(run_dir))
        self._cpus = len(machine.cpus)
        self._node = node
        self._slots = SlotPool(replace(machine, quota=None), cores, locks=locks, load=CpuLoad())
        self._processes = Processes()
        self._waiting: dict[AttemptId, _Waiting] = {}
        self._running: dict[AttemptId, Slot] = {}
        self._known: set[AttemptId] = set()
        """All that were ever launched: an order may come twice."""
        self._asked: set[AttemptId] = set()
        """Those that the supervisor has asked to end."""
        self._ended: list[Event] = []
        self._why = ""
        """Why all are handed back; empty while they are not."""

    def __len__(self) -> int:
        return len(self._waiting) + len(self._running)

    def launch(self, order: LaunchOrder) -> None:
        if order.attempt in self._known:
            return
        self._known.add(order.attempt)
        until = time.monotonic() + FILES_PATIENCE_S
        self._waiting[order.attempt] = _Waiting(order=order, files_until=until)
        if self._why:
            self.hand_back(self._why)

    def end(self, attempt: AttemptId, *, kill: bool) -> None:
        if self._waiting.pop(attempt, None) is not None:
            self._ended.append(Exited(attempt, -9 if kill else int(ExitCode.INTERRUPTED)))
        elif attempt in self._running:
            self._asked.add(attempt)
            self._processes.cancel(attempt, kill=kill)

    def checkpoint(self, attempt: AttemptId) -> None:
        self._processes.checkpoint(attempt)

    def hand_back(self, why: str) -> None:
        """Ask all to save a checkpoint and to exit; from now on nothing is launched. May be called
        again.
        """
        self._why = self._why or why
        for attempt in self._waiting:
            self._ended.append(Exited(attempt, int(ExitCode.INTERRUPTED), lost=self._why))
        self._waiting.clear()
        for attempt in self._running:
            self._processes.cancel(attempt, kill=False)

    def kill(self) -> None:
        """Kill all that are left."""
        for attempt in self._running:
            self._processes.cancel(attempt, kill=True)

    def poll(self, timeout_s: float) -> Sequence[Event]:
        self._slots.tick()
        for attempt, waiting in list(self._waiting.items()):
            order = waiting.order
            if waiting.has_files or has_files(order):
                waiting.has_files = True
                self._start(attempt, order)
            elif time.monotonic() >= waiting.files_until:
                del self._waiting[attempt]
                why = f"{self._node} does not see its files: {order.job_dir}"
                self._ended.append(Exited(attempt, None, lost=why))
        events = self._ended
        self._ended = []
        for event in self._processes.poll(0.0 if events else timeout_s):
            match event:
                case Placed():
                    events.append(replace(event, node=self._node))
                case Exited():
                    events.append(self._end(event))
                case _:
                    events.append(event)
        return events

    def _start(self, attempt: AttemptId, order: LaunchOrder) -> None:
        if order.fork and not self._processes.prepare_to_fork():
            return
        slot = self._slots.acquire(min(order.cores, self._cpus), order.gpus, job_id=attempt.job_id)
        if slot is None:
            return
        del self._waiting[attempt]
        launch = order.launch(
            tuple(islice(cycle(slot.cpus), order.cores)), slot.gpus, slot.gpu_share
        )
        self._processes.worker_command = order.command or WORKER_COMMAND
        self._processes.environment = order.environment
        try:
            self._processes.submit(launch)
        except OSError as error:
            self._slots.release(slot)
            if is_disk_full(error):
                self._ended.append(Exited(attempt, int(ExitCode.DISK_FULL)))
            else:
                why = f"it could not be started on {self._node}: {error}"
                self._ended.append(Exited(attempt, None, lost=why))
            return
        self._running[attempt] = slot

    def _end(self, exited: Exited) -> Exited:
        """The end as the supervisor is told of it: one that Slurm has brought about is none of the
        job's own.
        """
        attempt = exited.attempt
        self._slots.release(self._running.pop(attempt))
        is_asked = attempt in self._asked
        self._asked.discard(attempt)
        if is_asked:
            return exited
        why = self._why or SIGNALLED
        if exited.returncode == ExitCode.INTERRUPTED:
            return replace(exited, lost=why)
        was_killed = exited.returncode is None or (exited.returncode < 0 and not exited.oom_killed)
        is_cut_off = was_killed or exited.returncode == ExitCode.ORPHANED
        if exited.returncode == -signal.SIGTERM or (self._why and is_cut_off):
            return Exited(attempt, None, lost=why)
        return exited

    def close(self) -> None:
        self._processes.close()
        self._slots.close()


def has_files(order: LaunchOrder) -> bool:
    """Whether this node sees the folder of the attempt, and ``spec.json`` as its supervisor has
    written it.
    """
    job = JobPaths(Path(order.job_dir))
    with contextlib.suppress(OSError):  # the network's file system does not show them yet
        return (
            spec_digest(job.root) == order.spec_digest
            and job.attempt(order.attempt.number).root.exists()
        )
    return False
