"""Sends what is new in a run directory to one tracker."""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import itertools
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from orchestrator.core.errors import RunDirError
from orchestrator.core.files.atomic_files import no_follow
from orchestrator.core.job import TERMINAL
from orchestrator.core.paths import JobPaths, RunPaths
from orchestrator.core.text import shortened
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.features.tracking import files, tracked_job
from orchestrator.features.tracking.tracked_job import ELAPSED, JobResults, ProgressTail
from orchestrator.features.tracking.tracker_protocol import (
    Position,
    TrackedJob,
    TrackedRun,
    Tracker,
    read_position,
)
from orchestrator.ledger import SummaryRow

CLASSES: Mapping[str, str] = {
    "tensorboard": "TensorboardTracker",
    "wandb": "WandbTracker",
    "mlflow": "MlflowTracker",
}
PRIVACY = {"MLFLOW_DISABLE_TELEMETRY": "true", "WANDB_ERROR_REPORTING": "false"}
"""Environment variables, set before a package is imported: its makers are told nothing that nobody
asked for."""
MOST_FAILURES = 3
"""So many jobs that cannot be sent end a turn in which nothing was sent: the tracker is away."""
PREVIEWS_S = 5.0
"""How long the last turn sends previews by themselves, as some trackers take seconds to open a run
again; one that has begun is finished."""
MOST_REPORTED = 10
VARYING = re.compile(r"0x[0-9a-f]+|[0-9]+")
"""Parts in which messages of the same failure differ, such as addresses of objects."""


@dataclass(slots=True)
class OneJob:
    """What is known of a job from turn to turn."""

    tail: ProgressTail
    run: TrackedRun | None = None
    position: Position | None = None
    is_done: bool = False
    """Whether its results have been sent; it is looked at again when its state changes."""


