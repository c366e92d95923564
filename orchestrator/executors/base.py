"""The interfaces of executors, which launch attempts, and of backends: an executor with its slots.

One conformance suite (``tests/helpers/executor_conformance.py``) runs over every executor.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from orchestrator.core.errors import Problem
from orchestrator.core.job import Job
from orchestrator.core.messages import Progress
from orchestrator.core.text import count
from orchestrator.machine.cpu_load import CpuLoad
from orchestrator.machine.cpu_locks import CpuLocks, locks_folder
from orchestrator.machine.gpu import detect_gpus
from orchestrator.machine.slots import (
    MaxParallel,
    Moved,
    RankSlot,
    Slot,
    SlotPool,
    Slots,
    part_of_rank,
)
from orchestrator.machine.topology import Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What an executor needs to start one attempt."""

    job_id: str
    number: int
    job_dir: Path
    """Holds ``spec.json`` and the directory of the attempt, which exists."""
    cpus: tuple[int, ...]
    """The CPUs of rank 0, then those of rank 1, and so on. ``gpus`` is ordered in the same way."""
    gpus: tuple[str, ...]
    threads: int
    """Number of threads of each rank."""
    ranks: int = 1
    """Processes of the attempt. Either all of them are started or none."""
    rank_slots: tuple[RankSlot, ...] = ()
    """For an executor over several machines: where the ranks start. Their CPUs and GPUs are chosen
    there."""
    first_rank: int = 0
    """The first rank on this machine, where other ranks run on other machines."""
    work: str = ""
    """:attr:`Job.work`; empty where nobody compares the speed of jobs."""
    log_mib: int = 64
    """Limit on the log of each rank."""
    nice: int = 0
    """Least niceness of each rank."""
    gpu_share: float = 1
    """Share of the memory of each of ``gpus`` that the attempt may use."""
    code_folder: str | None = None
    """Where the job imports code of the user from; None if it imports none."""
    code_name: str = ""
    """What it imports from there, as the job file names it."""
    fork: bool = False
    """Whether the worker is forked from the template process, where that is possible, instead of
    exec'ed."""
    why_exec: str = ""
    """Why it is exec'ed although the user wants the job to be forked."""

    def cpus_of(self, rank: int) -> Sequence[int]:
        return part_of_rank(self.cpus, rank, self.ranks)

    def gpus_of(self, rank: int) -> Sequence[str]:
        return part_of_rank(self.gpus, rank, self.ranks)


@dataclass(frozen=True, slots=True)
class Handle:
    """Identifies a launched attempt. ``pid`` and ``pid_start`` are those of rank 0, for processes
    of this machine.
    """

    job_id: str
    number: int
    pid: int | None = None
    pid_start: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """The attempt has started on its machine. Not sent for attempts that have a pid when they are
    submitted.
    """

    handle: Handle
    node: str
    """Name of the machine, for people; all names if the ranks run on several."""
    cpus: tuple[int, ...]
    gpus: tuple[str, ...]
    pid: int | None
    pid_start: float | None


@dataclass(frozen=True, slots=True)
class Progressed:
    handle: Handle
    progress: Progress


@dataclass(frozen=True, slots=True)
class Sampled:
    """Resident memory of all ranks and their descendants, and how long they waited for CPUs."""

    handle: Handle
    rss_mib: float
    wait_shares: tuple[float, ...] = ()
    """By rank: seconds per second, since the sample before, that a thread of it was runnable and
    waited for a CPU; of several threads that one which waited most. Empty where that is not
    measured."""


@dataclass(frozen=True, slots=True)
class Exited:
    """The attempt is over and its process groups are gone. It is the attempt's last event."""

    handle: Handle
    returncode: int | None
    """As in :mod:`subprocess`: negative for a signal. None where it is not known (node lost)."""
    oom_killed: bool = False
    rank: int | None = None
    """The rank that made the attempt end, and that ``returncode`` belongs to. None with one rank,
    or on success."""
    lost: str | None = None
    """Why there is no exit code: its machine is lost or cannot run it. The attempt may succeed on
    another machine.

    With :attr:`.ExitCode.INTERRUPTED`: why it was handed back, after a checkpoint or before it
    began.
    """


Event: TypeAlias = Placed | Progressed | Sampled | Exited


