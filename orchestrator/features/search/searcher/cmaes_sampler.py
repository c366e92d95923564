"""CMA-ES, by the library cmaes, for trials that end in any order."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from cmaes import CMA
from numpy.typing import NDArray

from orchestrator.features.search.declaration.spec import SearchSpec, sign_of
from orchestrator.features.search.searcher.simple_samplers import FurtherOutcome, TrialOutcome
from orchestrator.features.search.searcher.space import Point, Space

SIGMA = 0.25
"""Initial standard deviation in the unit cube."""
OLDEST = 4
"""Generations after which a trial no longer counts: its point was drawn from a distribution that is
too different."""

Place: TypeAlias = NDArray[np.float64]
"""``(n_dimensions,)`` in the unit cube."""
Loss: TypeAlias = tuple[float, ...]
"""What is minimised, in the order of importance."""


class AsynchronousCma:
    """A normal distribution in the unit cube, adapted whenever as many trials as make a population
    have been told.

    A trial may be one of a later generation than that of the distribution which it was drawn from.
    """

    def __init__(self, space: Space, seed: int, options: Mapping[str, Any]) -> None:
        n_dimensions = len(space.dimensions)
        self._space = space
        self._seed = seed
        self._sigma = options.get("sigma", SIGMA)
        self._adapts_learning_rate = options.get("lr_adapt", False)
        self._bounds = np.tile([0.0, 1.0], (n_dimensions, 1))
        self._asked: dict[int, tuple[int, Place]] = {}
        """Trials that are not told yet: the generation in which each was drawn, and its place."""
        self._told: list[tuple[int, Place, Loss]] = []
        self._generation = 0
        self._is_one_point = False
        """Whether all trials of the population that was told last had the same values."""
        self._has_adapted = False
        self.start(np.full(n_dimensions, 0.5), options.get("population_size"))

    def start(self, mean: Place, population_size: int | None) -> None:
        """Begin around ``mean``; no trial that was asked for before counts. None: as many as suit
        the dimensions.
        """
        self._strategy = CMA(
            mean=mean,
            sigma=self._sigma,
            bounds=self._bounds,
            population_size=population_size,
            lr_adapt=self._adapts_learning_rate,
        )
        self._generation += OLDEST + 1
        self._is_one_point = False
        self._has_adapted = False
        self._told = []

    def _make_symmetric(self) -> None:
        """Pickling keeps one triangle of a covariance that is symmetric up to rounding: a copy has
        to draw the same, and to adapt in the same way.
        """
        self._strategy = pickle.loads(pickle.dumps(self._strategy))

    @property
    def population_size(self) -> int:
        return int(self._strategy.population_size)

    @property
    def has_converged(self) -> bool:
        # The strategy is told ranks, and does not know that values have few digits: its own limits
        # come late or never.
        return self._is_one_point or bool(self._strategy.should_stop())

    def ask(self, number: int) -> Place:
        # A function of the number, as a strategy that was unpickled has no state of its generator.
        seed = np.random.SeedSequence([self._seed, number]).generate_state(1)[0]
        self._strategy.reseed_rng(int(seed))
        place: Place = self._strategy.ask()
        self._asked[number] = self._generation, place
        return place

    @property
    def has_adapted(self) -> bool:
        """Whether it has been adapted since it began around its place."""
        return self._has_adapted

    def knows(self, number: int) -> bool:
        """Whether the trial was asked for, and is not told yet."""
        return number in self._asked

    def drop(self, number: int) -> None:
        """Nothing is known of this trial."""
        del self._asked[number]

    def tell(self, number: int, loss: Loss) -> Sequence[Loss]:
        """The losses of the population with which the distribution was adapted; empty if it was
        not.
        """
        self._told.append((*self._asked.pop(number), loss))
        self._told = [told for told in self._told if told[0] >= self._generation - OLDEST]
        if len(self._told) < self.population_size:
            return ()
        ranked = sorted(self._told, key=lambda told: told[2])
        self._make_symmetric()  # asking has changed the covariance
        self._strategy.tell([(place, float(rank)) for rank, (_, place, _) in enumerate(ranked)])
        self._make_symmetric()
        self._is_one_point = (
            len({tuple(self._space.decode(place).values()) for _, place, _ in ranked}) == 1
        )
        self._has_adapted = True
        self._generation += 1
        self._told = []
        return [loss for _, _, loss in ranked]

    def tell_again(self, point: Point, loss: Loss) -> None:
        """The loss of the trial with this point is now this, as far as the distribution was not
        adapted with it yet.
        """
        self._told = [
            (generation, place, loss if self._space.decode(place) == point else before)
            for generation, place, before in self._told
        ]


class CmaesSampler:
    """A distribution that has converged is followed by one with twice the population, around
    another place.

    (IPOP-CMA-ES, Auger and Hansen 2005.)
    """

    def __init__(self, spec: SearchSpec) -> None:
        self._space = Space(spec.space)
        self._seed = spec.seed
        self._sign = -sign_of(spec.directions[0])
        self._distribution = AsynchronousCma(self._space, spec.seed, spec.sampler_options)
        self._worst: float | None = None
        self._losses: dict[int, float] = {}
        """Of the trials that have a value, by number, over the seeds that are known."""

    def add(self, number: int, point: Point) -> None:
        """Nothing is known of it before it is told."""

    def reject(self, number: int, point: Point, excess: Sequence[float] | None) -> None:
        """The distribution is cut off at the constraints."""
        self._distribution.drop(number)

    def ask(self, number: int) -> Point:
        return self._space.decode(self._distribution.ask(number))

    def tell(self, number: int, point: Point, outcome: TrialOutcome) -> None:
        if outcome.values is not None:
            loss = self._sign * outcome.values[0]
            self._note_worst(loss)
            self._losses[number] = loss
        elif self._worst is not None:
            loss = self._worst
        else:
            if self._distribution.knows(number):
                self._distribution.drop(number)
            return
        if not self._distribution.knows(number):
            if not self._distribution.has_adapted and self._is_best(number):
                self._begin_around(point)
        elif self._distribution.tell(number, (loss,)) and self._distribution.has_converged:
            place = np.random.default_rng([self._seed, number]).random(len(self._space.dimensions))
            self._distribution.start(place, 2 * self._distribution.population_size)

    def tell_again(self, number: int, point: Point, outcome: FurtherOutcome) -> None:
        loss = self._sign * outcome.value_of_trial
        self._note_worst(loss)
        self._losses[number] = loss
        self._distribution.tell_again(point, (loss,))

    def _is_best(self, number: int) -> bool:
        """Whether this trial is better than all before it, as far as they are known now."""
        return number == min(self._losses, key=self._losses.__getitem__, default=None)

    def _note_worst(self, loss: float) -> None:
        """Failed trials have the largest loss of all."""
        self._worst = loss if self._worst is None else max(self._worst, loss)

    def _begin_around(self, point: Point) -> None:
        """What was told of worse points is forgotten, which is less than a population."""
        place = np.array(self._space.encode(point))
        self._distribution.start(place, self._distribution.population_size)