@dataclass(slots=True, kw_only=True)
class Publisher:
    """Everything that is sent to one tracker."""

    paths: RunPaths
    experiment: str
    backend: str
    options: Mapping[str, Any]
    report: Callable[[str], object]
    """Takes the message of a failure, once for all failures alike and :data:`MOST_REPORTED` times
    at most."""
    failures: int = field(default=0, init=False)
    left_out: int = field(default=0, init=False)
    """Previews that the last turn had no time for."""
    _tracker: Tracker | None = field(default=None, init=False)
    _jobs: dict[str, OneJob] = field(default_factory=dict, init=False)
    _first: int = field(default=0, init=False)
    """Place of the job that the next turn begins with."""
    _sent: int = field(default=0, init=False)
    """How often something was sent."""
    _previews_until: float = field(default=0.0, init=False)
    _reported: set[str] = field(default_factory=set, init=False)
    _lock: IO[bytes] | None = field(default=None, init=False)

    def turn(self, rows: Sequence[SummaryRow], *, is_last: bool) -> bool:
        """Send what is new. Returns whether the tracker has everything that there is, but for
        :attr:`left_out`.

        :param rows: of all jobs.
        :param is_last: whether all videos have been made.
        """
        failures = 0
        sent = self._sent
        self.left_out = 0
        try:
            self._tracker = self._tracker or self._connect()
        except Exception as error:  # of any kind: a server that is away, an account that is missing
            self._report_failure(error)
            return False
        is_complete = True
        first = self._first % max(1, len(rows))
        ordered = [*rows[first:], *rows[:first]]
        # Previews are drawn when all results have been sent; none of these has to wait for them.
        rounds = (False, True) if is_last else (False,)
        for number, (with_previews, row) in enumerate(itertools.product(rounds, ordered)):
            if failures >= MOST_FAILURES and self._sent == sent:
                self._first = first + number
                return False
            try:
                is_complete &= self._send(row, is_last=is_last, with_previews=with_previews)
            except Exception as error:
                failures += 1
                is_complete = False
                self._forget(row["job_id"])
                self._report_failure(error, row["job_id"])
        return is_complete

    def _report_failure(self, error: Exception, job_id: str = "") -> None:
        self.failures += 1
        why = " ".join(shortened(str(error) or type(error).__name__).split())[:300]
        kind = VARYING.sub("", why.replace(job_id, ""))
        if kind not in self._reported and len(self._reported) < MOST_REPORTED:
            self._reported.add(kind)
            where = f"{self.backend}: {job_id}" if job_id else self.backend
            self.report(f"{where}: {why}")

    def lock(self) -> None:
        """Keep other processes from sending to the tracker until :meth:`close`. :raises
        RunDirError: one does.
        """
        if self._lock is not None:
            return
        path = files.log(self.paths.root).with_name(f"{self.backend}.lock")
        path.parent.mkdir(exist_ok=True)
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(open(path, "ab", opener=no_follow))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunDirError(
                    f"{self.paths.root}: another process is sending it to {self.backend}"
                ) from None
            self._lock = file
            stack.pop_all()

    def close(self) -> None:
        for job_id in list(self._jobs):
            self._forget(job_id)
        if self._lock is not None:
            self._lock.close()

    def _connect(self) -> Tracker:
        self.lock()
        for variable, value in PRIVACY.items():
            os.environ.setdefault(variable, value)
        module = importlib.import_module(f"orchestrator.features.tracking.{self.backend}_tracker")
        tracker: Tracker = getattr(module, CLASSES[self.backend])(
            self.paths, self.experiment, self.options
        )
        return tracker

    def _forget(self, job_id: str) -> None:
        """Read the job's position anew, as a part may have been sent."""
        job = self._jobs.pop(job_id, None)
        if job is not None and job.run is not None:
            with contextlib.suppress(Exception):  # its error is reported already
                job.run.close()

    def _send(self, row: SummaryRow, *, is_last: bool, with_previews: bool) -> bool:
        """Returns whether the tracker has all of the job.

        :param with_previews: whether a preview that was drawn after the results were sent follows
            them.
        """
        job = self._known_job(row["job_id"])
        is_over = row["state"] in TERMINAL
        if is_over and job.is_done and not is_last:
            return True
        self._send_points(row["job_id"], job)
        if not is_over:
            job.is_done = False
            return True
        paths = self.paths.job(row["job_id"])
        was_launched = job.position is not None or paths.spec.exists()
        if not was_launched:
            return True
        if not is_last and _has_video(paths):
            return False  # it is not made yet
        self._send_end(row, job, with_previews=with_previews)
        return True

    def _known_job(self, job_id: str) -> OneJob:
        if job_id not in self._jobs:
            tail = ProgressTail(self.paths.job(job_id).progress_csv)
            self._jobs[job_id] = OneJob(tail, position=self._known_position(job_id))
        return self._jobs[job_id]

    def _send_end(self, row: SummaryRow, job: OneJob, *, with_previews: bool) -> None:
        """What the tracker does not have of how a job has ended."""
        results = tracked_job.results(self.paths.job(row["job_id"]), row)
        told = None if job.position is None else job.position.final
        if told is None or told.numbers != results.mark.numbers:
            self._send_results(row, job, results)
        elif not (with_previews and results.pictures(told)):
            job.is_done = True
        elif self._has_time_for_previews():
            self._send_results(row, job, results)
        else:
            self.left_out += 1

    def _send_results(self, row: SummaryRow, job: OneJob, results: JobResults) -> None:
        job_id = row["job_id"]
        if job.run is None:  # perhaps the job has ended before its first iteration
            job.run = self._open_run(job_id, job, row["started_at"] or time.time())
        where = self._note(job_id)
        job.position = _tell_results(job.run, results, where)
        job.position.write(where)
        job.run = None
        self._sent += 1
        job.is_done = True

    def _has_time_for_previews(self) -> bool:
        now = time.monotonic()
        self._previews_until = self._previews_until or now + PREVIEWS_S
        return now < self._previews_until

    def _send_points(self, job_id: str, job: OneJob) -> None:
        """All that the tracker does not have."""
        while points := job.tail.new_points(0 if job.position is None else job.position.env_steps):
            if job.run is None:
                began = job.tail.modified - points[-1].values.get(ELAPSED, 0.0)
                job.run = self._open_run(job_id, job, began)
            position = replace(job.run.send(points), final=None)
            job.run.position = position
            job.position = position
            position.write(self._note(job_id))
            self._sent += 1

    def _note(self, job_id: str) -> Path:
        assert self._tracker is not None
        return files.position_file(self.paths.job(job_id), self.backend, self._tracker.destination)

    def _known_position(self, job_id: str) -> Position | None:
        """What the tracker has of a job, which may be less than was noted."""
        assert self._tracker is not None
        noted = read_position(self._note(job_id), self._tracker.destination)
        if noted is None:
            return None
        anew = Position(destination=noted.destination, began=noted.began)
        return self._tracker.known(job_id, noted) or anew

    def _open_run(self, job_id: str, job: OneJob, began: float) -> TrackedRun:
        """The run of a job, a new one where the tracker has none."""
        assert self._tracker is not None
        paths = self.paths.job(job_id)
        position = job.position or Position(destination=self._tracker.destination, began=began)
        tracked = TrackedJob(
            job_id=job_id,
            experiment=self.experiment,
            settings=tracked_job.settings(paths),
            position=position,
        )
        if not position.run:
            position = replace(position, run=self._tracker.begin(tracked))
            # Kept before anything is sent, so that a killed process sends to the same run.
            position.write(self._note(job_id))
            tracked = replace(tracked, position=position)
        job.position = position
        return self._tracker.open(tracked)


def _has_video(paths: JobPaths) -> bool:
    """Whether one is made of the job when it has ended."""
    return WorkerSpec.from_json(paths.spec.read_bytes()).video


def _tell_results(run: TrackedRun, results: JobResults, where: Path) -> Position:
    """How a job has ended; only its pictures where the tracker knows the rest."""
    known = run.position
    mark = results.mark
    is_told = known.final is not None and known.final.numbers == mark.numbers
    is_there = (
        known.results is not None
        and known.results.numbers == mark.numbers
        and known.env_steps >= known.results_step
    )
    if known.results != mark and (is_told or not is_there):
        # Kept before they are sent, so that a killed process does not send them once more.
        run.position = replace(known, results=mark, results_step=known.env_steps + 1)
        run.position.write(where)
    told = run.show(results.pictures(known.final)) if is_told else run.finish(results)
    return replace(told, final=told.results)
