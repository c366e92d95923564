"""The ranks of an attempt: they notice each other's end, and the real group of ranks says how the
attempt has ended.
"""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from orchestrator.core.exit_codes import ExitCode
from orchestrator.executors.base import Exited
from orchestrator.executors.rank_group import CAUSE_WITHIN_S, RankExit, RankGroup
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
    rank: int
    pid: int
    ended: Callable[[int], None]
    is_alive: bool = True
    rss_mib: float = 50.0

    def ask(self) -> None:
        if self.team.worker is not None:
            self.team.worker.ask()

    def save(self) -> None:
        if self.team.worker is not None:
            self.team.worker.save()

    def kill(self) -> None:
        self.exit(-signal.SIGKILL)

    def exit(self, code: int) -> None:
        if not self.is_alive:
            return
        self.is_alive = False
        self.world.lives.pop(self.pid, None)
        self.world.log(f"rank {self.rank} of {self.team.job_id} ends with {code}")
        self.team.has_ended(self.rank, code)
        self.ended(code)


Process: TypeAlias = Worker | Follower


@dataclass(slots=True, kw_only=True, eq=False)
class Team:
    """All ranks of an attempt, as they know each other."""

    world: World
    job_id: str
    ranks: int
    worker: Worker | None = None
    followers: dict[int, Follower] = field(default_factory=dict)
    lost_at: float | None = None
    """When the first of them has ended."""

    @property
    def is_complete(self) -> bool:
        return self.worker is not None and len(self.followers) == self.ranks - 1

    def lose_one(self) -> None:
        """Kill the last rank, which its supervisor does not know."""
        self.followers[self.ranks - 1].kill()

    def has_ended(self, rank: int, code: int) -> None:
        self.lost_at = self.world.now if self.lost_at is None else self.lost_at
        when = self.world.now + NOTICE_S
        if rank and self.worker is not None:
            self.world.at(when, self.worker.lose_ranks)
        agreed = code if code in AGREED and not rank else int(ExitCode.RANK_LOST)
        for follower in self.followers.values():
            if follower.rank != rank:
                self.world.at(when, functools.partial(follower.exit, agreed))


@dataclass(slots=True, kw_only=True, eq=False)
class Member:
    """See :class:`orchestrator.executors.rank_group.Member`."""

    process: Process

    def request_exit(self) -> None:
        self.process.ask()

    def request_checkpoint(self) -> None:
        self.process.save()

    def kill(self) -> None:
        self.process.world.after(0.0, self.process.kill)  # the group iterates over its members


@dataclass(slots=True, kw_only=True, eq=False)
class Ranks:
    """The ranks of an attempt, as their executor knows them."""

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
        for process in self.processes:
            process.kill()

    def _settle(self) -> None:
        if self.is_over:
            return
        if (exited := self.group.settle()) is not None:
            self.is_over = True
            self.send(exited)
        elif self.group.waits_for_cause:
            self.world.after(CAUSE_WITHIN_S + 0.01, self._settle)
