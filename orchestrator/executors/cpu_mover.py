"""Moves attempts away from CPUs that others have come to use, to idle ones. The weights that they
learn are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from orchestrator.core.messages import HIGH_RUN_DELAY_SHARE
from orchestrator.executors.executor import AttemptId, Contended, Event, Moved, Sampled
from orchestrator.executors.processes import Processes
from orchestrator.executors.slotted import SlottedAttempt
from orchestrator.machine.slots import SlotPool, part_of_rank

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


@dataclass(slots=True, kw_only=True)
class _Waits:
    """How an attempt waits for its CPUs."""

    high_samples: int = 0
    wait_shares: tuple[float, ...] = ()
    rests_until: float = 0.0
    n_moves: int = 0
    name_at: float = 0.0
    """When it is looked again who uses its CPUs."""


@dataclass(slots=True, kw_only=True)
class CpuMover:
    """Decides which attempts move, and when."""

    slots: SlotPool
    processes: Processes
    now: Callable[[], float]
    _waits: dict[AttemptId, _Waits] = field(default_factory=dict, init=False)

    def tick(
        self, events: Iterable[Event], running: Mapping[AttemptId, SlottedAttempt]
    ) -> list[Event]:
        """Name the others on CPUs for which attempts wait, and move these to idle CPUs if there are
        any. Return what has happened.

        :param events: those since the last call.
        """
        for event in events:
            if isinstance(event, Sampled):
                waits = self._waits.setdefault(event.attempt, _Waits())
                waits.wait_shares = event.wait_shares
                is_high = max(event.wait_shares, default=0.0) > HIGH_RUN_DELAY_SHARE
                waits.high_samples = waits.high_samples + 1 if is_high else 0
        found: list[Event] = []
        for id_, waits in list(self._waits.items()):
            attempt = running.get(id_)
            if attempt is None:  # it has ended
                del self._waits[id_]
            elif waits.high_samples >= SAMPLES and not attempt.is_ending:
                found += self._name_others(attempt, waits)
                if attempt.job.resources.move and self.now() >= waits.rests_until:
                    found += self._move(attempt, waits)
        return found

    def _name_others(self, attempt: SlottedAttempt, waits: _Waits) -> list[Event]:
        if self.now() < waits.name_at:
            return []
        waits.name_at = self.now() + NAME_EVERY_S
        names = self.slots.look().names_on(attempt.slot.cpus)
        return [Contended(attempt.id, names)] if names else []

    def _move(self, attempt: SlottedAttempt, waits: _Waits) -> list[Event]:
        before = attempt.slot
        moved = self.slots.move(
            before,
            _contended_cpus(before.cpus, waits.wait_shares),
            lambda to: self.processes.move(attempt.id, to),
        )
        if moved is None:
            waits.rests_until = self.now() + RETRY_S
            return []
        attempt.slot = moved.slot
        waits.high_samples = 0
        waits.rests_until = self.now() + min(REST_S * 2**waits.n_moves, LONGEST_REST_S)
        waits.n_moves += 1
        event = Moved(
            attempt=attempt.id,
            before=before.cpus,
            after=moved.slot.cpus,
            because_of=moved.because_of,
            wait_share=max(waits.wait_shares),
        )
        return [event]


def _contended_cpus(cpus: tuple[int, ...], wait_shares: tuple[float, ...]) -> set[int]:
    """Return the CPUs of the ranks that wait."""
    contended: set[int] = set()
    for rank, share in enumerate(wait_shares):
        if share > HIGH_RUN_DELAY_SHARE:
            contended.update(part_of_rank(cpus, rank, len(wait_shares)))
    return contended
