"""Short trainings by the real supervisor in scratch run directories; some with neighbours, some
killed midway.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.analysis import run_reader
from orchestrator.core.exit_record import read_exit_record
from orchestrator.core.files.atomic_files import clone_tree
from orchestrator.core.job import Failed, Job, State
from orchestrator.core.paths import JobPaths, RunPaths
from orchestrator.executors.base import Event, Executor, Exited, Handle, Launch
from orchestrator.executors.local import LocalExecutor
from orchestrator.features.verify.cases import Case
from orchestrator.ledger import JobRow, Ledger
from orchestrator.ledger.rows import DeclaredJob
from orchestrator.machine.slots import SlotPool
from orchestrator.supervisor.events import SilentReporter
from orchestrator.supervisor.stop_signals import StopRequests
from orchestrator.supervisor.supervisor import Supervisor

POLL_INTERVAL_S = 0.005
"""Polling interval of the progress of workers that are to be killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """When a worker is killed: ``delay_s`` after it has finished ``iterations`` iterations."""

    iterations: int
    delay_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortTraining:
    sha256: str | None
    """Hash of the weights; None when there are none."""
    problem: str = ""
    iteration_s: tuple[float, ...] = ()
    """Wall time of each iteration except the first, which is the warm-up."""
    waited_s: float = 0.0
    """Time in these iterations in which it was runnable but had no CPU; 0 where the system does not
    report it."""
    neighbours: int = 0
    was_killed: bool = False
    resumed_from: int | None = None
    """env_steps of the checkpoint; None without a checkpoint, or for a training that was not
    killed."""
    unsaveable: str | None = None
    """Why the state of its environments is in no checkpoint; None where it is."""


@dataclass(slots=True, kw_only=True)
class KillingExecutor:
    """Wraps an executor and kills some of its workers midway; the supervisor sees them end by
    SIGKILL.
    """

    inner: Executor
    kills: Mapping[str, Kill]
    """Which jobs to kill and when, by ``job_id``; only the first attempt of each is killed."""
    killed: set[str] = field(default_factory=set, init=False)
    neighbours: dict[str, int] = field(default_factory=dict, init=False)
    """``job_id`` → largest number of other workers at the same time."""
    _running: set[Handle] = field(default_factory=set, init=False)
    _watched: dict[Handle, Path] = field(default_factory=dict, init=False)
    """``progress.csv`` of workers that are to be killed."""
    _due: dict[Handle, float] = field(default_factory=dict, init=False)
    """When a worker is killed; monotonic seconds."""

    @property
    def never_forks(self) -> str:
        return self.inner.never_forks

    def prepare_to_fork(self) -> bool:
        return self.inner.prepare_to_fork()

    def submit(self, launch: Launch) -> Handle:
        handle = self.inner.submit(launch)
        self._running.add(handle)
        others = len(self._running) - 1
        for running in self._running:
            before = self.neighbours.get(running.job_id, 0)
            self.neighbours[running.job_id] = max(before, others)
        if launch.number == 0 and launch.job_id in self.kills:
            self._watched[handle] = JobPaths(launch.job_dir).progress_csv
        return handle

    def poll(self, timeout_s: float) -> Sequence[Event]:
        deadline = time.monotonic() + timeout_s
        while True:
            remaining_s = max(0.0, deadline - time.monotonic())
            is_watching = bool(self._watched or self._due)
            pause_s = min(remaining_s, POLL_INTERVAL_S) if is_watching else remaining_s
            events = self.inner.poll(pause_s)
            for event in events:
                if isinstance(event, Exited):
                    self._running.discard(event.handle)
                    self._watched.pop(event.handle, None)
                    self._due.pop(event.handle, None)
            self._kill_due()
            if events or remaining_s == 0.0:
                return events

    def cancel(self, handle: Handle, *, kill: bool) -> None:
        self.inner.cancel(handle, kill=kill)

    def checkpoint(self, handle: Handle) -> None:
        self.inner.checkpoint(handle)

    def close(self) -> None:
        self.inner.close()

    def _kill_due(self) -> None:
        now = time.monotonic()
        for handle, table in list(self._watched.items()):
            kill = self.kills[handle.job_id]
            lines = table.read_bytes().count(b"\n") if table.exists() else 0
            if lines > kill.iterations:  # the first line is the header
                del self._watched[handle]
                self._due[handle] = now + kill.delay_s
        for handle, due in list(self._due.items()):
            if now >= due:
                del self._due[handle]
                self.killed.add(handle.job_id)
                self.inner.cancel(handle, kill=True)


