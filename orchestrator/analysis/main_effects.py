"""How much of what trainings reach one parameter explains by itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypedDict

FEWEST_VALUES = 12
"""Without so many nothing is said of the effect of a parameter."""
MOST_BINS = 8
FEWEST_IN_BIN = 6


class MainEffect(TypedDict):
    """The effect of one parameter on one outcome; ``n``: values that it is estimated from."""

    share: float | None
    correlation: float | None
    n: int


def main_effect(pairs: Sequence[tuple[float, float]], *, ordered: bool) -> MainEffect:
    """The main effect of a parameter, from ``(its value, outcome)`` of trainings.

    ``share``: of the variance of the outcomes' ranks, the part between groups of trainings with
    similar values, less what chance makes of it (epsilon squared: Kelley 1935); at least 0.
    ``correlation``: Spearman's, of ordered values. None: it cannot be told.

    :param ordered: whether values have an order; else each of them stands for a choice.
    """
    ranks = _ranks([outcome for _, outcome in pairs])
    places = [place for place, _ in pairs]
    labels = bins(places) if ordered else places
    groups: dict[float, list[float]] = {}
    for label, rank in zip(labels, ranks, strict=True):
        groups.setdefault(label, []).append(rank)
    n = len(pairs)
    mean = (len(pairs) - 1) / 2
    total = sum((rank - mean) ** 2 for rank in ranks)
    if n < FEWEST_VALUES or not 1 < len(groups) < n or not total:
        return {"share": None, "correlation": None, "n": n}
    between = sum(len(group) * (sum(group) / len(group) - mean) ** 2 for group in groups.values())
    by_chance = (len(groups) - 1) * (total - between) / (n - len(groups))
    correlation = None
    if ordered:
        own = [rank - mean for rank in _ranks(places)]
        common = sum(one * (other - mean) for one, other in zip(own, ranks, strict=True))
        correlation = common / math.sqrt(total * sum(rank * rank for rank in own))
    return {"share": max(0.0, (between - by_chance) / total), "correlation": correlation, "n": n}


def _ranks(values: Sequence[float]) -> list[float]:
    """From 0; equal values have the mean of their ranks."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    first = 0
    while first < len(order):
        last = first
        while last + 1 < len(order) and values[order[last + 1]] == values[order[first]]:
            last += 1
        for place in order[first : last + 1]:
            ranks[place] = (first + last) / 2
        first = last + 1
    return ranks


def bins(places: Sequence[float]) -> list[float]:
    """The number of the group of each of ``places``: groups of equal size, of neighbours; equal
    ones stay together.
    """
    number = max(2, min(MOST_BINS, len(places) // FEWEST_IN_BIN))
    return [float(int(rank * number // max(1, len(places)))) for rank in _ranks(places)]
