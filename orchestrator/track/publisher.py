"""Sends what is new in a run directory to one tracker."""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from orchestrator.core.atomic_files import no_follow
from orchestrator.core.errors import RunDirError
from orchestrator.core.job import TERMINAL
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import shortened
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.ledger import SummaryRow
from orchestrator.track import tracked_job
from orchestrator.track.tracked_job import ELAPSED, ProgressTail
from orchestrator.track.tracker_protocol import Position, TrackedJob, TrackedRun, Tracker, read_position

CLASSES: Mapping[str, str] = {
    "tensorboard": "TensorboardTracker",
    "wandb": "WandbTracker",
    "mlflow": "MlflowTracker",
    "trackio": "TrackioTracker",
}
PRIVACY = {"MLFLOW_DISABLE_TELEMETRY": "true", "WANDB_ERROR_REPORTING": "false"}
"""Environment variables, set before a package is imported: its makers are told nothing that nobody asked for."""
MOST_FAILURES = 3
"""So many jobs that cannot be sent end a turn in which nothing was sent: the tracker is away."""


@contextlib.contextmanager
def locked(paths: RunPaths, backend: str) -> Iterator[None]:
    """Only one process sends to a tracker. :raises RunDirError: another one does."""
    path = paths.track_log.with_name(f"{backend}.lock")
    path.parent.mkdir(exist_ok=True)
    with open(path, "ab", opener=no_follow) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = f"another process is sending it to {backend}"
            raise RunDirError(f"{paths.root}: {text}; while the experiment runs, its own tracker does") from None
        yield


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
    """Takes the message of a failure."""
    failures: int = field(default=0, init=False)
    _tracker: Tracker | None = field(default=None, init=False)
    _jobs: dict[str, OneJob] = field(default_factory=dict, init=False)
    _first: int = field(default=0, init=False)
    """Place of the job that the next turn begins with."""
    _sent: int = field(default=0, init=False)
    """How often something was sent."""

    def turn(self, rows: Sequence[SummaryRow], *, is_last: bool) -> bool:
        """Send what is new. Returns whether the tracker has everything that there is.

        :param rows: of all jobs.
        :param is_last: whether all videos have been made.
        """
        failures, sent = 0, self._sent
        try:
            self._tracker = self._tracker or self._connected()
        except Exception as error:  # of any kind: a server that is away, an account that is missing
            self._failed(_why(error))
            return False
        is_complete = True
        first = self._first % max(1, len(rows))
        for number, row in enumerate([*rows[first:], *rows[:first]]):
            if failures >= MOST_FAILURES and self._sent == sent:
                self._first = first + number
                return False
            try:
                is_complete &= self._send(row, is_last=is_last)
            except Exception as error:
                failures, is_complete = failures + 1, False
                self._forget(row["job_id"])
                self._failed(f"{row['job_id']}: {_why(error)}")
        return is_complete

    @property
    def destination(self) -> str:
        """Where it sends to, in words; empty before the first turn."""
        return "" if self._tracker is None else self._tracker.shown

    def _failed(self, message: str) -> None:
        self.failures += 1
        self.report(f"{self.backend}: {message}")

    def close(self) -> None:
        for job in self._jobs.values():
            if job.run is not None:
                with contextlib.suppress(Exception):
                    job.run.close()

    def _connected(self) -> Tracker:
        for variable, value in PRIVACY.items():
            os.environ.setdefault(variable, value)
        module = importlib.import_module(f"orchestrator.track.{self.backend}_tracker")
        tracker: Tracker = getattr(module, CLASSES[self.backend])(self.paths, self.experiment, self.options)
        return tracker

    def _forget(self, job_id: str) -> None:
        """Read the job's position anew, as a part may have been sent."""
        job = self._jobs.pop(job_id, None)
        if job is not None and job.run is not None:
            with contextlib.suppress(Exception):
                job.run.close()

    def _send(self, row: SummaryRow, *, is_last: bool) -> bool:
        """Returns whether the tracker has all of the job."""
        paths = self.paths.job(row["job_id"])
        job = self._jobs.setdefault(row["job_id"], OneJob(ProgressTail(paths.progress_csv)))
        is_over = row["state"] in TERMINAL
        if job.is_done and is_over and not is_last:
            return True
        assert self._tracker is not None
        where = self._note(row["job_id"])
        job.position = job.position or read_position(where, self._tracker.destination)
        self._send_points(row["job_id"], job)
        if not is_over or job.position is None:
            job.is_done = False
            return job.position is not None or not is_over or not paths.progress_csv.exists()
        if not is_last and WorkerSpec.from_json(paths.spec.read_bytes()).video:
            return False  # its video is not made yet
        results = tracked_job.results(paths, row)
        if job.position.final != results.digest:
            if job.run is None:
                job.run = self._opened(row["job_id"], job, 0.0)
                self._send_points(row["job_id"], job)
            position = job.run.position
            if position.results != results.digest:
                # Kept before they are sent, so that a killed process does not send them once more.
                job.run.position = replace(position, results=results.digest, results_step=position.env_steps + 1)
                job.run.position.write(where)
            job.position = replace(job.run.finish(results), final=results.digest)
            job.position.write(where)
            job.run, self._sent = None, self._sent + 1
        job.is_done = True
        return True

    def _send_points(self, job_id: str, job: OneJob) -> None:
        """All that the tracker does not have."""
        while points := job.tail.new_points(0 if job.position is None else job.position.env_steps):
            if job.run is None:
                job.run = self._opened(job_id, job, points[-1].values.get(ELAPSED, 0.0))
                continue  # with the points beyond those that the tracker has
            job.position = job.run.send(points)
            job.position.write(self._note(job_id))
            self._sent += 1

    def _note(self, job_id: str) -> Path:
        assert self._tracker is not None
        return self.paths.job(job_id).tracked(self.backend, self._tracker.destination)

    def _opened(self, job_id: str, job: OneJob, elapsed: float) -> TrackedRun:
        """The run of a job; what the tracker has of it counts from here on, which may be less than was noted."""
        assert self._tracker is not None
        paths = self.paths.job(job_id)
        position = job.position or Position(destination=self._tracker.destination, began=job.tail.modified - elapsed)
        tracked = TrackedJob(
            job_id=job_id, experiment=self.experiment, settings=tracked_job.settings(paths), position=position
        )
        if not position.run:  # kept before anything is sent, so that a killed process sends to the same one
            tracked = replace(tracked, position=replace(position, run=self._tracker.begin(tracked)))
            tracked.position.write(self._note(job_id))
        run = self._tracker.open(tracked)
        job.position = run.position
        job.tail.rewind()
        return run


def _why(error: Exception) -> str:
    return " ".join(shortened(str(error) or type(error).__name__).split())[:300]
