"""The interface of executors. An executor owns the room for attempts: slots, processes, batch jobs.

One conformance suite runs over every executor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from orchestrator.core.errors import Problem
from orchestrator.core.job import Job
from orchestrator.core.messages import Progress

Shortage: TypeAlias = Literal["room", "gpus", "template", "node", "never"]
"""Why a job has to wait: other jobs have the room, or its GPUs alone; the process that forks its
worker is not ready; no node is large enough, and one may join; or there never is room for it."""


@dataclass(frozen=True, slots=True)
class AttemptId:
    """Identifies an attempt."""

    job_id: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """The cluster has taken the attempt, under a name by which the next supervisor finds it."""

    attempt: AttemptId
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """The attempt waits for a machine. No time limit counts."""

    attempt: AttemptId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """The attempt runs from now on. Its time limits begin."""

    attempt: AttemptId
    cpus: tuple[int, ...]
    gpus: tuple[str, ...] = ()
    node: str | None = None
    """The machine, where there are several."""
    pid: int | None = None
    pid_start: float | None = None
    shares_with: tuple[str, ...] = ()
    """Who else uses its CPUs, for people."""
    expected_share: float = 1.0
    """The share of its CPUs' time that is left for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progressed:
    """A message of the worker."""

    attempt: AttemptId
    progress: Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """Resident memory of all ranks and their descendants."""

    attempt: AttemptId
    rss_mib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Contended:
    """Others use the CPUs of the attempt, which waits for them."""

    attempt: AttemptId
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """The attempt has moved to idle CPUs."""

    attempt: AttemptId
    before: tuple[int, ...]
    after: tuple[int, ...]
    because_of: tuple[str, ...]
    wait_share: float
    """The share of the time that it waited for the CPUs that it has left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exited:
    """The attempt is over and its process groups are gone. It is the attempt's last event."""

    attempt: AttemptId
    returncode: int | None
    """As in :mod:`subprocess`: negative for a signal. None if unknown: the node was lost."""
    oom_killed: bool = False
    rank: int | None = None
    """The rank that ended the attempt; None with one rank, or on success."""
    lost: str | None = None
    """Why there is no exit code, or with ``INTERRUPTED`` why the attempt was handed back."""


Event: TypeAlias = Submitted | Waiting | Placed | Progressed | Sampled | Contended | Moved | Exited


class Executor(Protocol):
    """Runs attempts and reports what happens to them. Called from one thread only."""

    @property
    def jobs_at_once(self) -> int:
        """The most jobs that run at the same time."""

    def resize(self, jobs_at_once: int) -> int:
        """Change how many jobs run at once, as far as there is room. Return the number."""

    def problems(self, job: Job) -> Sequence[Problem]:
        """Return why a job can never run here; nothing if it can."""

    def reserve(self, job: Job, *, waiting: int) -> Shortage | None:
        """Reserve room for an attempt of the job, or return why it has to wait.

        :param waiting: number of waiting jobs whose workers can be forked.
        """

    def submit(self, job: Job, number: int, job_dir: Path) -> None:
        """Start an attempt in the room that was reserved for it.

        :raises OSError: it cannot be started; its room is free again.
        """

    def release(self, job: Job) -> None:
        """Give back the room that is reserved for a job, if any: it is not submitted."""

    def poll(self, timeout_s: float) -> Sequence[Event]:
        """Return all events since the last call; wait up to ``timeout_s`` for the first one.

        :raises ClusterLostError: no attempt can be reached any more.
        """

    def cancel(self, attempt: AttemptId, *, kill: bool) -> None:
        """Ask every rank to save a checkpoint and exit, or kill the attempt. ``Exited`` follows."""

    def checkpoint(self, attempt: AttemptId) -> None:
        """Ask the attempt to write a checkpoint at the end of its iteration, and to go on."""

    def close(self) -> None:
        """Kill everything that still runs and release all resources. May be called again."""
