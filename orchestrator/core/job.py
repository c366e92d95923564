"""Jobs, their attempts and states, and the moves between states that are legal.

    PENDING ──launch──▶ RUNNING ──▶ SUCCEEDED
       ▲  │                │ │ └────▶ FAILED ─────┐
       │  ├──▶ CANCELLED   │ └──────▶ CANCELLED ──┤ retry, by the user
       │  └──▶ FAILED      │                      │
       └────── retry, resume ◀────────────────────┘

    FAILED, as the machines had too little for it ──a run where there is room──▶ PENDING

    PENDING ──the policy that it starts from could not be fetched──▶ PENDING

    PENDING, RUNNING ──pause──▶ PAUSED ──resume──▶ PENDING, or CANCELLED
    RUNNING ──at a rung──▶ PAUSED ──promote──▶ PENDING, or CANCELLED, or PAUSED by the user

A state holds only its own facts: a running job has an attempt, a pending one has none.
"""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from orchestrator.core.decoding import Positive, Table
from orchestrator.core.errors import IllegalTransition
from orchestrator.core.worker_spec import WorkerSpec

Start: TypeAlias = Literal["auto", "exec", "fork"]
"""How a worker starts: as a new Python process, forked from one that has imported its packages
already, or whichever of these is faster (:func:`orchestrator.executors.start_choice.choose`)."""

