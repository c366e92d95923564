"""The interface between the supervisor and what launches attempts.

One conformance suite (``tests/process/test_executors.py``) runs over every executor.
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
    """Holds ``spec.json`` and the directory of the attempt, which exists."""
    cpus: tuple[int, ...]
    """The CPUs of rank 0, then those of rank 1, and so on. ``gpus`` is ordered in the same way."""
    gpus: tuple[str, ...]
    threads: int
    """Number of threads of each rank."""
    ranks: int = 1
    """Processes of the attempt. Either all of them are started or none."""
    rank_slots: tuple[RankSlot, ...] = ()
    """For an executor over several machines: where the ranks start. Their CPUs and GPUs are chosen there."""
    first_rank: int = 0
    """The first rank on this machine, where other ranks run on other machines."""

    def cpus_of(self, rank: int) -> tuple[int, ...]:
        each = len(self.cpus) // self.ranks
        return self.cpus[rank * each : (rank + 1) * each]

    def gpus_of(self, rank: int) -> tuple[str, ...]:
        each = len(self.gpus) // self.ranks
        return self.gpus[rank * each : (rank + 1) * each]


@dataclass(frozen=True, slots=True)
class Handle:
    """Identifies a launched attempt. ``pid`` and ``pid_start`` are those of rank 0, for processes of this machine."""

    job_id: str
    number: int
    pid: int | None = None
    pid_start: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """The attempt has started on its machine. Not sent for attempts that have a pid when they are submitted."""

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
    """Resident memory of all ranks and their descendants."""

    handle: Handle
    rss_mib: float


@dataclass(frozen=True, slots=True)
class Exited:
    """The attempt is over and its process groups are gone. It is the attempt's last event."""

    handle: Handle
    returncode: int | None
    """As in :mod:`subprocess`: negative for a signal. None where it is not known (node lost)."""
    oom_killed: bool = False
    rank: int | None = None
    """The rank that made the attempt end, and that ``returncode`` belongs to. None with one rank, or on success."""
    lost: str | None = None
    """Why there is no exit code: its machine is lost or cannot run it. The attempt may succeed on another machine."""


Event: TypeAlias = Placed | Progressed | Sampled | Exited


class Executor(Protocol):
    """Launches attempts and reports their events. Called from one thread only.

    The ranks of an attempt end together: when one fails, the others are killed at once.
    """

    def submit(self, launch: Launch) -> Handle:
        """Start the attempt. :raises OSError: it could not be started, and no rank of it is left."""

    def poll(self, timeout_s: float) -> Sequence[Event]:
        """All events since the last call; waits up to ``timeout_s`` for the first one. :raises ClusterLostError:"""

    def cancel(self, handle: Handle, *, kill: bool) -> None:
        """Ask every rank to checkpoint and leave, or with ``kill`` kill the ranks and their descendants now.

        An :class:`Exited` follows either way. Unknown and finished handles are ignored.
        """

    def close(self) -> None:
        """Kill everything that still runs and release all resources. May be called again."""
