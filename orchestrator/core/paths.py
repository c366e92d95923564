"""Every path in a run directory."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.core.errors import UsageError

DIRECTORY_REMOVED = (
    "the current directory has been removed; change to another one, or give an absolute path"
)
REPLAY = "replay"
"""Begins the names of replay buffers, and is the whole name of that of rank 0."""
DAMAGED = ".damaged"
"""End of the name of a damaged checkpoint that was set aside."""
CHECKPOINT = re.compile(r"checkpoint-(\d{12})\.pt")
"""Names of checkpoints; the group is their env_steps."""

EXIT = re.compile(r"(?:rank-([1-9][0-9]{0,9})\.)?exit\.json")
"""Names of exit records; the group is the rank, and is missing for rank 0."""


def current_directory() -> Path | None:
    """The directory that relative paths refer to; None when it has been removed."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


def absolute(path: str | os.PathLike[str]) -> Path:
    """``path`` from the root of the file system; links and ``..`` stay.

    :raises UsageError: for what is no path, and for a relative one when the current directory has
        been removed.
    """
    if not isinstance(path, str | os.PathLike):
        raise UsageError(
            f"{path!r} is of type {type(path).__name__}; expected the path of a file or directory"
        )
    path = Path(path)
    if not path.is_absolute() and current_directory() is None:
        raise UsageError(f"{path}: {DIRECTORY_REMOVED}")
    return path.absolute()


class Below:
    """An attribute that is the path ``name`` below ``root``."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, paths: Any, kind: type) -> Path:
        path: Path = paths.root / self._name
        return path


@dataclass(frozen=True)
class AttemptPaths:
    root: Path

    worker_log = Below("worker.log")
    exit = Below("exit.json")
    rendezvous = Below("rendezvous")
    """Through this file the ranks of an attempt on one machine find each other."""

    def log_of(self, rank: int) -> Path:
        """The output of rank ``rank``; ``worker_log`` is that of rank 0."""
        return self.root / f"rank-{rank}.log" if rank else self.worker_log

    def exit_of(self, rank: int) -> Path:
        """The exit record of rank ``rank``; ``exit`` is that of rank 0."""
        return self.root / f"rank-{rank}.exit.json" if rank else self.exit

    def exits(self) -> dict[int, Path]:
        """The exit records that are there, by rank, rising."""
        found = ((EXIT.fullmatch(path.name), path) for path in self.root.glob("*exit.json"))
        return dict(sorted((int(match[1] or 0), path) for match, path in found if match))


@dataclass(frozen=True)
class JobPaths:
    root: Path

    spec = Below("spec.json")
    robot = Below("robot")
    robot_invalid = Below("robot.invalid.xml")
    """The MJCF of a robot that was refused and that is no file of the user's."""
    robot_altered = Below("robot.altered")
    """What was in ``robot`` when it did not match ``robot_hash`` and was put back."""
    robot_hash = Below("robot.sha256")
    """SHA-256 of the bundle in ``robot``, as text; a ledger is rebuilt with it."""
    init = Below("init.pt")
    """The policy that its training starts from, where the job has ``init``."""
    attempts = Below("attempts")
    progress_csv = Below("progress.csv")
    timings_csv = Below("timings.csv")
    begun = Below("begun.json")
    """Process and start time of a training in a benchmark that no supervisor started."""
    checkpoints = Below("checkpoints")
    model = Below("model.zip")
    vecnormalize = Below("vecnormalize.pkl")
    eval = Below("eval.json")
    video = Below("video.mp4")
    preview = Below("preview.png")
    """A still of the robot during its evaluation."""
    moment = Below("moment.npz")
    """The pose of the robot during its evaluation, until the still has been drawn from it."""

    def has_results(self, *, normalize: bool) -> bool:
        """Whether what a finished training leaves is there: the policy, and the statistics that it
        needs.

        :param normalize: whether observations were normalised.
        """
        return self.model.exists() and (not normalize or self.vecnormalize.exists())

    def checkpoints_by_steps(self) -> dict[int, Path]:
        """The checkpoints that are there, by their env_steps, rising."""
        found = ((CHECKPOINT.fullmatch(path.name), path) for path in self.checkpoints.glob("*.pt"))
        return dict(sorted((int(match[1]), path) for match, path in found if match))

    def attempt(self, number: int) -> AttemptPaths:
        return AttemptPaths(self.attempts / str(number))

    def replay(self, rank: int) -> Path:
        """The replay buffer of rank ``rank``, beside the checkpoints."""
        return self.checkpoints / (f"{REPLAY}-of-rank-{rank}" if rank else REPLAY)


@dataclass(frozen=True)
class RunPaths:
    root: Path

    experiment = Below("experiment.toml")
    provenance = Below("provenance.json")
    ledger = Below("ledger.sqlite3")
    lock = Below("supervisor.lock")
    error_log = Below("supervisor-error.log")
    """Tracebacks of unexpected errors of the supervisor itself; missing where there were none."""
    supervisor_log = Below("supervisor.log")
    """Output of supervisors that were started with ``run --detach``."""
    run_end = Below("ended.json")
    """How the last run ended; missing while the first one goes on."""
    requests = Below("requests")
    """What clients ask of the supervisor; missing until the first one does."""
    staging = Below(".staging")
    """Robots under examination; moved to their jobs when every robot has passed."""
    replaced = Below("replaced")
    """Job directories that ``--on-change=restart`` moved away."""
    summary_json = Below("summary.json")
    summary_csv = Below("summary.csv")
    bench = Below("bench")
    jobs = Below("jobs")

    def job(self, job_id: str) -> JobPaths:
        return JobPaths(self.jobs / job_id)
