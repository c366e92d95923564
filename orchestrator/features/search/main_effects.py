"""How much of what trainings reach one parameter explains by itself."""

from __future__ import annotations

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
    """Return the main effect of a parameter, from ``(its value, outcome)`` of trainings.

    ``share``: of the variance of the outcomes' ranks, the part between groups of trainings with
    similar values, less what chance makes of it (epsilon squared: Kelley 1935); at least 0.
    ``correlation``: Spearman's, of ordered values. None: it cannot be told.

    :param ordered: whether values have an order; else each of them stands for a choice.
    """
    from scipy import stats

    n = len(pairs)
    places = [place for place, _ in pairs]
    outcomes = [outcome for _, outcome in pairs]
    labels = bins(places) if ordered else places
    groups: dict[float, list[float]] = {}
    for label, outcome in zip(labels, outcomes, strict=True):
        groups.setdefault(label, []).append(outcome)
    if n < FEWEST_VALUES or not 1 < len(groups) < n or len(set(outcomes)) == 1:
        return {"share": None, "correlation": None, "n": n}
    h = float(stats.kruskal(*groups.values()).statistic)
    share = max(0.0, (h - len(groups) + 1) / (n - len(groups)))
    correlation = float(stats.spearmanr(places, outcomes).statistic) if ordered else None
    return {"share": share, "correlation": correlation, "n": n}


def bins(places: Sequence[float]) -> list[float]:
    """Return the number of the group of each of ``places``: groups of equal size, of neighbours;
    equal ones stay together.
    """
    from scipy import stats

    number = max(2, min(MOST_BINS, len(places) // FEWEST_IN_BIN))
    ranks = stats.rankdata(places) - 1
    return [float(int(rank * number // max(1, len(places)))) for rank in ranks]
