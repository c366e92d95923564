"""Every path in a run directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class AttemptPaths:
    root: Path

    @property
    def worker_log(self) -> Path:
        return self.root / "worker.log"

    @property
    def exit(self) -> Path:
        return self.root / "exit.json"

    def log_of(self, rank: int) -> Path:
        """What rank ``rank`` prints; ``worker_log`` is that of rank 0."""
        return self.root / f"rank-{rank}.log" if rank else self.worker_log

    def exit_of(self, rank: int) -> Path:
        """The last word of rank ``rank``; ``exit`` is that of rank 0."""
        return self.root / f"rank-{rank}.exit.json" if rank else self.exit

    @property
    def rendezvous(self) -> Path:
        """Through this file the ranks of an attempt on one machine find each other."""
        return self.root / "rendezvous"


REPLAY = "replay"
"""Beginning of the names of folders with replay buffers; of rank 0 it is the whole name."""


@dataclass(frozen=True, slots=True)
class JobPaths:
    root: Path

    @property
    def spec(self) -> Path:
        return self.root / "spec.json"

    @property
    def robot(self) -> Path:
        return self.root / "robot"

    @property
    def robot_hash(self) -> Path:
        """SHA-256 of the bundle in ``robot``, as text: what the ledger is rebuilt from."""
        return self.root / "robot.sha256"

    @property
    def attempts(self) -> Path:
        return self.root / "attempts"

    def attempt(self, number: int) -> AttemptPaths:
        return AttemptPaths(self.attempts / str(number))

    @property
    def progress_csv(self) -> Path:
        return self.root / "progress.csv"

    @property
    def timings_csv(self) -> Path:
        return self.root / "timings.csv"

    @property
    def begun(self) -> Path:
        """Of a training that no supervisor started (in a benchmark): who trains, and since when."""
        return self.root / "begun.json"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    def replay(self, rank: int) -> Path:
        """The replay buffer of rank ``rank``, beside the checkpoints."""
        return self.checkpoints / (f"{REPLAY}-of-rank-{rank}" if rank else REPLAY)

    @property
    def model(self) -> Path:
        return self.root / "model.zip"

    @property
    def vecnormalize(self) -> Path:
        return self.root / "vecnormalize.pkl"

    @property
    def eval(self) -> Path:
        return self.root / "eval.json"

    @property
    def video(self) -> Path:
        return self.root / "video.mp4"

    @property
    def preview(self) -> Path:
        """A film strip: a few moments of one episode side by side."""
        return self.root / "preview.png"


@dataclass(frozen=True, slots=True)
class RunPaths:
    """The one owner of every path in a run directory."""

    root: Path

    @property
    def experiment(self) -> Path:
        return self.root / "experiment.toml"

    @property
    def provenance(self) -> Path:
        return self.root / "provenance.json"

    @property
    def ledger(self) -> Path:
        return self.root / "ledger.sqlite3"

    @property
    def lock(self) -> Path:
        return self.root / "supervisor.lock"

    @property
    def staging(self) -> Path:
        """Robots under examination; moved to their jobs when all are well."""
        return self.root / ".staging"

    @property
    def replaced(self) -> Path:
        """Job directories that ``--on-change=restart`` put out of the way."""
        return self.root / "replaced"

    @property
    def summary_json(self) -> Path:
        return self.root / "summary.json"

    @property
    def summary_csv(self) -> Path:
        return self.root / "summary.csv"

    @property
    def bench(self) -> Path:
        """What a benchmark measured."""
        return self.root / "bench"

    @property
    def jobs(self) -> Path:
        return self.root / "jobs"

    def job(self, job_id: str) -> JobPaths:
        return JobPaths(self.jobs / job_id)
