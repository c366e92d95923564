"""The ranks of an attempt: they notice each other's end, and the real group of ranks says how the
attempt has ended.
"""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

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
    ranks: Ranks
    rank: int
    pid: int
    ended: Callable[[int], None]
    is_alive: bool = True
    rss_mib: float = 50.0

    def request_exit(self) -> None:
        self.ranks.worker.request_exit()

    def request_checkpoint(self) -> None:
        self.ranks.worker.request_checkpoint()

    def kill(self) -> None:
        self.exit(-signal.SIGKILL)

    def exit(self, code: int) -> None:
        if not self.is_alive:
            return
        self.is_alive = False
        self.world.lives.pop(self.pid, None)
        self.world.log(f"rank {self.rank} of {self.ranks.group.handle.job_id} ends with {code}")
        self.ended(code)


Process: TypeAlias = Worker | Follower


@dataclass(slots=True, kw_only=True, eq=False)
class Ranks:
    """All ranks of an attempt."""

    world: World
    group: RankGroup[Process]
    send: Callable[[Exited], None]
    worker: Worker = field(init=False)
    """Rank 0."""
    followers: list[Follower] = field(default_factory=list)
    """Rank 1, rank 2, and so on."""
    lost_at: float | None = None
    """When the first of them has ended."""
    is_over: bool = False

    @property
    def is_complete(self) -> bool:
        return len(self.followers) == self.group.ranks - 1

    @property
    def rss_mib(self) -> float:
        return sum(process.rss_mib for process in self.group.running)

    def lose_one(self) -> None:
        """Kill the last rank, which its supervisor does not know."""
        self.followers[-1].kill()

    def ended(self, rank: int, code: int, *, oom_killed: bool = False) -> None:
        """The process of ``rank`` is gone."""
        world, group = self.world, self.group
        self.lost_at = world.now if self.lost_at is None else self.lost_at
        group.running = [process for process in group.running if process.is_alive]
        is_cause = oom_killed and not group.rest_killed
        group.note(RankExit(rank=rank, returncode=code, oom_killed=is_cause))
        world.after(0.0, self._settle)  # when all are known that end at this moment
        agreed = code if code in AGREED and not rank else int(ExitCode.RANK_LOST)
        for process in group.running:
            tell = process.lose_ranks if isinstance(process, Worker) else process.exit
            world.after(NOTICE_S, functools.partial(tell, agreed))

    def _settle(self) -> None:
        if self.is_over:
            return
        if (exited := self.group.settle()) is not None:
            self.is_over = True
            self.send(exited)
        elif self.group.waits_for_cause:
            self.world.after(CAUSE_WITHIN_S + 0.01, self._settle)
