"""Quality-diversity samplers on an archive of pyribs: the best body for each cell of what was
measured.

The archive and the variation of MAP-Elites are those of pyribs. Its emitters of evolution
strategies are told whole batches, which trials that end in any order do not make: CMA-ME is
therefore pyribs' archive with the distribution of :mod:`~orchestrator.features.search.searcher.cmaes_sampler`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from ribs.archives import GridArchive
from ribs.emitters import IsoLineEmitter

from orchestrator.features.search.declaration.spec import SearchSpec, sign_of
from orchestrator.features.search.searcher.cmaes_sampler import AsynchronousCma
from orchestrator.features.search.searcher.simple_samplers import (
    FurtherOutcome,
    RandomSampler,
    TrialOutcome,
)
from orchestrator.features.search.searcher.space import Point, Space

INITIAL = 20
"""Random points of MAP-Elites before it varies what the archive has."""
ISO_SIGMA = 0.05
"""Standard deviation of a variation in all directions (Vassiliades and Mouret 2018)."""
LINE_SIGMA = 0.2
"""Standard deviation of a variation towards another elite (same source)."""


def make_archive(spec: SearchSpec) -> GridArchive:
    """An empty archive with the axes that ``spec`` names, of places in the unit cube."""
    return GridArchive(
        solution_dim=len(spec.space),
        dims=[measure.cells for measure in spec.measures],
        ranges=[(measure.low, measure.high) for measure in spec.measures],
        seed=spec.seed,
    )


class _Elites:
    """The archive, and what it says of every trial."""

    def __init__(self, spec: SearchSpec) -> None:
        self.archive = make_archive(spec)
        self._space = Space(spec.space)
        self._sign = sign_of(spec.directions[0])

    def add(self, point: Point, outcome: TrialOutcome) -> tuple[int, float] | None:
        """How the archive has taken it: 2 for a new cell, 1 for a better elite, 0 otherwise; and by
        how much.

        None: the trial has failed, or was not measured.
        """
        if outcome.values is None or outcome.measures is None:
            return None
        place = np.array(self._space.encode(point))
        value = self._sign * outcome.values[0]
        taken = self.archive.add_single(place, value, np.array(outcome.measures))
        return int(taken["status"]), float(taken["value"])


class MapElitesSampler:
    """MAP-Elites (Mouret and Clune 2015) with the variation Iso+LineDD."""

    def __init__(self, spec: SearchSpec) -> None:
        options = dict(spec.sampler_options)
        n_dimensions = len(spec.space)
        self._space = Space(spec.space)
        self._elites = _Elites(spec)
        self._initial = options.get("initial", INITIAL)
        self._refused = 0
        """How many of its points are no trials."""
        self._random = RandomSampler(spec)
        self._emitter = IsoLineEmitter(
            self._elites.archive,
            iso_sigma=options.get("iso_sigma", ISO_SIGMA),
            line_sigma=options.get("line_sigma", LINE_SIGMA),
            x0=np.full(n_dimensions, 0.5),
            lower_bounds=np.zeros(n_dimensions),
            upper_bounds=np.ones(n_dimensions),
            batch_size=1,
            seed=spec.seed,
        )

    def ask(self, number: int) -> Point:
        trials = number - self._refused
        if trials < self._initial or self._elites.archive.empty:
            return self._random.ask(number)
        return self._space.decode(self._emitter.ask()[0])

    def add(self, number: int, point: Point) -> None:
        """It comes to the archive when it is told."""

    def reject(self, number: int, point: Point, excess: Sequence[float] | None) -> None:
        """The next point is another variation, or another random one."""
        self._refused += 1

    def tell(self, number: int, point: Point, outcome: TrialOutcome) -> None:
        self._elites.add(point, outcome)

    def tell_again(self, number: int, point: Point, outcome: FurtherOutcome) -> None:
        """Its trials are in no race: every cell has a best one."""


class CmaMeSampler:
    """CMA-ME (Fontaine et al. 2020): a distribution that moves to where the archive grows or
    improves.

    A population that has improved nothing is followed by a distribution around one of the elites.
    """

    def __init__(self, spec: SearchSpec) -> None:
        self._space = Space(spec.space)
        self._elites = _Elites(spec)
        self._distribution = AsynchronousCma(self._space, spec.seed, spec.sampler_options)

    def ask(self, number: int) -> Point:
        return self._space.decode(self._distribution.ask(number))

    def add(self, number: int, point: Point) -> None:
        """It comes to the archive when it is told."""

    def reject(self, number: int, point: Point, excess: Sequence[float] | None) -> None:
        self._distribution.drop(number)

    def tell(self, number: int, point: Point, outcome: TrialOutcome) -> None:
        taken = self._elites.add(point, outcome)
        if not self._distribution.knows(number):
            return
        if self._elites.archive.empty:  # nothing is known to be better than this
            self._distribution.drop(number)
            return
        # A failure is behind all others.
        loss = (1.0, 0.0) if taken is None else (-float(taken[0]), -taken[1])
        population = self._distribution.tell(number, loss)
        if population and (population[0][0] >= 0 or self._distribution.has_converged):
            elite = self._elites.archive.sample_elites(1)["solution"][0]
            self._distribution.start(
                np.array(elite, np.float64), self._distribution.population_size
            )

    def tell_again(self, number: int, point: Point, outcome: FurtherOutcome) -> None:
        """Its trials are in no race: every cell has a best one."""