class Executor(Protocol):
    """Launches attempts and reports their events. Called from one thread only.

    The ranks of an attempt end together: when one fails, the others are killed at once.
    """

    @property
    def never_forks(self) -> str:
        """Why it execs every worker; empty where workers can be forked."""

    def prepare_to_fork(self) -> bool:
        """Begin, or go on, to prepare what workers are forked from. Returns at once.

        Returns False while launches with ``fork`` should wait, since they would be exec'ed now.
        :meth:`poll` returns when they need not wait any more.
        """

    def submit(self, launch: Launch) -> Handle:
        """Start the attempt. :raises OSError: it could not be started, and no rank of it is
        left.
        """

    def poll(self, timeout_s: float) -> Sequence[Event]:
        """All events since the last call; waits up to ``timeout_s`` for the first one. :raises
        ClusterLostError:
        """

    def cancel(self, handle: Handle, *, kill: bool) -> None:
        """Ask every rank to save a checkpoint and exit, or with ``kill`` kill the ranks and their
        descendants now.

        An :class:`Exited` follows either way. Unknown and finished handles are ignored.
        """

    def checkpoint(self, handle: Handle) -> None:
        """Ask the attempt to write a checkpoint at the end of its iteration, and to go on.

        Ignored for handles that are unknown or finished, and before the attempt runs on its node.
        """

    def close(self) -> None:
        """Kill everything that still runs and release all resources. May be called again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSettings:
    """What a backend is made from. Each uses what concerns it."""

    machine: Machine
    max_parallel: MaxParallel = None
    """Most jobs at once, as the user asks for; None: as many as there is room for."""
    sees_neighbours: bool = False
    """Whether others who use the CPUs of this machine are looked at, and are told which ones are
    held."""
    run_dir: Path = Path()
    options: Mapping[str, str] = field(default_factory=dict)
    """Values of all options of the executor's kind, by name."""
    tables: Mapping[str, Any] = field(default_factory=dict)
    """What tables of features mean, by their names in the job file."""
    name: str = ""
    """Of the experiment, as a safe directory name."""
    final_run_dir: Path = Path()
    """As ``run_dir``, but also where nothing is to be launched, and ``run_dir`` is another
    folder."""

    @property
    def max_parallel_on_nodes(self) -> int | None:
        """As :attr:`max_parallel`: idle cores are counted on this machine alone."""
        return None if self.max_parallel == "idle" else self.max_parallel

    def local_slots(self, max_parallel: MaxParallel) -> SlotPool:
        """Slots on this machine."""
        locks = load = None
        if self.sees_neighbours:
            run_dir = str(self.final_run_dir.absolute())
            locks = CpuLocks(locks_folder(), experiment=self.name, run_dir=run_dir)
            load = CpuLoad()
        return SlotPool(
            self.machine,
            max_parallel,
            locks=locks,
            load=load,
            # A job that comes later may be the first one that asks for any.
            find_gpus=None if self.machine.gpus else detect_gpus,
        )


class CpuMoves(Protocol):
    """Moves attempts of this machine to other CPUs while they run."""

    def names_on(self, cpus: Collection[int]) -> tuple[str, ...]:
        """Return who else uses ``cpus``, for people."""

    def move(self, handle: Handle, slot: Slot, contended: Collection[int]) -> Moved | None:
        """Move all threads of an attempt and of its descendants to idle CPUs.

        Return None if nothing has changed: nobody else uses ``contended``, no CPU is idle, the
        attempt has ended, or the kernel refuses.

        :param contended: CPUs of ``slot`` on which the attempt waits.
        """


class Backend(Protocol):
    """An executor with its slots. It is made before the robots are examined, and made ready
    afterwards.

    Making it raises :class:`UsageError` if it cannot be used here.
    """

    @property
    def executor(self) -> Executor: ...

    @property
    def slots(self) -> Slots: ...

    @property
    def local_slots(self) -> SlotPool:
        """Slots on this machine, for work after the training."""

    @property
    def cpu_moves(self) -> CpuMoves | None:
        """None where attempts stay on the CPUs that they were given."""

    def ready(self) -> list[str]:
        """Wait until it can be used. Returns warnings for the user. :raises UsageError: it cannot
        be used.
        """

    def problems(self, job: Job) -> list[Problem]:
        """Why ``job`` can never run here; empty if it can."""

    def facts(self) -> dict[str, Any]:
        """A description for ``provenance.json`` and ``--dry-run``."""

    def available_memory_mib(self) -> int:
        """Memory for a further job, where :meth:`Slots.acquire` does not check it."""

    def report_to(self, report: Callable[[str, str], None]) -> None:
        """Call ``report`` with kind and message of every event that concerns a machine."""

    def close(self) -> None: ...


def resource_problem(job: Job, key: str, asked: str, offered: str) -> Problem:
    """What ``resources`` of a job ask for is more than a backend has.

    :param key: the key below ``resources`` with its dot; empty: all of them together.
    :param offered: what the backend has, as a clause.
    """
    each = f" for each of {job.resources.ranks} ranks" if job.resources.ranks > 1 else ""
    return Problem(
        where=f"{job.where}.resources{key}", message=f"asks for {asked}{each}; {offered}"
    )


def amounts(cores: int, gpus: float, memory_mib: int) -> str:
    return f"{count(cores, 'core')}, {count(gpus, 'GPU')} and {memory_mib} MiB"
