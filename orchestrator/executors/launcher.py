"""The interface of launchers, which start attempts in slots that they have been given.

One conformance suite (``tests/helpers/launcher_conformance.py``) runs over every launcher.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from orchestrator.executors.executor import AttemptId, Event
from orchestrator.machine.slots import RankSlot, part_of_rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What a launcher needs to start one attempt."""

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
    """For a launcher over several machines: where the ranks start. Their CPUs and GPUs are chosen
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

    @property
    def id(self) -> AttemptId:
        return AttemptId(self.job_id, self.number)

    def cpus_of(self, rank: int) -> Sequence[int]:
        return part_of_rank(self.cpus, rank, self.ranks)

    def gpus_of(self, rank: int) -> Sequence[str]:
        return part_of_rank(self.gpus, rank, self.ranks)


class Launcher(Protocol):
    """Launches attempts and reports their events. Called from one thread only.

    The ranks of an attempt end together: when one fails, the others are killed at once.
    """

    @property
    def never_forks(self) -> str:
        """Why it execs every worker; empty if workers can be forked."""

    def prepare_to_fork(self) -> bool:
        """Begin, or go on, to prepare what workers are forked from. Return at once.

        Returns False while launches with ``fork`` should wait, since they would be exec'ed now.
        :meth:`poll` returns when they need not wait any more.
        """

    def submit(self, launch: Launch) -> AttemptId:
        """Start the attempt. :raises OSError: it could not be started, and no rank of it is
        left.
        """

    def poll(self, timeout_s: float) -> Sequence[Event]:
        """Return all events since the last call; wait up to ``timeout_s`` for the first one.

        :raises ClusterLostError: no attempt can be reached any more.
        """

    def cancel(self, attempt: AttemptId, *, kill: bool) -> None:
        """Ask every rank to save a checkpoint and exit, or with ``kill`` kill the ranks and their
        descendants now.

        An :class:`.Exited` follows either way. Unknown and finished attempts are ignored.
        """

    def checkpoint(self, attempt: AttemptId) -> None:
        """Ask the attempt to write a checkpoint at the end of its iteration, and to go on.

        Ignored for attempts that are unknown or finished, and before the attempt runs on its node.
        """

    def close(self) -> None:
        """Kill everything that still runs and release all resources. May be called again."""
