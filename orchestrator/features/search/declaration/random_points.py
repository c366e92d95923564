"""Random points of a space: a function of a seed and a number."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from orchestrator.features.search.declaration.spec import Dimension


def random_point(space: Sequence[Dimension], seed: int, number: int) -> dict[str, Any]:
    """Drawn evenly from the unit cube."""
    draws = random.Random(f"{seed} {number}")
    return {dimension.key: dimension.at(draws.random()) for dimension in space}


def random_points(space: Sequence[Dimension], seed: int, points: int) -> list[dict[str, Any]]:
    """Those with the numbers from 0 on."""
    return [random_point(space, seed, number) for number in range(points)]
