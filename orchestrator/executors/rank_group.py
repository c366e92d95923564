"""The processes of one attempt, a rank each: started all or none, ended together, with one end for all of them.

An attempt of one process is a gang of one.
"""

from __future__ import annotations

import secrets
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from orchestrator.core.environment import RANKS_SECRET_VARIABLE
from orchestrator.core.exit_codes import ExitCode
from orchestrator.executors import process
from orchestrator.executors.base import Exited, Handle, Launch
from orchestrator.executors.process import WorkerProcess


@dataclass(frozen=True, slots=True, kw_only=True)
class RankExit:
    """How one rank ended; the figures as in :class:`Exited`."""

    rank: int
    returncode: int | None
    oom_killed: bool = False
    lost: str | None = None

    @property
    def weight(self) -> int:
        """How much it says about why the attempt ended. From :data:`FAILED` on the others are not waited for."""
        if self.lost is not None:
            return FAILED + 1
        match self.returncode:
            case ExitCode.SUCCEEDED:
                return 0
            case ExitCode.INTERRUPTED | None:  # all leave together: another may be writing what they leave behind
                return 1
            case ExitCode.RANK_LOST:
                return FAILED
            case _:
                return FAILED + 1


FAILED = 2
CAUSE_WITHIN_S = 1.0
"""For the rank that another has lost to be found dead by itself: what it died of says more than that it is lost. A
killed process may give its memory back for a while, and only then be over, when others have noticed long ago."""


class Member(Protocol):
    """A rank, or some that share a fate, that runs."""

    def ask_to_leave(self) -> None: ...

    def kill(self) -> None: ...


Rank = TypeVar("Rank", bound=Member)


@dataclass(slots=True, kw_only=True, eq=False)
class RankGroup(Generic[Rank]):
    """The ranks of an attempt that still run, and the end that the attempt will have."""

    handle: Handle
    ranks: int
    running: list[Rank]
    _end: RankExit | None = None
    """Of those so far the one that says most; of equals the first."""
    rest_killed: bool = False
    """Whether we have ended what still runs, because of one that had failed."""
    _kill_at: float | None = None
    """By the monotonic clock: when what still runs is ended, where some have lost others that may be dying."""

    @property
    def waits(self) -> bool:
        """Whether :meth:`settle` is to be called even if no further rank ends."""
        return self._kill_at is not None and not self.rest_killed

    def ask_to_leave(self) -> None:
        for worker in self.running:
            worker.ask_to_leave()

    def kill(self) -> None:
        for worker in self.running:
            worker.kill()

    def note(self, end: RankExit) -> None:
        """Take account of a rank that is over. What we killed ourselves because of another's end says nothing."""
        if self.rest_killed and end.returncode == -signal.SIGKILL:
            return
        if self._end is None or end.weight > self._end.weight:
            self._end = end

    def settle(self) -> Exited | None:
        """The end of the attempt, when no rank runs any more; otherwise, when one has failed, the others are killed.

        To be called when every end that is known has been noted: of several at once the cause is told from the
        consequences.
        """
        if not self.running:
            return self._exited()
        if self._end is not None and self._end.weight >= FAILED:
            now = time.monotonic()
            if self._kill_at is None:
                self._kill_at = now + CAUSE_WITHIN_S
            if self._end.weight > FAILED or now >= self._kill_at:
                self.rest_killed = True
                self.kill()
        return None

    def _exited(self) -> Exited:
        end = self._end
        if end is None or end.returncode == ExitCode.SUCCEEDED:
            return Exited(self.handle, ExitCode.SUCCEEDED)
        # Where exit codes cannot be had the records speak, and that of rank 0 says whether it was done.
        rank = 0 if end.returncode is None else end.rank
        return Exited(self.handle, end.returncode, end.oom_killed, rank if self.ranks > 1 else None, end.lost)


def new_secret() -> str:
    """For the ranks of one attempt: 256 random bits."""
    return secrets.token_hex(32)


def start(
    command: Sequence[str], launch: Launch, *, token: str, added: Mapping[str, str | None]
) -> RankGroup[WorkerProcess]:
    """Start every rank of an attempt.

    :param token: of the attempt; of several ranks each has one of its own below it.
    :raises OSError: when one could not be started; nothing is left of the others then.
    """
    started: list[WorkerProcess] = []
    if launch.ranks > 1:
        added = {RANKS_SECRET_VARIABLE: new_secret(), **added}
    try:
        for rank in range(launch.ranks):
            its_token = f"{token}/{rank}" if launch.ranks > 1 else token
            started.append(process.start(command, launch, rank, token=its_token, added=added))
    except BaseException:
        for worker in started:
            worker.kill()
        for worker in started:
            worker.reap()
        raise
    first = started[0]
    return RankGroup(
        handle=Handle(launch.job_id, launch.number, first.pid, first.pid_start), ranks=launch.ranks, running=started
    )
