"""Moves attempts away from CPUs that others have come to use, to idle ones. The weights that they
learn are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from orchestrator.core.job import AttemptOutcome, Job
from orchestrator.core.messages import HIGH_RUN_DELAY_SHARE
from orchestrator.executors.base import CpuMoves, Handle, Sampled
from orchestrator.machine.slots import Slot, part_of_rank
from orchestrator.server.executor import AttemptId

SAMPLES = 2
"""So many samples in a row have to be high."""
REST_S = 30.0
"""After a move, an attempt stays where it is for this time; twice as long after each further
one."""
LONGEST_REST_S = 1800.0
NAME_EVERY_S = 10.0
"""How often it is looked who uses the CPUs of an attempt that waits for them."""
RETRY_S = 2.0
"""How often idle CPUs are looked for."""


class MovableAttempt(Protocol):
    """A running attempt of this machine."""

    id: AttemptId
    job: Job
    handle: Handle
    slot: Slot
    end_reason: AttemptOutcome | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """An attempt has moved."""

    attempt: MovableAttempt
    before: Slot
    after: Slot
    because_of: tuple[str, ...]
    """Who uses the CPUs that it has left, for people."""
    wait_share: float
    """Share of the time that it waited there."""


@dataclass(slots=True, kw_only=True)
class _Watched:
    """What is known of an attempt that may be moved."""

    attempt: MovableAttempt
    high_samples: int = 0
    wait_shares: tuple[float, ...] = ()
    rests_until: float = 0.0
    n_moves: int = 0
    name_at: float = 0.0
    """When it is looked again who uses its CPUs."""

    @property
    def is_waiting(self) -> bool:
        return self.high_samples >= SAMPLES and self.attempt.end_reason is None


@dataclass(slots=True, kw_only=True)
class CpuMover:
    """Decides which attempts move, and when."""

    moves: CpuMoves
    now: Callable[[], float]
    _watched: dict[Handle, _Watched] = field(default_factory=dict, init=False)

    def note_waiting(self, attempt: MovableAttempt, sample: Sampled) -> None:
        """Take in how long the ranks of an attempt have waited for their CPUs."""
        watched = self._watched.setdefault(attempt.handle, _Watched(attempt=attempt))
        watched.wait_shares = sample.wait_shares
        is_high = max(sample.wait_shares, default=0.0) > HIGH_RUN_DELAY_SHARE
        watched.high_samples = watched.high_samples + 1 if is_high else 0

    def look_for_competitors(self) -> list[tuple[MovableAttempt, tuple[str, ...]]]:
        """Return attempts that wait for their CPUs, each with those who use them too, by name.
        It is looked again at one after :data:`NAME_EVERY_S`.
        """
        found = []
        for watched in self._watched.values():
            if watched.is_waiting and self.now() >= watched.name_at:
                watched.name_at = self.now() + NAME_EVERY_S
                if names := self.moves.names_on(watched.attempt.slot.cpus):
                    found.append((watched.attempt, names))
        return found

    def forget(self, attempt: MovableAttempt) -> None:
        """The attempt has ended, and its slot has been released."""
        self._watched.pop(attempt.handle, None)

    def tick(self) -> list[Move]:
        """Move attempts that wait to idle CPUs, if there are any."""
        made = []
        for watched in self._watched.values():
            attempt = watched.attempt
            if (
                not watched.is_waiting
                or not attempt.job.resources.move
                or self.now() < watched.rests_until
            ):
                continue
            before = attempt.slot
            moved = self.moves.move(attempt.handle, before, _contended_cpus(watched))
            if moved is None:
                watched.rests_until = self.now() + RETRY_S
                continue
            attempt.slot = moved.slot
            move = Move(
                attempt=attempt,
                before=before,
                after=moved.slot,
                because_of=moved.because_of,
                wait_share=max(watched.wait_shares),
            )
            made.append(move)
            watched.high_samples = 0
            watched.rests_until = self.now() + min(REST_S * 2**watched.n_moves, LONGEST_REST_S)
            watched.n_moves += 1
        return made


def _contended_cpus(watched: _Watched) -> set[int]:
    """Return the CPUs of the ranks that wait."""
    cpus = watched.attempt.slot.cpus
    ranks = len(watched.wait_shares)
    contended: set[int] = set()
    for rank, share in enumerate(watched.wait_shares):
        if share > HIGH_RUN_DELAY_SHARE:
            contended.update(part_of_rank(cpus, rank, ranks))
    return contended
