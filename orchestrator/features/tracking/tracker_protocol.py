"""What every tracker offers, and what is kept of what it has been told."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from orchestrator.core.files.atomic_files import write_whole
from orchestrator.core.files.record_file import read_record
from orchestrator.features.tracking.tracked_job import JobResults, Point, ResultsMark


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """How much of a job a tracker has been told: a file in the job's directory, written after the
    tracker has it.
    """

    destination: str
    """Where it was sent to; at another one the job begins anew."""
    began: float
    """When its training began, in seconds since the epoch."""
    run: str = ""
    """The tracker's own name of the job."""
    env_steps: int = 0
    """Of the last point."""
    size: int = 0
    """Bytes of the file that the tracker writes; whatever follows them was not counted as sent."""
    results: ResultsMark | None = None
    """Of the results that are being sent or were sent, or of those with a later picture; None
    before."""
    results_step: int = 0
    """The step that they get where they have one; a tracker whose last step it is has them."""
    final: ResultsMark | None = None
    """Of what was sent; None before."""

    def at(self, env_steps: int) -> Position:
        """The same where the tracker's last step is another one; if it is lower, its results have
        to be sent again.
        """
        return replace(
            self, env_steps=env_steps, final=self.final if env_steps >= self.env_steps else None
        )

    def write(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        write_whole(path, json.dumps(dataclasses.asdict(self)) + "\n", durable=False)


def read_position(path: Path, destination: str) -> Position | None:
    """None where nothing was sent to ``destination``, or where nobody can tell."""
    position = read_record(Position, path)
    return None if position is None or position.destination != destination else position


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedJob:
    """A job as a tracker opens it."""

    job_id: str
    experiment: str
    settings: Mapping[str, Any]
    position: Position
    """With an empty ``run`` before :meth:`Tracker.begin`."""


class TrackedRun(Protocol):
    """A job in a tracker. What a method raises is repeated later."""

    position: Position
    """What the tracker has."""

    def send(self, points: Sequence[Point]) -> Position:
        """Returns when the tracker has them."""

    def finish(self, results: JobResults) -> Position:
        """Send how the job has ended."""

    def show(self, pictures: Mapping[str, Path]) -> Position:
        """Send ``video`` and ``preview``, or the one of them that has been made since then."""

    def close(self) -> None: ...


class Tracker(Protocol):
    """A place to send jobs to. Its constructor imports its package."""

    destination: str
    """Where it sends to."""

    def known(self, job_id: str, noted: Position) -> Position | None:
        """What it has by itself of that which was noted; None: nothing, so that the job begins
        anew.
        """

    def begin(self, job: TrackedJob) -> str:
        """A new run of a job, by its name there; what an earlier training of that job left is
        removed.
        """

    def open(self, job: TrackedJob) -> TrackedRun: ...
