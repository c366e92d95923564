"""What a sampler is, and those that need no values: random and Sobol points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from orchestrator.features.search.declaration.spec import SearchSpec
from orchestrator.features.search.searcher.space import Point, Space


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOutcome:
    """What is known of a trial that has ended."""

    values: tuple[float, ...] | None
    """One finite number for each objective; None: it has failed."""
    measures: tuple[float, ...] | None = None
    """One finite number for each axis of the archive; None: not known."""
    env_steps: int = 0
    """Of all of its jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FurtherOutcome:
    """What is known of a further seed of a trial, of which there is one objective."""

    value: float
    """Of this seed alone."""
    value_of_trial: float
    """Of all of its seeds so far, this one included."""
    env_steps: int = 0
    """Of this seed alone."""


class Sampler(Protocol):
    """Proposes points. A class of the user's is one, too; only :meth:`ask` and :meth:`tell` are
    needed.
    """

    def ask(self, number: int) -> Point:
        """The point that is proposed next. :param number: of this proposal; numbers rise from 0, and
        those of points that were refused (:meth:`reject`) are of no trial.
        """

    def tell(self, number: int, point: Point, outcome: TrialOutcome) -> None:
        """How the trial has ended that was asked for, or added, with this number; at most once for
        each.
        """

    def add(self, number: int, point: Point) -> None:
        """The trial with this number has a point that the sampler was not asked for: of ``initial``,
        or a random one after many that were refused. One without this method is told nothing of
        such trials.
        """

    def reject(self, number: int, point: Point, excess: Sequence[float] | None) -> None:
        """The point that was asked for with this number violates the constraints, or its body cannot be
        made, and is no trial:
        the next one is asked for with the next number. One without this method hears nothing of it.

        :param excess: by how much it is beyond each constraint, 0 where it satisfies it; None where
            that is not known.
        """

    def tell_again(self, number: int, point: Point, outcome: FurtherOutcome) -> None:
        """Trial ``number``, which the sampler was told of, was trained with a further seed: another
        observation of its point. One without this method hears nothing of it.
        """


class RandomSampler:
    """Points that are independent of each other and of all values: a function of seed and
    number.
    """

    def __init__(self, spec: SearchSpec) -> None:
        self._space = Space(spec.space)
        self._seed = spec.seed

    def ask(self, number: int) -> Point:
        return self._space.decode(
            np.random.default_rng([self._seed, number]).random(len(self._space.dimensions))
        )

    def tell(self, number: int, point: Point, outcome: TrialOutcome) -> None:
        pass

    def add(self, number: int, point: Point) -> None:
        pass

    def reject(self, number: int, point: Point, excess: Sequence[float] | None) -> None:
        pass

    def tell_again(self, number: int, point: Point, outcome: FurtherOutcome) -> None:
        pass


class SobolSampler:
    """Scrambled Sobol points (Owen 1998), which cover the space evenly: a function of seed and
    number.
    """

    def __init__(self, spec: SearchSpec) -> None:
        self._space = Space(spec.space)
        self._seed = spec.seed
        self._first = len(spec.initial)
        """The number of the first point that it is asked for."""

    def ask(self, number: int) -> Point:
        from scipy.stats import qmc

        sequence = qmc.Sobol(len(self._space.dimensions), scramble=True, rng=self._seed)
        if number > self._first:
            sequence.fast_forward(number - self._first)
        return self._space.decode(sequence.random(1)[0])

    def tell(self, number: int, point: Point, outcome: TrialOutcome) -> None:
        pass

    def add(self, number: int, point: Point) -> None:
        pass

    def reject(self, number: int, point: Point, excess: Sequence[float] | None) -> None:
        pass

    def tell_again(self, number: int, point: Point, outcome: FurtherOutcome) -> None:
        pass
