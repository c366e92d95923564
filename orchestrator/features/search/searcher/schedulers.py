"""Schedulers: which of the trials that have paused at a rung train on, and how far. No I/O, no
clock, no chance.

A rung is a number of env_steps at which trials pause and are compared; rungs are counted from 0.
The decisions depend on nothing but the calls. A scheduler is therefore rebuilt by the same calls in
the same order.
"""

from __future__ import annotations

import math
import statistics
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from orchestrator.features.search.declaration.spec import (
    Direction,
    SchedulerSpec,
    TrialOrder,
    sign_of,
)

FIRST_GO_ON = 5
"""So many trials are not stopped by the median at a rung: there are too few values to compare
with."""


@dataclass(frozen=True, slots=True)
class Promotion:
    """A trial that has paused at a rung trains on."""

    trial: int
    rung: int | None
    """The rung at which it pauses next; None: it trains to its end."""


class Scheduler(Protocol):
    """Trials are numbered from 0. A call that is repeated has no effect."""

    def reached(self, trial: int, rung: int, value: float | None) -> None:
        """``trial`` has paused at ``rung``. :param value: None: it has none, and counts as the
        worst.
        """

    def ended(self, trial: int) -> None:
        """``trial`` was trained to its end. It counts where it paused, and is promoted no more."""

    def failed(self, trial: int) -> None:
        """A job of ``trial`` has failed or been cancelled. It is promoted no more."""

    def retried(self, trial: int) -> None:
        """``trial``, which had failed, is trained again, and may be promoted."""

    def no_more(self, trials: int) -> None:
        """There will be ``trials`` trials altogether."""

    def promoted(self, trial: int, rung: int | None) -> None:
        """``trial`` goes on, as :class:`Promotion` says."""

    def decisions(self) -> list[Promotion]:
        """Those that go on now and are not :meth:`promoted` yet; those of higher rungs first."""


def make(spec: SchedulerSpec, order: TrialOrder, rungs: int, direction: Direction) -> Scheduler:
    """The scheduler that the job file asks for.

    With ``order = "fixed"`` trials are compared in brackets of so many that one of each is trained
    to its end. One in ``factor`` goes on at each rung; with ``kind = "median"`` one in two.

    :param rungs: how many rungs there are; with none of them nothing is decided.
    """
    if order == "fixed":
        return SuccessiveHalving(
            rungs=rungs,
            factor=spec.reduction,
            direction=direction,
            bracket=spec.reduction**rungs,
        )
    if spec.kind == "median":
        return MedianStopping(rungs=rungs, direction=direction)
    return SuccessiveHalving(rungs=rungs, factor=spec.factor, direction=direction, bracket=None)


@dataclass(slots=True)
class _Rung:
    ranked: list[tuple[float, int]] = field(default_factory=list)
    """``(-score, trial)`` of all that have reached it: the best first, of equal ones that with the
    smaller number."""
    reached: set[int] = field(default_factory=set)
    entered: set[int] = field(default_factory=set)
    """Those that have reached it, are on the way to it, or ended on the way."""
    awaited: set[int] = field(default_factory=set)
    """Those that were promoted, or retried, and are on the way to it."""
    promoted: set[int] = field(default_factory=set)
    """Those that have gone on from it."""


@dataclass(slots=True, kw_only=True)
class _Bracket:
    """Trials that are compared with each other."""

    factor: int
    is_eager: bool
    """Whether the best go on before all of them have come."""
    size: int | None
    """How many trials it will have; None: not known yet."""
    rungs: list[_Rung]
    ended: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    """Those of them that have failed."""

    def reached(self, trial: int, rung: int, score: float) -> None:
        for below in self.rungs[:rung]:
            below.promoted.add(trial)
        for passed in self.rungs[: rung + 1]:
            passed.entered.add(trial)
        here = self.rungs[rung]
        here.awaited.discard(trial)
        if trial not in here.reached:
            here.reached.add(trial)
            insort(here.ranked, (-score, trial))

    def end(self, trial: int) -> None:
        self.ended.add(trial)
        self.rungs[0].entered.add(trial)
        for rung in self.rungs:
            rung.awaited.discard(trial)

    def fail(self, trial: int) -> None:
        self.end(trial)
        self.failed.add(trial)

    def retry(self, trial: int) -> None:
        self.ended.discard(trial)
        self.failed.discard(trial)
        for rung in self.rungs:
            if trial in rung.entered and trial not in rung.reached:
                rung.awaited.add(trial)

    def promoted(self, trial: int, rung: int | None) -> None:
        following = len(self.rungs) if rung is None else rung
        self.rungs[following - 1].promoted.add(trial)
        if rung is not None and trial not in self.rungs[rung].reached:
            self.rungs[rung].entered.add(trial)
            self.rungs[rung].awaited.add(trial)

    def decisions(self) -> list[Promotion]:
        """Those that go on now; of one rung the best first."""
        promotions: list[Promotion] = []
        is_open = self.size is None or len(self.rungs[0].entered) < self.size
        places: float = math.inf  # at the rung, for those that go on from the one below
        for number, rung in enumerate(self.rungs):
            is_open = is_open or bool(rung.awaited)  # whether further trials may come here
            if is_open:
                quota = len(rung.ranked) // self.factor if self.is_eager else 0
                best = [trial for _, trial in rung.ranked[:quota]]
            else:
                quota = math.ceil(self._compared_at(rung, places) / self.factor)
                best = [trial for _, trial in rung.ranked if trial not in self.failed][:quota]
                places = quota
            chosen = [
                trial for trial in best if trial not in rung.promoted and trial not in self.ended
            ]
            following = number + 1 if number + 1 < len(self.rungs) else None
            promotions += [Promotion(trial, following) for trial in chosen]
            is_open = is_open or bool(chosen)
        return promotions

    def _compared_at(self, rung: _Rung, places: float) -> float:
        """How many trials are compared at a rung to which no further ones come.

        A trial that has failed counts where no other one has taken its place.

        :param places: how many the rung below has for those that go on to this one.
        """
        left = len(rung.entered - self.failed)
        return min(len(rung.entered), max(left, places))


