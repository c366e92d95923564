"""The grid of ``[jobs.evaluate]``: changed robots and disturbances at which a trained policy is
evaluated.

A value is written as in ``model``: ``[2.0, 3.0]`` are values, and ``["*0.7", "*1", "*1.3"]``
factors of the robot's own.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from orchestrator.core.decoding import Table
from orchestrator.core.numbers.distributions import (
    NOISE,
    Distribution,
    check_disturbance,
    constant,
    disturbance,
)

GridValue: TypeAlias = float | str
"""A number, or a factor such as ``"*1.2"``."""
FACTOR = re.compile(r"\*\s*([-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)\Z")
"""Text that multiplies the robot's own value; the group is the number."""
MOST_POINTS = 1_000
"""Combinations of one grid, each of which is evaluated."""
_EXPECTED = 'a list of at least two values, such as [0.4, 0.8], or of factors, such as ["*0.7", "*1", "*1.3"]'


@dataclass(frozen=True, slots=True)
class GridAxis:
    """A key of the grid and its values."""

    key: str
    values: tuple[GridValue, ...]
    """As written: all numbers, or all factors."""

    @property
    def multiplies(self) -> bool:
        """Whether its values are factors of the robot's own value."""
        return isinstance(self.values[0], str)

    @property
    def range(self) -> Distribution:
        """A distribution from which each of the values may come."""
        numbers = list(map(_number, self.values))
        return self._drawn_from(min(numbers), max(numbers))

    def at(self, value: GridValue) -> Distribution:
        """What an environment at ``value`` draws from: a distribution that gives this value alone,
        or noise of this standard deviation.
        """
        number = _number(value)
        if self._is_noise:  # its mean and its standard deviation
            return self._drawn_from(0.0, number)
        return self._drawn_from(number, number)

    @property
    def _is_noise(self) -> bool:
        return disturbance(self.key) == NOISE

    def _drawn_from(self, first: float, second: float) -> Distribution:
        if self.multiplies:
            kind = "scale"
        elif self._is_noise:
            kind = "normal"
        else:
            kind = "choice"
        return Distribution(kind, (constant(first), constant(second)))


@dataclass(frozen=True, slots=True)
class GridPoint:
    """One of the changed robots."""

    at: Mapping[str, GridValue]
    """Key → its value as written."""
    drawn_from: Mapping[str, Distribution]
    """Key → :meth:`GridAxis.at`."""


@dataclass(frozen=True)
class EvaluationGrid:
    """All combinations of the values of its keys."""

    axes: tuple[GridAxis, ...]
    """Sorted by key; at least one."""

    @classmethod
    def parse(cls, evaluate: Table) -> EvaluationGrid | None:
        """The table ``evaluate`` of a job, with dotted keys; None where it is empty.

        :raises ValueError: a value does not fit.
        """
        if not evaluate:
            return None
        return cls(tuple(parse_axis(key, evaluate[key]) for key in sorted(evaluate)))

    @functools.cached_property
    def points(self) -> tuple[GridPoint, ...]:
        """All combinations, of which neighbours differ in the last key."""
        combinations = itertools.product(*(axis.values for axis in self.axes))
        return tuple(self._point(values) for values in combinations)

    def _point(self, values: Sequence[GridValue]) -> GridPoint:
        """:param values: one of each axis."""
        pairs = list(zip(self.axes, values, strict=True))
        return GridPoint(
            at={axis.key: value for axis, value in pairs},
            drawn_from={axis.key: axis.at(value) for axis, value in pairs},
        )


def parse_axis(key: str, values: Any) -> GridAxis:
    """:raises ValueError: they are no values of this key."""
    if not isinstance(values, list | tuple) or len(values) < 2:
        raise ValueError(f"expected {_EXPECTED}, found {values!r:.60}")
    axis = GridAxis(key, tuple(values))
    numbers = list(map(_number, values))
    if len({isinstance(value, str) for value in values}) > 1 or len({*numbers}) < len(numbers):
        raise ValueError("expected different values, all of them numbers or all of them factors")
    if disturbance(key) is not None:
        if axis.multiplies or min(numbers) < 0:
            raise ValueError("expected numbers of at least 0, and no factors")
        for value in values:
            check_disturbance(key, axis.at(value))
    return axis


def number_of_points(evaluate: Table) -> int:
    """How many combinations a grid with dotted keys has; 0 for an empty one."""
    return math.prod(map(len, evaluate.values())) if evaluate else 0


def _number(value: Any) -> float:
    """:raises ValueError: it is neither a finite number nor a factor."""
    match = FACTOR.match(value) if isinstance(value, str) else None
    number = float(match[1]) if match else value
    if isinstance(number, bool) or not isinstance(number, int | float) or not abs(number) < 1e300:
        raise ValueError(f'{value!r:.60}: expected a finite number, or a factor such as "*1.2"')
    return float(number)
