"""The ranks of an attempt: they notice each other's end, and the real group of ranks says how the
attempt has ended.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from orchestrator.core.exit_codes import ExitCode
from orchestrator.executors.base import Exited, Handle
from orchestrator.executors.rank_group import CAUSE_WITHIN_S, RankExit, RankGroup
from tests.simulation.scenario import SimulatedJob
from tests.simulation.worker import Worker
from tests.simulation.world import World

NOTICE_S = 0.3
"""After which a rank notices that another one has ended."""
AGREED = (ExitCode.SUCCEEDED, ExitCode.INTERRUPTED, ExitCode.PAUSED)
"""With these all ranks end together."""


@dataclass(slots=True, kw_only=True, eq=False)
class Follower:
    """The process of a rank other than 0, which does what rank 0 does."""

    world: World
    team: Team
    job: SimulatedJob
    rank: int
    pid: int
    pid_start: float
    ended: Callable[[int], None]
    node: str = ""
    cpus: tuple[int, ...] = ()
    ranks_here: int = 0
    """The ranks for whose room on its machine it stands; rank 0 stands for others beside it."""
    is_alive: bool = True
    is_apart: bool = False
    is_orphan: bool = False
    frozen_until: float = 0.0
    rss_mib: float = 50.0

    def ask(self) -> None:
        if self.team.worker is not None:
            self.team.worker.ask()

    def save(self) -> None:
        if self.team.worker is not None:
            self.team.worker.saves_next = True

    def kill(self) -> None:
        self.exit(-signal.SIGKILL)

    def exit(self, code: int) -> None:
        if not self.is_alive:
            return
        self.is_alive = False
        self.world.lives.pop(self.pid, None)
        self.world.log(f"rank {self.rank} of {self.team.handle.job_id} ends with {code}")
        self.team.has_ended(self.rank, code)
        self.ended(code)


Process: TypeAlias = Worker | Follower


@dataclass(slots=True, kw_only=True, eq=False)
class Team:
    """All ranks of an attempt, on one machine or on several."""

    world: World
    handle: Handle
    ranks: int
    worker: Worker | None = None
    followers: dict[int, Follower] = field(default_factory=dict)
    lost_at: float | None = None
    """When the first of them has ended."""

    @property
    def is_complete(self) -> bool:
        return self.worker is not None and len(self.followers) == self.ranks - 1

    def lose_one(self) -> None:
        """The last rank is killed, and not by its supervisor."""
        self.followers[self.ranks - 1].kill()

    def has_ended(self, rank: int, code: int) -> None:
        self.lost_at = self.world.now if self.lost_at is None else self.lost_at
        others: list[Process] = [one for one in self.followers.values() if one.rank != rank]
        if rank and self.worker is not None:
            others.insert(0, self.worker)
        for other in others:
            agreed = code if code in AGREED and not rank else int(ExitCode.RANK_LOST)
            self._tell(other, agreed)

    def _tell(self, process: Process, code: int) -> None:
        when = max(self.world.now + NOTICE_S, process.frozen_until)
        if isinstance(process, Worker):
            self.world.at(when, process.lose_ranks)
        else:
            self.world.at(when, lambda: process.exit(code))


@dataclass(slots=True, kw_only=True, eq=False)
class Member:
    """See :class:`orchestrator.executors.rank_group.Member`."""

    process: Process

    def request_exit(self) -> None:
        self.process.ask()

    def request_checkpoint(self) -> None:
        self.process.save()

    def kill(self) -> None:
        self.process.world.after(0.0, self.process.kill)  # the group goes through its members


@dataclass(slots=True, kw_only=True, eq=False)
class RanksOfMachine:
    """The ranks of an attempt on one machine, which end together."""

    world: World
    group: RankGroup[Any]
    send: Callable[[Exited], None]
    processes: list[Process] = field(default_factory=list)
    is_over: bool = False

    def add(self, process: Process) -> None:
        self.processes.append(process)
        self.group.running.append(Member(process=process))

    def ended(self, rank: int, code: int, *, oom_killed: bool = False) -> None:
        """The process of ``rank`` is gone."""
        self.group.running = [one for one in self.group.running if one.process.is_alive]
        is_cause = oom_killed and not self.group.rest_killed
        self.group.note(RankExit(rank=rank, returncode=code, oom_killed=is_cause))
        self.world.after(0.0, self._settle)  # when all are known that end at this moment

    @property
    def rss_mib(self) -> float:
        return sum(process.rss_mib for process in self.processes if process.is_alive)

    def kill(self) -> None:
        for process in list(self.processes):
            process.kill()

    def _settle(self) -> None:
        if self.is_over:
            return
        if (exited := self.group.settle()) is not None:
            self.is_over = True
            self.send(exited)
        elif self.group.waits_for_cause:
            self.world.after(CAUSE_WITHIN_S + 0.01, self._settle)