META = "meta."
"""Begins keys of a job's point that are no parameters of its training."""
GPU_PARTS = 10_000
"""Shares of a GPU are multiples of 1/10,000, as in Ray."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    cores: Positive
    threads: Positive
    memory_mib: Positive
    gpus: float
    """A whole number, or a share of one GPU below 1."""
    timeout_s: float
    """Wall-clock limit of one attempt."""
    stall_timeout_s: float
    ranks: Positive = 1
    """Processes of one attempt. ``cores``, ``threads``, ``memory_mib`` and ``gpus`` are those of
    one rank."""
    log_mib: int = 64
    """Limit on the log of each rank."""
    nice: int = 0
    """Niceness of each rank; 0: that of whoever launches it, which is never lowered."""
    min_free_disk_mib: int = 0
    """Free space of the run directory's file system below which the job is not launched."""
    start: Start = "auto"
    move: bool = True
    """Whether it may be moved to other CPUs while it runs."""

    @property
    def all_cores(self) -> int:
        return self.ranks * self.cores

    @property
    def all_memory_mib(self) -> int:
        return self.ranks * self.memory_mib

    @property
    def all_gpus(self) -> float:
        return self.ranks * self.gpus

    @property
    def gpu_share(self) -> float:
        """The share that the job has of each of its GPUs."""
        return min(self.gpus, 1)

    def for_measurement(self) -> Resources:
        """The same, for a job that is compared with others: no niceness, no wait for disk space, no
        fork, no move.
        """
        return replace(self, nice=0, min_free_disk_mib=0, start="exec", move=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One declared training: robot × task × hyperparameters × seed."""

    job_id: str
    """Unique in the experiment, and safe as a directory name: letters, digits, ``.``, ``_`` and
    ``-``."""
    where: str
    """Where the job file declares it, for messages: ``jobs[2]``."""
    spec: WorkerSpec
    resources: Resources
    max_retries: int
    xml_source: Path | None
    """The user's own MJCF, absolute; None for a gymnasium id without one."""
    allow_outside: bool = False
    """Whether files of the robot may lie outside of its folder and ``folder``. Not in the ledger:
    only an examination needs it."""
    folder: Path | None = None
    """Folder of the job file, where the module of ``spec.robot_maker`` is looked for. Not in the
    ledger, likewise."""
    robot_settings: Table = field(default_factory=dict)
    """What makes MJCF of a robot that is none: its table of the job file, with absolute paths. Not in
    the ledger, likewise."""
    point: Table = field(default_factory=dict)
    """What it is reported by: dotted key → value. The values that a matrix, a search or a program gave
    it, which ``spec`` contains; and, after :data:`META`, what a program says of it."""

    def with_spec(self, **changes: Any) -> Job:
        """The same with other values in its spec."""
        return replace(self, spec=replace(self.spec, **changes))

    @property
    def work(self) -> str:
        """Its name and matrix point: equal for jobs that differ in their seed alone."""
        point = {key: value for key, value in self.point.items() if not key.startswith(META)}
        return json.dumps([self.spec.name, point], sort_keys=True)

    @property
    def why_exec(self) -> str | None:
        """Why its worker is exec'ed whatever ``resources.start`` is; None where it can be
        forked.
        """
        if self.resources.gpus > 0:
            return "the job uses a GPU"
        if self.resources.ranks > 1:
            return "the job has several ranks"
        if self.resources.threads > 1:
            return "the job has several threads (resources.threads)"
        return None


class Cause(enum.StrEnum):
    """Why an attempt, or a job, did not succeed."""

    ERROR = "error"
    INVALID = "invalid"
    """Robot or spec refused before any launch, where the other jobs are to be trained (``on_invalid
    = "skip"``)."""
    DIVERGED = "diverged"
    SIGNAL = "killed"
    OUT_OF_MEMORY = "out-of-memory"
    STALLED = "stalled"
    TIMEOUT = "timeout"
    MEMORY = "memory-limit"
    NODE_LOST = "node-lost"
    RANK_LOST = "rank-lost"
    """A rank lost the others, and none is known to have failed by itself: one hung or could not be
    reached."""
    SUPERVISOR_DIED = "supervisor-died"
    INTERRUPTED = "interrupted"
    """Ended because the whole experiment stops, or because its machine is taken away; not a
    failure."""
    CANCELLED = "cancelled"
    PAUSED = "paused"
    """Ended because the job is paused; not a failure."""
    RUNG = "rung"
    """Ended at the number of env_steps at which the job is compared with other jobs; not a
    failure."""
    DISK_FULL = "disk-full"
    LAUNCH = "launch-failed"
    TOO_LARGE = "too-large"
    """FAILED, and not launched, as it asks for more than the machines have; a run where there is
    room trains it."""
    UNDECLARED = "undeclared"
    """CANCELLED by a run, as its job file, or the program that made it, no longer declared it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One launch of a job."""

    job_id: str
    number: int
    cpus: tuple[int, ...]
    gpus: tuple[str, ...]
    pid: int | None = None
    """None where an executor has no process on this machine."""
    pid_start: float | None = None
    """Start time as the kernel gives it; together with it ``pid`` identifies the process."""
    started_at: float
    """Seconds since the epoch (UTC), for people; durations are measured on a monotonic clock."""
    node: str | None = None
    """The machine, where there are several; ``pid`` and ``cpus`` are that machine's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    failures: int = 0
    """Attempts so far that count against ``max_retries``."""
    not_before: float | None = None
    """Time on the monotonic clock before which it is not launched again (back-off)."""
    name: Literal["PENDING"] = "PENDING"


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    attempt: Attempt
    failures: int = 0
    name: Literal["RUNNING"] = "RUNNING"


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused:
    """Not launched, by this supervisor or a later one, until the user resumes it or, at a
    rung, until it is promoted.
    """

    failures: int = 0
    at_rung: bool = False
    """Whether it waits at a rung, to be compared with other jobs; the user does not resume it."""
    name: Literal["PAUSED"] = "PAUSED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Succeeded:
    name: Literal["SUCCEEDED"] = "SUCCEEDED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    cause: Cause
    message: str
    name: Literal["FAILED"] = "FAILED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    is_undeclared: bool = False
    """Whether a run cancelled it, as its job file, or the program that made it, no longer declared
    it; it resumes once it is declared again."""
    name: Literal["CANCELLED"] = "CANCELLED"


State: TypeAlias = Pending | Running | Paused | Succeeded | Failed | Cancelled


def lacked_room(state: State) -> bool:
    """Whether a run where there is room trains the job."""
    return isinstance(state, Failed) and state.cause is Cause.TOO_LARGE


StateName: TypeAlias = Literal["PENDING", "RUNNING", "PAUSED", "SUCCEEDED", "FAILED", "CANCELLED"]

TERMINAL = ("SUCCEEDED", "FAILED", "CANCELLED")

LEGAL = {
    "PENDING": {"PENDING", "RUNNING", "PAUSED", "FAILED", "CANCELLED"},
    "RUNNING": {"SUCCEEDED", "FAILED", "CANCELLED", "PENDING", "PAUSED"},
    "PAUSED": {"PENDING", "CANCELLED", "PAUSED"},
    "FAILED": {"PENDING"},
    "CANCELLED": {"PENDING"},
    "SUCCEEDED": {"PENDING"},
}


def move(job_id: str, old: State, new: State) -> State:
    """Return ``new``.

    A waiting job waits anew only after one more failure.

    :raises IllegalTransition: ``new`` may not follow ``old``.
    """
    is_legal = new.name in LEGAL[old.name]
    if isinstance(old, Pending) and isinstance(new, Pending):
        is_legal = new.failures > old.failures
    if not is_legal:
        raise IllegalTransition(f"job {job_id}: {old.name} may not become {new.name}")
    return new


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOutcome:
    """How an attempt ended; ``cause`` is None when it succeeded."""

    cause: Cause | None
    message: str = ""
