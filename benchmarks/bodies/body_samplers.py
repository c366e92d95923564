"""Samplers of this program on a space that has a body at some places only.

A sampler proposes a point; the nearest body that was not taken is tried in its place, and the
sampler is told of that body: its value is not that of the point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from orchestrator.features.search.declaration.spec import SearchSpec
from orchestrator.features.search.searcher import samplers
from orchestrator.features.search.searcher.samplers import FurtherOutcome, Sampler, TrialOutcome
from orchestrator.features.search.searcher.space import Point, Space

Floats = npt.NDArray[np.float64]


@dataclass(slots=True, kw_only=True)
class Bodies:
    """Which bodies there are, and which were taken."""

    places: Floats
    """``(bodies, dimensions)``, in the unit cube."""
    _is_taken: npt.NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self._is_taken = np.zeros(len(self.places), bool)

    def take_nearest(self, place: Floats) -> int:
        """The body that is nearest to ``place`` of those not taken yet, of equal ones the first; it
        is taken then.
        """
        distances = ((self.places - place) ** 2).sum(axis=1)
        body = int(np.where(self._is_taken, np.inf, distances).argmin())
        assert not self._is_taken[body], "a body is left"
        self._is_taken[body] = True
        return body


@dataclass(slots=True, kw_only=True)
class BodySampler:
    """Asks ``sampler``, takes the nearest bodies, and proposes their points: a sampler itself."""

    sampler: Sampler
    space: Space
    bodies: Bodies
    taken: list[int] = field(default_factory=list, init=False)
    """The body of each trial."""

    def ask(self, number: int) -> Point:
        asked = self.sampler.ask(number)
        body = self.bodies.take_nearest(np.array(self.space.encode(asked)))
        self.taken.append(body)
        return self.space.decode(self.bodies.places[body])

    def tell(self, number: int, point: Point, outcome: TrialOutcome) -> None:
        self.sampler.tell(number, point, outcome)

    def tell_again(self, number: int, point: Point, outcome: FurtherOutcome) -> None:
        self.sampler.tell_again(number, point, outcome)

    def add(self, number: int, point: Point) -> None:
        """No body is added by hand."""

    def reject(self, number: int, point: Point, excess: Sequence[float] | None) -> None:
        """Bodies of a table violate no constraints."""


def body_sampler(spec: SearchSpec, places: Floats) -> BodySampler:
    """The sampler that a job file asks for, on ``places``."""
    sampler: Sampler
    match spec.sampler:
        case "tpe" | "gp":
            from benchmarks.bodies.samplers_at_bodies import OptunaAtBodies

            sampler = OptunaAtBodies(spec)
        case "cmaes":
            from benchmarks.bodies.samplers_at_bodies import CmaesAtBodies

            sampler = CmaesAtBodies(spec)
        case _:
            sampler = samplers.make(spec)
    return BodySampler(sampler=sampler, space=Space(spec.space), bodies=Bodies(places=places))
