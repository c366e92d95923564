"""The processes of one attempt, one per rank: all are started or none, they end together, and one
exit counts.

An attempt with one process is a group of one.
"""

from __future__ import annotations

import secrets
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Generic, Protocol, TypeVar

from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.processes.environment_variables import RANKS_SECRET_VARIABLE
from orchestrator.executors import worker_process
from orchestrator.executors.executor import AttemptId, Exited
from orchestrator.executors.launcher import Launch
from orchestrator.executors.worker_process import WorkerProcess
from orchestrator.executors.worker_template import WorkerTemplate


class Severity(IntEnum):
    """The most severe exit of a group counts as its cause."""

    DONE = 0
    STOPPED = 1
    """The other ranks may still be writing a checkpoint."""
    LOST_ANOTHER = 2
    """Another rank is the cause. From here on the rest is killed."""
    FAILED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RankExit:
    """How one rank ended; the fields are those of :class:`Exited`."""

    rank: int
    returncode: int | None
    oom_killed: bool = False
    lost: str | None = None

    @property
    def severity(self) -> Severity:
        if self.lost is not None:
            return Severity.FAILED
        match self.returncode:
            case ExitCode.SUCCEEDED:
                return Severity.DONE
            case ExitCode.INTERRUPTED | ExitCode.PAUSED | None:
                return Severity.STOPPED
            case ExitCode.RANK_LOST:
                return Severity.LOST_ANOTHER
            case _:
                return Severity.FAILED


CAUSE_WITHIN_S = 1.0
"""How long to wait, when ranks report that they lost another one, for the exit of that one, which
is the cause. A killed process may take a while to free its memory before it is over, and other
ranks notice earlier."""


class Member(Protocol):
    """A running rank, or several that can only be ended together."""

    def request_exit(self) -> None: ...

    def request_checkpoint(self) -> None: ...

    def kill(self) -> None: ...


Rank = TypeVar("Rank", bound=Member)


@dataclass(slots=True, kw_only=True, eq=False)
class RankGroup(Generic[Rank]):
    """The running ranks of an attempt, and the exit that the attempt will have."""

    id: AttemptId
    ranks: int
    running: list[Rank]
    _cause: RankExit | None = None
    """The most severe exit so far; the first one of equals."""
    rest_killed: bool = False
    _kill_at: float | None = None
    """When the running ranks are killed (monotonic seconds), if ranks have lost others that may be
    dying."""

    @property
    def waits_for_cause(self) -> bool:
        """Whether :meth:`settle` must be called even if no further rank ends."""
        return self._kill_at is not None and not self.rest_killed

    def request_exit(self) -> None:
        for worker in self.running:
            worker.request_exit()

    def request_checkpoint(self) -> None:
        """Of one rank: the ranks agree on what any of them is asked for."""
        for worker in self.running[:1]:
            worker.request_checkpoint()

    def kill(self) -> None:
        for worker in self.running:
            worker.kill()

    def note(self, exit_: RankExit) -> None:
        """Take account of a rank that is over, unless it was killed here because another one had
        failed.
        """
        if self.rest_killed and exit_.returncode == -signal.SIGKILL:
            return
        if self._cause is None or exit_.severity > self._cause.severity:
            self._cause = exit_

    def settle(self) -> Exited | None:
        """The exit of the attempt when no rank runs any more. Kills the running ranks when another
        one has failed.

        To be called after :meth:`note` of every rank that has ended, so that no consequence counts
        as the cause.
        """
        if not self.running:
            return self._exited_event()
        if self._cause is not None and self._cause.severity >= Severity.LOST_ANOTHER:
            now = time.monotonic()
            if self._kill_at is None:
                self._kill_at = now + CAUSE_WITHIN_S
            if self._cause.severity is Severity.FAILED or now >= self._kill_at:
                self.rest_killed = True
                self.kill()
        return None

    def _exited_event(self) -> Exited:
        cause = self._cause
        if cause is None:
            return Exited(self.id, ExitCode.SUCCEEDED)
        if cause.returncode in (ExitCode.SUCCEEDED, ExitCode.PAUSED):
            return Exited(self.id, cause.returncode)
        rank = None
        if self.ranks > 1:
            # Without an exit code the exit record decides, and rank 0's says whether the training
            # was done.
            rank = 0 if cause.returncode is None else cause.rank
        return Exited(
            self.id,
            cause.returncode,
            oom_killed=cause.oom_killed,
            rank=rank,
            lost=cause.lost,
        )


def new_secret() -> str:
    """A secret shared by the ranks of one attempt: 256 random bits."""
    return secrets.token_hex(32)


def start(
    command: Sequence[str],
    launch: Launch,
    *,
    token: str,
    added: Mapping[str, str | None],
    template: WorkerTemplate | None = None,
) -> RankGroup[WorkerProcess]:
    """Start every rank of an attempt, each with a token below ``token``. :raises OSError: no rank
    is left.

    :param template: see :func:`orchestrator.executors.worker_process.start`.
    """
    started: list[WorkerProcess] = []
    if launch.ranks > 1:
        added = {RANKS_SECRET_VARIABLE: new_secret(), **added}
    try:
        for rank in range(launch.ranks):
            rank_token = f"{token}/{rank}" if launch.ranks > 1 else token
            started.append(
                worker_process.start(
                    command, launch, rank, token=rank_token, added=added, template=template
                )
            )
    except BaseException:
        for worker in started:
            worker.kill()
        for worker in started:
            worker.reap()
        raise
    return RankGroup(id=launch.id, ranks=launch.ranks, running=started)
