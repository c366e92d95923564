"""The interface of executors. An executor owns the room for attempts: slots, processes, batch jobs.

Local, Ray and Slurm are :class:`.SlottedExecutor`. One conformance suite runs over every executor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from orchestrator.core.errors import Problem
from orchestrator.core.job import Job
from orchestrator.core.messages import Progress
from orchestrator.core.text import count
from orchestrator.machine.cpu_load import CpuLoad
from orchestrator.machine.cpu_locks import CpuLocks, locks_folder
from orchestrator.machine.gpu import detect_gpus
from orchestrator.machine.slots import MaxParallel, SlotPool
from orchestrator.machine.topology import Machine

Shortage: TypeAlias = Literal["room", "gpus", "template", "node", "never"]
"""Why a job has to wait: other jobs have the room, or its GPUs alone; the process that forks its
worker is not ready; no node is large enough, and one may join; or there never is room for it."""
Report: TypeAlias = Callable[[str, str], object]
"""``report(kind, message)`` appends an event to the stream."""


@dataclass(frozen=True, slots=True)
class AttemptId:
    """Identifies an attempt."""

    job_id: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """The attempt runs from now on. Its time limits begin."""

    attempt: AttemptId
    cpus: tuple[int, ...]
    gpus: tuple[str, ...] = ()
    node: str | None = None
    """The machine, where there are several; all names if the ranks run on several."""
    pid: int | None = None
    """Of rank 0, as is the next."""
    pid_start: float | None = None
    shares_with: tuple[str, ...] = ()
    """Who else uses its CPUs, for people."""
    expected_share: float = 1.0
    """The share of its CPUs' time that is left for it."""


@dataclass(frozen=True, slots=True)
class Progressed:
    """A message of the worker."""

    attempt: AttemptId
    progress: Progress


@dataclass(frozen=True, slots=True)
class Sampled:
    """Resident memory of all ranks and their descendants, and how long they waited for CPUs."""

    attempt: AttemptId
    rss_mib: float
    wait_shares: tuple[float, ...] = ()
    """By rank: seconds per second, since the sample before, that a thread of it was runnable and
    waited for a CPU; of several threads that one which waited most. Empty if not measured."""


@dataclass(frozen=True, slots=True)
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
    """Who uses the CPUs that it has left, for people."""
    wait_share: float
    """The share of the time that it waited for the CPUs that it has left."""


@dataclass(frozen=True, slots=True)
class Exited:
    """The attempt is over and its process groups are gone. It is the attempt's last event."""

    attempt: AttemptId
    returncode: int | None
    """As in :mod:`subprocess`: negative for a signal. None if unknown: the node was lost."""
    oom_killed: bool = False
    rank: int | None = None
    """The rank that ended the attempt, to which ``returncode`` belongs; None with one rank, or on
    success."""
    lost: str | None = None
    """Why there is no exit code, so that it may succeed on another machine; or with ``INTERRUPTED``
    why it was handed back, after a checkpoint or before it began."""


Event: TypeAlias = Placed | Progressed | Sampled | Contended | Moved | Exited


class Executor(Protocol):
    """Runs attempts and reports what happens to them. Called from one thread only."""

    @property
    def jobs_at_once(self) -> int:
        """The most jobs that run at the same time."""

    def resize(self, jobs_at_once: int) -> int:
        """Change how many jobs run at once, as far as there is room. Return the number."""

    def problems(self, job: Job) -> Sequence[Problem]:
        """Return why a job can never run here; nothing if it can."""

    def expect(self, jobs: Sequence[Job]) -> None:
        """Prepare for jobs that are examined now. Return at once."""

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


class OpenedExecutor(Executor, Protocol):
    """An executor as :attr:`.ExecutorKind.open` returns it."""

    @property
    def never_forks(self) -> str:
        """Why it execs every worker; empty if workers can be forked."""

    def ready(self, report: Report) -> None:
        """Wait until it can be used.

        :param report: told of warnings, now and later of every event that concerns a machine.
        :raises UsageError: it cannot be used.
        """

    def facts(self) -> Mapping[str, Any]:
        """Return a description for ``provenance.json`` and ``--dry-run``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorSettings:
    """What an executor is made from. Each uses what concerns it."""

    machine: Machine
    max_parallel: MaxParallel = None
    """Most jobs at once, as the user asks for; None: as many as there is room for."""
    sees_neighbours: bool = False
    """Whether others who use the CPUs of this machine are looked at, and are told which ones are
    held."""
    run_dir: Path = Path()
    plan_dir: Path | None = None
    """A folder for files in place of the run directory, if this is a plan: nothing is launched."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Values of all options of the executor's kind, by name."""
    tables: Mapping[str, Any] = field(default_factory=dict)
    """What tables of features mean, by their names in the job file."""
    name: str = ""
    """Of the experiment, as a safe directory name."""

    @property
    def folder(self) -> Path:
        """Where files may be written."""
        return (self.plan_dir or self.run_dir).absolute()

    @property
    def max_parallel_on_nodes(self) -> int | None:
        """As :attr:`max_parallel`: idle cores are counted on this machine alone."""
        return None if self.max_parallel == "idle" else self.max_parallel

    def local_slots(self) -> SlotPool:
        """Return slots on this machine."""
        locks = load = None
        if self.sees_neighbours:
            run_dir = str(self.run_dir.absolute())
            locks = CpuLocks(locks_folder(), experiment=self.name, run_dir=run_dir)
            load = CpuLoad()
        return SlotPool(
            self.machine,
            self.max_parallel,
            locks=locks,
            load=load,
            # A job that comes later may be the first one that asks for any.
            find_gpus=None if self.machine.gpus else detect_gpus,
        )


def resource_problem(job: Job, key: str, asked: str, offered: str) -> Problem:
    """Return the problem that ``resources`` of a job ask for more than an executor has.

    :param key: the key below ``resources`` with its dot; empty: all of them together.
    :param offered: what the executor has, as a clause.
    """
    each = f" for each of {job.resources.ranks} ranks" if job.resources.ranks > 1 else ""
    return Problem(
        where=f"{job.where}.resources{key}", message=f"asks for {asked}{each}; {offered}"
    )


def amounts(cores: int, gpus: float, memory_mib: int) -> str:
    return f"{count(cores, 'core')}, {count(gpus, 'GPU')} and {memory_mib} MiB"