class _CaseReporter(SilentReporter):
    """Calls ``done`` when all cases have ended; passes on warnings, and that a neighbour has
    failed.
    """

    def __init__(
        self, cases: Sequence[Case], done: Callable[[], None], warn: Callable[[str], None]
    ) -> None:
        self._cases = frozenset(case.job.job_id for case in cases)
        self._running = set(self._cases)
        self._done = done
        self._warn = warn

    def event(self, kind: str, message: str, **facts: Any) -> None:
        if kind == "warning" or (kind == "failed" and facts["job_id"] not in self._cases):
            self._warn(message)
        if kind in ("succeeded", "failed", "cancelled") and facts["job_id"] in self._running:
            self._running.remove(facts["job_id"])
            if not self._running:
                self._done()


def train(
    root: Path,
    cases: Sequence[Case],
    *,
    slots: SlotPool,
    stops: StopRequests,
    neighbours: Sequence[Case],
    kills: Mapping[str, Kill],
    tell: Callable[[str], None],
) -> dict[str, ShortTraining]:
    """Train ``cases``, in order and as many at once as ``slots`` allow, with ``neighbours`` in the
    remaining slots.

    The neighbours are killed when all cases have ended. No process is left, whatever is raised.

    :param root: the run directory, which is created.
    :raises KeyboardInterrupt: a stop was requested through ``stops``.
    :raises DiskFullError: no space is left.
    """
    paths = RunPaths(root)
    root.mkdir(parents=True)
    ledger = Ledger.create(paths.ledger)
    executor = KillingExecutor(inner=LocalExecutor(), kills=kills)
    try:
        rows = _add_jobs(paths, ledger, [*cases, *neighbours])
        supervisor = Supervisor(
            paths=paths,
            rows=rows,
            ledger=ledger,
            executor=executor,
            slots=slots,
            reporter=_CaseReporter(
                cases, lambda: supervisor.request_stop("all cases have ended"), tell
            ),
            grace_s=0.0,
        )
        stops.deliver_to(supervisor.request_stop)
        stops.check()
        states = supervisor.run()
        stops.check()
        attempts = {row.job_id: row.attempts for row in ledger.jobs()}
        ledger.close()
    finally:
        ledger.abandon()
        slots.close()
    job_ids = [case.job.job_id for case in cases]
    return {
        job_id: _short_training(paths.job(job_id), attempts[job_id], states[job_id], executor)
        for job_id in job_ids
    }


def _add_jobs(paths: RunPaths, ledger: Ledger, entries: Sequence[Case]) -> list[JobRow]:
    ledger.put_jobs(
        [DeclaredJob(position=position, job=entry.job) for position, entry in enumerate(entries)]
    )
    ledger.commit()
    for entry in entries:
        directory = paths.job(entry.job.job_id)
        directory.root.mkdir(parents=True)
        if entry.bundle is not None:
            clone_tree(entry.bundle, directory.robot)
        if entry.init is not None and entry.job.spec.init_sha256 is not None:
            shutil.copyfile(entry.init, directory.init)
    return ledger.jobs()


def _short_training(
    paths: JobPaths, attempts: int, state: State, executor: KillingExecutor
) -> ShortTraining:
    record = read_exit_record(paths.attempt(max(0, attempts - 1)).exit)
    iterations = run_reader.iterations(paths.timings_csv)[1:]
    problem = ""
    if isinstance(state, Failed):
        problem = state.message
    elif record is None or record.weights_sha256 is None:
        problem = f"{paths.attempts}: the exit record holds no hash of the weights"
    return ShortTraining(
        sha256=None if problem or record is None else record.weights_sha256,
        problem=problem,
        iteration_s=tuple(row.wall_s for row in iterations),
        waited_s=sum(row.run_delay_s or 0.0 for row in iterations),
        neighbours=executor.neighbours.get(paths.root.name, 0),
        was_killed=paths.root.name in executor.killed and attempts > 1,
        resumed_from=None if record is None else record.resumed_from,
        unsaveable=None if record is None else record.unsaveable,
    )


def groups(cases: Sequence[Case], room: Callable[[Sequence[Job]], bool]) -> list[list[Case]]:
    """``cases`` in order, in groups as large as there is ``room`` for at once; a case without room
    is a group.
    """
    result: list[list[Case]] = []
    for case in cases:
        if result and room([*(other.job for other in result[-1]), case.job]):
            result[-1].append(case)
        else:
            result.append([case])
    return result
