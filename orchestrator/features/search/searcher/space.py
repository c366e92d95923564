"""The space of a search: points of the job file's values, and their places in the unit cube."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from orchestrator.features.search.declaration.spec import Dimension, identity

Point: TypeAlias = Mapping[str, Any]
"""Dotted key → value as the job file would have it, before ``multiply``."""


@dataclass(frozen=True, slots=True)
class Space:
    """The dimensions of a search, in the order of the job file."""

    dimensions: tuple[Dimension, ...]

    def decode(self, unit: Iterable[float]) -> dict[str, Any]:
        """The point at ``unit``, one number from 0 to 1 for each dimension; numbers beyond are
        moved to the border.
        """
        pairs = zip(self.dimensions, unit, strict=True)
        return {
            dimension.key: dimension.at(min(max(float(value), 0.0), 1.0))
            for dimension, value in pairs
        }

    def encode(self, point: Point) -> tuple[float, ...]:
        """Where ``point`` lies in the unit cube; ``decode`` of that is ``point`` again, up to its
        last digits.

        :raises KeyError, ValueError: it is no point of this space.
        """
        return tuple(dimension.unit(point[dimension.key]) for dimension in self.dimensions)

    def distance(self, one: Point, other: Point) -> float:
        """Distance in the unit cube; different choices are as far apart as the ends of a range."""
        return math.hypot(*(self._apart(dimension, one, other) for dimension in self.dimensions))

    @staticmethod
    def _apart(dimension: Dimension, one: Point, other: Point) -> float:
        values = one[dimension.key], other[dimension.key]
        if dimension.choices:
            return float(identity(values[0]) != identity(values[1]))
        return dimension.unit(values[0]) - dimension.unit(values[1])
