"""What supervisor and pilots say to each other; a pilot also sends the events of
:mod:`orchestrator.executors.executor`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.core.decoding import FilePath, Positive
from orchestrator.core.paths import JobPaths
from orchestrator.executors.executor import AttemptId, Exited, Placed, Progressed, Sampled
from orchestrator.executors.launcher import Launch


def spec_digest(job_dir: Path) -> str:
    """:raises OSError: ``spec.json`` cannot be read."""
    return hashlib.sha256(JobPaths(job_dir).spec.read_bytes()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOrder:
    """To a pilot: start an attempt. CPUs and GPUs are chosen there."""

    attempt: AttemptId
    job_dir: FilePath
    spec_digest: str
    """Of ``spec.json``, of which a network file system may show the one before."""
    cores: Positive
    gpus: float
    threads: Positive
    ranks: Positive
    log_mib: int
    nice: int
    fork: bool
    why_exec: str
    command: Sequence[FilePath] | None
    """In place of the worker, with job directory and number of the attempt appended."""
    environment: Mapping[str, FilePath | None] = field(default_factory=dict)
    """Changes to the worker's environment; None removes a variable."""

    def launch(self, cpus: tuple[int, ...], gpus: tuple[str, ...], gpu_share: float) -> Launch:
        """As the local executor takes it."""
        return Launch(
            job_id=self.attempt.job_id,
            number=self.attempt.number,
            job_dir=Path(self.job_dir),
            cpus=cpus,
            gpus=gpus,
            gpu_share=gpu_share,
            threads=self.threads,
            ranks=self.ranks,
            log_mib=self.log_mib,
            nice=self.nice,
            fork=self.fork,
            why_exec=self.why_exec,
        )


@dataclass(frozen=True, slots=True)
class EndOrder:
    """To a pilot: :meth:`.Executor.cancel`."""

    attempt: AttemptId
    kill: bool


@dataclass(frozen=True, slots=True)
class CheckpointOrder:
    """To a pilot: :meth:`.Executor.checkpoint`."""

    attempt: AttemptId


@dataclass(frozen=True, slots=True)
class SupervisorBeat:
    """To a pilot: there is a supervisor."""


@dataclass(frozen=True, slots=True)
class JoinOrder:
    """To a pilot: hand back all attempts, and serve the supervisor of another session."""

    session: str


@dataclass(frozen=True, slots=True)
class EndPilotOrder:
    """To a pilot: kill what is left, and end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotHello:
    """Of a pilot that takes launches from now on, and what its allocation has for jobs."""

    node: str
    cores: int
    gpus: int
    memory_mib: int
    cpu_model: str
    versions: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class PilotBeat:
    """Of a pilot: it is alive."""


@dataclass(frozen=True, slots=True)
class PilotLeaving:
    """Of a pilot that hands back its attempts and takes no further launch."""

    why: str


@dataclass(frozen=True, slots=True)
class PilotBye:
    """The last message of a pilot. Nothing of it is left."""


@dataclass(frozen=True, slots=True)
class Continued:
    """The last message in a file that the next one continues."""


ORDERS = (LaunchOrder, EndOrder, CheckpointOrder, SupervisorBeat, JoinOrder, EndPilotOrder)
REPORTS = (PilotHello, PilotBeat, PilotLeaving, PilotBye, Placed, Progressed, Sampled, Exited)
KINDS: Mapping[str, type[Any]] = {kind.__name__: kind for kind in (*ORDERS, *REPORTS, Continued)}
