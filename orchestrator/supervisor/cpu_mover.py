"""Moves attempts away from CPUs that others have come to use, to idle ones. The weights that they
learn are the same.

An attempt that waits for its CPU more than it should, in several samples in a row, has idle CPUs
reserved, which other runs see. It is moved there if they are still idle when the load has been
measured anew: of two runs that want the same CPUs, neither gets them at once, and they do not
follow each other around.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from orchestrator.core.messages import HIGH_RUN_DELAY_SHARE
from orchestrator.executors.base import CpuMoves, Handle, Sampled
from orchestrator.machine.slots import CpuReservation, Slot, part_of_rank
from orchestrator.supervisor.active_attempts import ActiveAttempt, ActiveAttempts

SAMPLES = 2
"""So many samples in a row have to be high."""
REST_S = 30.0
"""After a move, an attempt stays where it is for this time; twice as long after each further
one."""
LONGEST_REST_S = 1800.0
NAME_EVERY_S = 10.0
"""How often it is looked who uses the CPUs of an attempt that waits for them."""
RETRY_S = (1.0, 6.0)
"""After a move that was given up, a random time in this range: two runs must not go on in step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """An attempt has moved."""

    attempt: ActiveAttempt
    before: Slot
    after: Slot
    because_of: tuple[str, ...]
    """Who uses the CPUs that it has left, for people."""
    wait_share: float
    """Share of the time that it waited there."""


@dataclass(slots=True, kw_only=True)
class _Watched:
    """What is known of an attempt that may be moved."""

    high_samples: int = 0
    wait_shares: tuple[float, ...] = ()
    rests_until: float = 0.0
    n_moves: int = 0
    reservation: CpuReservation | None = None
    name_at: float = 0.0
    """When it is looked again who uses its CPUs."""


@dataclass(slots=True, kw_only=True)
class CpuMover:
    """Decides which attempts move, and when."""

    moves: CpuMoves
    active: ActiveAttempts
    now: Callable[[], float]
    _watched: dict[Handle, _Watched] = field(default_factory=dict, init=False)
    _waiting: dict[Handle, ActiveAttempt] = field(default_factory=dict, init=False)
    """Those that wait for their CPUs, or have others reserved: a turn of the loop looks at no
    more."""

    def note_waiting(self, attempt: ActiveAttempt, sample: Sampled) -> None:
        """Take in how long the ranks of an attempt have waited for their CPUs."""
        watched = self._watched.setdefault(attempt.handle, _Watched())
        watched.wait_shares = sample.wait_shares
        is_high = max(sample.wait_shares, default=0.0) > HIGH_RUN_DELAY_SHARE
        watched.high_samples = watched.high_samples + 1 if is_high else 0
        if watched.high_samples >= SAMPLES:
            self._waiting[attempt.handle] = attempt
        elif watched.reservation is None:
            self._waiting.pop(attempt.handle, None)

    def look_for_competitors(self) -> list[tuple[ActiveAttempt, tuple[str, ...]]]:
        """Attempts that wait for their CPUs, each with those who use them too, by name. It is
        looked again at one after :data:`NAME_EVERY_S`.
        """
        found = []
        for handle, attempt in self._waiting.items():
            watched = self._watched[handle]
            if watched.high_samples < SAMPLES or self.now() < watched.name_at:
                continue
            watched.name_at = self.now() + NAME_EVERY_S
            if names := self.moves.competitors_on(attempt.slot.cpus):
                found.append((attempt, names))
        return found

    def forget(self, attempt: ActiveAttempt) -> None:
        """The attempt has ended, and its slot has been released."""
        self._watched.pop(attempt.handle, None)
        self._waiting.pop(attempt.handle, None)

    def tick(self) -> list[Move]:
        """Reserve CPUs for the attempts that wait, and move those whose reserved CPUs are still
        idle.
        """
        made = []
        for handle, attempt in self._waiting.items():
            watched = self._watched[handle]
            if attempt.end_reason is not None:
                continue
            if watched.reservation is None:
                self._reserve(attempt, watched)
            elif self.moves.is_measured_since(watched.reservation):
                move = self._settle(attempt, watched, watched.reservation)
                if move is not None:
                    made.append(move)
        return made

    def _reserve(self, attempt: ActiveAttempt, watched: _Watched) -> None:
        """Reserve idle CPUs for an attempt that may move, if there are any."""
        if (
            not attempt.job.resources.move
            or self.now() < watched.rests_until
            or watched.high_samples < SAMPLES
        ):
            return
        watched.reservation = self.moves.reserve_idle(
            attempt.slot, _contended_cpus(attempt, watched.wait_shares)
        )
        if watched.reservation is None:
            watched.rests_until = self.now() + random.uniform(*RETRY_S)

    def _settle(
        self, attempt: ActiveAttempt, watched: _Watched, reservation: CpuReservation
    ) -> Move | None:
        """Move an attempt to its reserved CPUs if it still waits and these are still idle."""
        watched.reservation = None
        if watched.high_samples == 0 or not self.moves.is_still_idle(reservation):
            self.moves.give_up(reservation)
            watched.rests_until = self.now() + random.uniform(*RETRY_S)
            return None
        wait_share = max(watched.wait_shares)
        watched.high_samples = 0
        watched.rests_until = self.now() + min(REST_S * 2**watched.n_moves, LONGEST_REST_S)
        watched.n_moves += 1
        before = attempt.slot
        after = self.moves.move(attempt.handle, reservation)
        if after is None:
            return None
        self.active.note_move(attempt, after)
        return Move(
            attempt=attempt,
            before=before,
            after=after,
            because_of=reservation.because_of,
            wait_share=wait_share,
        )


def _contended_cpus(attempt: ActiveAttempt, wait_shares: tuple[float, ...]) -> set[int]:
    """The CPUs of the ranks that wait."""
    contended: set[int] = set()
    for rank, share in enumerate(wait_shares):
        if share > HIGH_RUN_DELAY_SHARE:
            contended.update(part_of_rank(attempt.slot.cpus, rank, len(wait_shares)))
    return contended