@dataclass(slots=True, kw_only=True)
class SuccessiveHalving:
    """The best of each rung go on: one in ``factor``.

    With brackets it is synchronous (Jamieson & Talwalkar 2016): at each rung all trials of a
    bracket are waited for. Those that failed count as the worst. The order in which trials come has
    no effect.

    Without, it is asynchronous (ASHA, Li et al. 2020): whenever it is asked, those go on that
    belong to the best ``1/factor`` of all that have come to a rung so far. When no trial can come
    to a rung any more, the share is rounded up instead of down: even in a short search the best
    trial is trained to its end. From then on those that failed count as the worst here, too.
    """

    rungs: int
    factor: int
    direction: Direction
    bracket: int | None
    """Trials of a bracket, which have consecutive numbers; None: all trials are compared,
    asynchronously."""
    _trials: int | None = field(default=None, init=False)
    _brackets: dict[int, _Bracket] = field(default_factory=dict, init=False)

    def reached(self, trial: int, rung: int, value: float | None) -> None:
        self._bracket_of(trial).reached(trial, rung, _score(value, self.direction))

    def ended(self, trial: int) -> None:
        if self.rungs:
            self._bracket_of(trial).end(trial)

    def failed(self, trial: int) -> None:
        if self.rungs:
            self._bracket_of(trial).fail(trial)

    def retried(self, trial: int) -> None:
        if self.rungs:
            self._bracket_of(trial).retry(trial)

    def no_more(self, trials: int) -> None:
        self._trials = trials
        for number, bracket in self._brackets.items():
            bracket.size = self._size(number)

    def promoted(self, trial: int, rung: int | None) -> None:
        self._bracket_of(trial).promoted(trial, rung)

    def decisions(self) -> list[Promotion]:
        every = [self._brackets[number].decisions() for number in sorted(self._brackets)]
        return _highest_first([promotion for each in every for promotion in each])

    def _bracket_of(self, trial: int) -> _Bracket:
        number = 0 if self.bracket is None else trial // self.bracket
        if number not in self._brackets:
            self._brackets[number] = _Bracket(
                factor=self.factor,
                is_eager=self.bracket is None,
                size=self._size(number),
                rungs=[_Rung() for _ in range(self.rungs)],
            )
        return self._brackets[number]

    def _size(self, number: int) -> int | None:
        """How many trials bracket ``number`` will have; None: not known yet."""
        if self.bracket is None:
            return self._trials
        if self._trials is None:
            return self.bracket
        return min(self.bracket, self._trials - number * self.bracket)


@dataclass(slots=True, kw_only=True)
class MedianStopping:
    """A trial goes on that is at least as good as the median of those that reached the rung before
    it.

    It is decided once, when the trial comes (after the median rule of Golovin et al. 2017); the
    first :data:`FIRST_GO_ON` trials of a rung go on.
    """

    rungs: int
    direction: Direction
    _scores: list[list[float]] = field(init=False)
    """Of each rung, rising."""
    _reached: set[tuple[int, int]] = field(default_factory=set, init=False)
    """Trials and rungs."""
    _promotions: dict[int, Promotion] = field(default_factory=dict, init=False)
    """Those that go on unless they have ended, by trial."""
    _ended: set[int] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self._scores = [[] for _ in range(self.rungs)]

    def reached(self, trial: int, rung: int, value: float | None) -> None:
        scores = self._scores[rung]
        score = _score(value, self.direction)
        if (trial, rung) in self._reached:
            return
        if len(scores) < FIRST_GO_ON or score >= _median(scores):
            following = rung + 1 if rung + 1 < self.rungs else None
            self._promotions[trial] = Promotion(trial, following)
        self._reached.add((trial, rung))
        insort(scores, score)

    def ended(self, trial: int) -> None:
        self._ended.add(trial)

    def failed(self, trial: int) -> None:
        """Nobody takes its place: each trial is compared by itself."""
        self._ended.add(trial)

    def retried(self, trial: int) -> None:
        self._ended.discard(trial)

    def no_more(self, trials: int) -> None:
        """Nobody waits for further trials."""

    def promoted(self, trial: int, rung: int | None) -> None:
        if self._promotions.get(trial) == Promotion(trial, rung):
            del self._promotions[trial]

    def decisions(self) -> list[Promotion]:
        return _highest_first(
            [one for one in self._promotions.values() if one.trial not in self._ended]
        )


def _median(rising: Sequence[float]) -> float:
    """Of numbers that are sorted already: only those in the middle are looked at."""
    middle = len(rising) // 2
    return statistics.median(rising[middle - 1 : len(rising) - middle + 1])


def _highest_first(promotions: list[Promotion]) -> list[Promotion]:
    """Those to the end before those to a rung, and those to a higher one before those to a lower."""

    def rung(promotion: Promotion) -> float:
        return math.inf if promotion.rung is None else promotion.rung

    return sorted(promotions, key=rung, reverse=True)


def _score(value: float | None, direction: Direction) -> float:
    """Larger is better; minus infinity for what is no number."""
    if value is None or not math.isfinite(value):
        return -math.inf
    return sign_of(direction) * value
