"""Sobol points from a given one on, so that a table is made in parts."""

from __future__ import annotations

from typing import Any

from scipy.stats import qmc


class SobolFrom:
    """The points of ``sampler = "sobol"`` with the same seed, from number ``first`` on."""

    def __init__(self, *, space: Any, seed: int, directions: Any, first: int = 0) -> None:
        self._space = space
        self._seed = seed
        self._first = first

    def ask(self, number: int) -> dict[str, Any]:
        sequence = qmc.Sobol(len(self._space.dimensions), scramble=True, rng=self._seed)
        if place := self._first + number:
            sequence.fast_forward(place)
        return dict(self._space.decode(sequence.random(1)[0]))

    def tell(self, number: int, point: Any, outcome: Any) -> None:
        """What became of a point changes none of the others."""
