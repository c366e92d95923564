"""Racing: which trial of a search gets a further seed. No I/O, no clock, no chance.

The value of a seed is a draw, and the best one seen is mostly that of a trial that had luck. What
trials are worth is therefore estimated by a model of two layers: the values of trials are draws
from one normal distribution, and each seed adds noise that is equally large in all of them. Both
variances come from the values themselves (empirical Bayes; Efron & Morris 1975, "Data Analysis
Using Stein's Estimator and Its Generalizations"). A trial with few seeds is so drawn to the mean of
all.

A further seed goes where it may change which trial is the best: to the leader, or to its closest
rival (top-two sampling; Russo 2016, "Simple Bayesian Algorithms for Best Arm Identification",
without chance as in Jourdan et al. 2022, "Top Two Algorithms Revisited"). Which two these are, a
model says that is given: this one, or a better informed one.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from orchestrator.core.text import decimal
from orchestrator.features.search.declaration.spec import Direction, SearchSpec, sign_of
from orchestrator.features.search.history import Trial

SURE = 2.5
"""A trial is surely worse than the leader if its mean is lower by more than so many standard
deviations of their difference."""
NOISE_AT_FIRST = 0.5
"""The share of the variance of first seeds that is taken for noise before any trial has a second
one: nothing is known of it then."""
WEIGHT_AT_FIRST = 2.0
"""That guess counts as much as so many degrees of freedom of what second seeds say of the noise."""
LEAST_DIFFERENCES = 0.1
"""At least this share of the variance of first seeds, or of the noise where that seems to be larger,
is taken for differences between trials: otherwise all of them would be equal wherever they seem to
be."""

IsKnown: TypeAlias = Callable[[Trial], bool]
"""Whether what has come of a trial may be known where it is decided what is trained next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A trial that may get a further seed."""

    number: int
    """Of the trial."""
    values: Sequence[float]
    """Finite ones, of its seeds that have ended; the larger the better."""
    pending: int = 0
    """How many further seeds of it train or wait, or have ended and are not known yet."""
    lost: int = 0
    """How many of them have failed, or ended without a finite value."""

    @property
    def seeds(self) -> int:
        return len(self.values) + self.pending + self.lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrunken:
    """What a trial is worth, by all values of all trials."""

    mean: float
    """Over its seeds, drawn to that of all trials."""
    error: float | None
    """Standard deviation of the belief in it; None where nothing is known of differences: of a
    single trial, or where all values are equal."""

    def __str__(self) -> str:
        return with_error(self.mean, self.error)


def contenders(trials: Iterable[Trial], direction: Direction, is_known: IsKnown) -> list[Contender]:
    """Those of ``trials`` that have a value, by what is known of their seeds.

    :param trials: none of them is a further seed of another.
    """
    found = [_contender(trial, direction, is_known) for trial in trials if is_known(trial)]
    return [one for one in found if one.values]


def _contender(trial: Trial, direction: Direction, is_known: IsKnown) -> Contender:
    sign = sign_of(direction)
    known = [one for one in trial.further if is_known(one) and one.is_over]
    given = [*trial.of_seeds, *(one.values[0] for one in known if one.values)]
    values = [sign * value for value in given if math.isfinite(value)]
    return Contender(
        number=trial.number,
        values=values,
        pending=len(trial.further) - len(known),
        lost=len(trial.of_seeds) + len(known) - len(values),
    )


def believed(trials: Iterable[Trial], search: SearchSpec | None) -> Mapping[int, Shrunken]:
    """What the seeds of trials say of them, shrunk, by number, in the unit of the objective: trials of
    a search with a race are shown in this order. Empty where it has none.

    :param trials: all that are searched among.
    """
    if search is None or search.race is None:
        return {}
    (direction,) = search.directions
    worth = shrunken(contenders(trials, direction, lambda trial: trial.is_over))
    sign = sign_of(direction)
    return {number: replace(one, mean=sign * one.mean) for number, one in worth.items()}


class Belief(Protocol):
    """What a model says of a trial."""

    @property
    def mean(self) -> float:
        """What it is worth."""

    @property
    def error(self) -> float | None:
        """Standard deviation; None where nothing is known of it."""


Beliefs: TypeAlias = Mapping[int, Belief]
"""By number of the trial."""


def by_belief(trials: Sequence[Trial], worth: Beliefs, direction: Direction) -> list[Trial]:
    """``trials`` in the order of what is believed of them, the best first; after them, and where
    they are equal, in the order that they have.

    :param worth: by number.
    """
    sign = sign_of(direction)
    known = [trial for trial in trials if trial.number in worth]
    others = [trial for trial in trials if trial.number not in worth]
    return [*sorted(known, key=lambda trial: -sign * worth[trial.number].mean), *others]


def shrunken(contenders: Sequence[Contender]) -> Mapping[int, Shrunken]:
    """By number, of those that have a value."""
    valued = [one for one in contenders if one.values]
    if not valued:
        return {}
    between, noise = _variances(valued)
    if len(valued) == 1 or between == 0.0:
        return {
            one.number: Shrunken(mean=statistics.fmean(one.values), error=None) for one in valued
        }
    weights = [1 / (between + noise / len(one.values)) for one in valued]
    means = [statistics.fmean(one.values) for one in valued]
    weighted = (weight * mean for weight, mean in zip(weights, means, strict=True))
    centre = math.fsum(weighted) / math.fsum(weights)
    return {
        one.number: Shrunken(
            mean=centre + between * weight * (mean - centre),
            error=math.sqrt(between * weight * noise / len(one.values)),
        )
        for one, weight, mean in zip(valued, weights, means, strict=True)
    }


def _variances(valued: Sequence[Contender]) -> tuple[float, float]:
    """Of the values of trials, and of the noise of one seed; both are 0 only where all values of
    each trial are equal, and so are the first ones.

    First seeds were trained of every trial, whatever came of it: their variance is the sum of both.
    """
    firsts = [one.values[0] for one in valued]
    whole = _squares(firsts) / max(1, len(firsts) - 1)
    within = math.fsum(_squares(one.values) for one in valued)
    freedom = sum(len(one.values) - 1 for one in valued)
    guess = NOISE_AT_FIRST * whole
    noise = (WEIGHT_AT_FIRST * guess + within) / (WEIGHT_AT_FIRST + freedom)
    return max(whole - noise, LEAST_DIFFERENCES * max(whole, noise)), noise


def _squares(values: Sequence[float]) -> float:
    """The sum of squares around their mean."""
    mean = statistics.fmean(values)
    return math.fsum((value - mean) ** 2 for value in values)


class Rule(Protocol):
    """Decides which trial gets a further seed, as :func:`next_contender` does."""

    def __call__(
        self, contenders: Sequence[Contender], beliefs: Beliefs, *, most_seeds: int
    ) -> int | None:
        """The number of the one that gets a further seed; None where none is worth it.

        :param beliefs: in contenders, the larger the better.
        :param most_seeds: that one of them may have.
        """


def next_contender(
    contenders: Sequence[Contender], beliefs: Beliefs, *, most_seeds: int
) -> int | None:
    """The trial that gets a further seed: of the leader and its closest rival the one that is known
    less, or the other one where that has all of its seeds.

    The closest rival is the one that is least surely worse. None where all are surely worse, or
    where nobody who may be the best may have another seed.
    """
    racers = [
        _Racer.of(one, beliefs[one.number], most_seeds)
        for one in contenders
        if one.number in beliefs
    ]
    if len(racers) < 2:
        return None
    leader = max(racers, key=lambda one: one.mean)
    rivals = sorted(
        ((_distance(leader, one), one) for one in racers if one is not leader),
        key=lambda one: (one[0], one[1].seeds),
    )
    for distance, rival in rivals:
        if distance > SURE:
            return None
        open_ones = [one for one in (leader, rival) if not one.is_full]
        if open_ones:
            return max(open_ones, key=lambda one: (one.error, -one.seeds)).number
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Racer:
    """A contender, and what is believed of it."""

    number: int
    seeds: int
    is_full: bool
    """Whether it may have no further seed."""
    mean: float
    error: float
    """Standard deviation once the seeds that train or wait have values: several jobs at once would
    train the same trial otherwise."""

    @classmethod
    def of(cls, contender: Contender, belief: Belief, most_seeds: int) -> _Racer:
        error = 0.0 if belief.error is None else belief.error
        known = len(contender.values)
        return cls(
            number=contender.number,
            seeds=contender.seeds,
            is_full=contender.seeds >= most_seeds,
            mean=belief.mean,
            error=error * math.sqrt(known / (known + contender.pending)),
        )


def _distance(leader: _Racer, rival: _Racer) -> float:
    """How surely the rival is worse: in standard deviations of their difference."""
    gap = leader.mean - rival.mean
    error = math.hypot(leader.error, rival.error)
    if error == 0.0:
        return 0.0 if gap == 0.0 else math.inf
    return gap / error


def with_error(mean: float, error: float | None) -> str:
    """``"4.50 ± 0.3"``; the mean alone where nothing is known of its error."""
    text = decimal(mean, 2)
    return text if error is None else f"{text} ± {decimal(error, 2)}"
