"""The plug between supervisor and whatever launches attempts.

Three verbs and an end. One conformance suite (``tests/test_executors.py``) runs over every executor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from orchestrator.core.messages import Progress
from orchestrator.machine.slots import RankSlot


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What an executor needs to start one attempt."""

    job_id: str
    number: int
    job_dir: Path
    """Holds ``spec.json`` and the attempt's own directory, which exists."""
    cpus: tuple[int, ...]
    """Of all ranks, one after the other; likewise ``gpus``."""
    gpus: tuple[str, ...]
    threads: int
    """Of each rank."""
    ranks: int = 1
    """Processes of the attempt: all are started, or none."""
    rank_slots: tuple[RankSlot, ...] = ()
    """Where an executor over several machines starts them; their CPUs and GPUs are chosen there."""
    first_rank: int = 0
    """Of those on this machine, where the others are on other ones."""

    def cpus_of(self, rank: int) -> tuple[int, ...]:
        each = len(self.cpus) // self.ranks
        return self.cpus[rank * each : (rank + 1) * each]

    def gpus_of(self, rank: int) -> tuple[str, ...]:
        each = len(self.gpus) // self.ranks
        return self.gpus[rank * each : (rank + 1) * each]


@dataclass(frozen=True, slots=True)
class Handle:
    """An attempt that was launched. ``pid`` and ``pid_start`` (of rank 0) where it is processes of this machine."""

    job_id: str
    number: int
    pid: int | None = None
    pid_start: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """The attempt has come to run, on another machine than ours or later than it was submitted.

    Of an attempt on this machine that has a pid when it is submitted nothing of the kind is told.
    """

    handle: Handle
    node: str
    """The machine's name, for people; of several ranks on several machines, all names."""
    cpus: tuple[int, ...]
    gpus: tuple[str, ...]
    pid: int | None
    """Of rank 0, on its own machine."""
    pid_start: float | None


@dataclass(frozen=True, slots=True)
class Progressed:
    handle: Handle
    progress: Progress


@dataclass(frozen=True, slots=True)
class Sampled:
    """Resident memory of the attempt, of all its ranks and their descendants, seen from outside."""

    handle: Handle
    rss_mib: float


@dataclass(frozen=True, slots=True)
class Exited:
    """The attempt is over and its process groups are gone; nothing more is heard of it.

    ``returncode`` as in :mod:`subprocess`: negative for a signal; None where it could not be had (node lost).
    ``oom_killed`` when the kernel's out-of-memory killer is known to have struck meanwhile.
    ``rank`` is None where all ended well, or there was one rank only; otherwise both figures are of that rank,
    which is the one that the attempt ended by. ``lost`` says in words why an attempt that no exit code is of has ended:
    its machine is gone, or unfit to run it; another one may do.
    """

    handle: Handle
    returncode: int | None
    oom_killed: bool = False
    rank: int | None = None
    lost: str | None = None


Event: TypeAlias = Placed | Progressed | Sampled | Exited


class Executor(Protocol):
    """Launches attempts and tells what becomes of them. Called from one thread only.

    The ranks of an attempt end together: when one ends otherwise than well the others are killed at once.
    """

    def submit(self, launch: Launch) -> Handle:
        """Start the attempt. :raises OSError: when it could not be started; no rank of it is left then."""
        ...

    def poll(self, timeout_s: float) -> Sequence[Event]:
        """Everything that happened since the last call; waits up to ``timeout_s`` for the first event.

        :raises ClusterLostError: when the machines that do the work can no longer be reached.
        """
        ...

    def cancel(self, handle: Handle, *, kill: bool) -> None:
        """Ask every rank of the attempt to checkpoint and leave, or with ``kill`` end them and their descendants now.

        Either way an :class:`Exited` follows. Unknown and finished handles are ignored.
        """
        ...

    def close(self) -> None:
        """End whatever still runs and give everything back. May be called again."""
        ...
