"""Samplers of this program on a space that has a body at some places only.

A sampler proposes a point; the nearest body that was not taken is tried in its place, and the
sampler is told of that body: its value is not that of the point.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from orchestrator.features.search.declaration.spec import SearchSpec
from orchestrator.features.search.searcher import samplers
from orchestrator.features.search.searcher.samplers import Sampler, TrialOutcome
from orchestrator.features.search.searcher.space import Space

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
    """Asks ``sampler``, and takes the nearest bodies."""

    sampler: Sampler
    space: Space
    bodies: Bodies

    def ask(self, number: int) -> int:
        """The body of trial ``number``."""
        point = self.sampler.ask(number)
        return self.bodies.take_nearest(np.array(self.space.encode(point)))

    def tell(self, number: int, body: int, outcome: TrialOutcome) -> None:
        point = self.space.decode(self.bodies.places[body])
        self.sampler.tell(number, point, outcome)


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
