"""Short trainings by the real supervisor in scratch run directories; some with neighbours, some
killed midway.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.analysis import run_reader
from orchestrator.client.run_jobs import run_jobs
from orchestrator.core.errors import SupervisorError
from orchestrator.core.exit_record import read_exit_record
from orchestrator.core.job import Failed, Job
from orchestrator.core.paths import JobPaths, RunPaths
from orchestrator.core.processes.child_process import kill_group
from orchestrator.experiment import run_directory
from orchestrator.features.verify.cases import Case
from orchestrator.ledger import JobRow
from orchestrator.server.ledger import EventRow
from orchestrator.server.settings import RunSettings

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
class _Watch:
    """Follows the events of a run: kills workers midway, counts neighbours, and ends the run when
    all cases have ended.
    """

    paths: RunPaths
    cases: frozenset[str]
    kills: Mapping[str, Kill]
    """Which jobs to kill and when, by ``job_id``; only the first attempt of each is killed."""
    warn: Callable[[str], None]
    stop: Callable[[], None] = lambda: None
    killed: set[str] = field(default_factory=set)
    neighbours: dict[str, int] = field(default_factory=dict)
    """``job_id`` → largest number of other workers at the same time."""
    _ended: set[str] = field(default_factory=set)
    _running: dict[str, int] = field(default_factory=dict)
    """``job_id`` → process of its worker."""
    _due: dict[str, float] = field(default_factory=dict)
    """When a worker is killed; monotonic seconds."""

    def event(self, event: EventRow) -> None:
        job_id = event.job_id
        is_case = job_id in self.cases
        if event.kind == "warning" or (event.kind == "failed" and not is_case):
            self.warn(event.message)
        if job_id is None:
            return
        if event.kind == "launched":
            self._running[job_id] = event.facts["pid"]
            others = len(self._running) - 1
            for running in self._running:
                self.neighbours[running] = max(self.neighbours.get(running, 0), others)
        elif event.kind in ("succeeded", "failed", "cancelled", "retrying", "paused"):
            self._running.pop(job_id, None)
            self._due.pop(job_id, None)
        if is_case and event.kind in ("succeeded", "failed", "cancelled"):
            self._ended.add(job_id)
            if self._ended == self.cases:
                self.stop()

    def kill_due(self) -> None:
        """Kill the workers whose moment has come."""
        now = time.monotonic()
        for job_id, pid in list(self._running.items()):
            kill = self.kills.get(job_id)
            if kill is None or job_id in self.killed:
                continue
            table = self.paths.job(job_id).progress_csv
            lines = table.read_bytes().count(b"\n") if table.exists() else 0
            if job_id not in self._due and lines > kill.iterations:  # the first line is the header
                self._due[job_id] = now + kill.delay_s
            if now >= self._due.get(job_id, math.inf):
                self.killed.add(job_id)
                kill_group(pid)


def train(
    root: Path,
    cases: Sequence[Case],
    *,
    jobs_at_once: int,
    neighbours: Sequence[Case],
    kills: Mapping[str, Kill],
    tell: Callable[[str], None],
) -> dict[str, ShortTraining]:
    """Train ``cases``, in order and so many at once, with ``neighbours`` in the remaining slots.

    The neighbours are killed when all cases have ended. No process is left, whatever is raised.

    :param root: the run directory, which is created.
    :raises KeyboardInterrupt: it was stopped.
    :raises SupervisorError: an error has ended it, such as a full disk.
    """
    paths = RunPaths(root)
    entries = [*cases, *neighbours]
    watch = _Watch(
        paths=paths, cases=frozenset(case.job.job_id for case in cases), kills=kills, warn=tell
    )

    def begun(stop: Callable[[], None]) -> None:
        watch.stop = stop

    ended = run_jobs(
        [_with_own_policy(entry) for entry in entries],
        root,
        RunSettings(client_pid=0, name="verify", is_listed=False, max_parallel=jobs_at_once),
        verdicts={entry.job.job_id: entry.verdict for entry in entries},
        begun=begun,
        on_event=watch.event,
        on_turn=watch.kill_due,
        look_every_s=POLL_INTERVAL_S,
    )
    if ended.is_interrupted:
        raise KeyboardInterrupt
    if ended.message:
        raise SupervisorError(ended.message)
    with run_directory.reading_ledger(paths) as ledger:
        rows = {row.job_id: row for row in ledger.jobs()}
    return {
        case.job.job_id: _short_training(paths.job(case.job.job_id), rows[case.job.job_id], watch)
        for case in cases
    }


def _with_own_policy(case: Case) -> Job:
    """Return the job, which starts from a file where it would wait for another job's policy."""
    job = case.job
    if job.spec.init_job is None or case.init is None:
        return job
    return job.with_spec(init=str(case.init.absolute()))


def _short_training(paths: JobPaths, row: JobRow, watch: _Watch) -> ShortTraining:
    record = read_exit_record(paths.attempt(max(0, row.attempts - 1)).exit)
    iterations = run_reader.iterations(paths.timings_csv)[1:]
    problem = ""
    if isinstance(row.state, Failed):
        problem = row.state.message
    elif record is None or record.weights_sha256 is None:
        problem = f"{paths.attempts}: the exit record holds no hash of the weights"
    return ShortTraining(
        sha256=None if problem or record is None else record.weights_sha256,
        problem=problem,
        iteration_s=tuple(row.wall_s for row in iterations),
        waited_s=sum(row.run_delay_s or 0.0 for row in iterations),
        neighbours=watch.neighbours.get(paths.root.name, 0),
        was_killed=paths.root.name in watch.killed and row.attempts > 1,
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
