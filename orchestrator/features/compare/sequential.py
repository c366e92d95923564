"""A test of two groups that is looked at while seeds are added, with an honest error: pure
functions of the values so far.

Whoever tests again after each new seed, and stops at the first p below 0.05, is wrong far more
often than in 5 % of cases. Here the bounds of the test are those of a group-sequential design (S.
K. Wang, A. A. Tsiatis, "Approximately optimal one-parameter boundaries for group sequential
trials", Biometrics 43, 1987, with Δ = 0.25, between O'Brien and Fleming's and Pocock's): they are
wide at the first looks, and chance crosses one of them at any look up to the last in 5 % of cases.
For each look there is a *repeated confidence interval* (C. Jennison, B. W. Turnbull, "Interim
analyses: the repeated confidence interval approach", J. R. Stat. Soc. B 51, 1989): in 95 % of
cases, those of all looks hold the true difference together. So the interval holds whenever one
stops, and for whatever reason, and a decision is read from it: both ends above zero, both below, or
both within a declared smallest difference.

The statistic is Welch's t, of groups with equally many values. Its p is turned into the z that has
the same p, and the bounds of z were made by simulation of this very procedure with normal values.
They are those of a look at every seed and of the most unequal spreads; with fewer looks, or spreads
more alike, the error is smaller.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, TypeAlias

from orchestrator.analysis.statistics import Estimate

LEAST_SEEDS = 3
"""Of each group at the first look."""
MOST_SEEDS = 200
"""The largest budget whose bounds are known."""
DEFAULT_MOST_SEEDS = 30
"""Finds a difference of one standard deviation in nine of ten cases."""
ERROR = 0.05
SHAPE = 0.25
"""Δ of Wang and Tsiatis: bounds of z fall with the seeds to the power of SHAPE − 1/2."""
LEAST_P = 0.001

ERRORS = (0.5, 0.2, 0.1, ERROR, 0.02, 0.01, 0.005, LEAST_P)
BOUNDS = {
    3: (0.689, 1.308, 1.678, 2.002, 2.378, 2.630, 2.870, 3.363),
    5: (0.970, 1.558, 1.907, 2.209, 2.558, 2.796, 3.011, 3.476),
    8: (1.107, 1.665, 1.996, 2.283, 2.621, 2.856, 3.075, 3.527),
    12: (1.179, 1.718, 2.039, 2.319, 2.663, 2.896, 3.112, 3.574),
    16: (1.213, 1.734, 2.055, 2.337, 2.665, 2.897, 3.112, 3.574),
    24: (1.247, 1.756, 2.074, 2.349, 2.676, 2.901, 3.115, 3.583),
    32: (1.268, 1.772, 2.085, 2.359, 2.698, 2.917, 3.128, 3.597),
    48: (1.290, 1.783, 2.089, 2.365, 2.708, 2.928, 3.150, 3.597),
    100: (1.308, 1.797, 2.107, 2.381, 2.709, 2.943, 3.150, 3.616),
    200: (1.331, 1.813, 2.131, 2.390, 2.747, 2.983, 3.150, 3.633),
}
"""Budget in seeds → for each of ERRORS the bound of z at the last look, which chance crosses, there
or at an earlier look, in so many cases. A budget between two has the bounds of the next larger one,
which are wider. All are 2 % wider than in the simulation, so that its chance makes none too
narrow."""

Outcome: TypeAlias = Literal["higher", "lower", "no difference", "not decided", "open"]
"""Of B against A. ``not decided``: the budget is spent; ``open``: it goes on."""
DECISIONS: Sequence[Outcome] = ("higher", "lower", "no difference")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What is declared before a race."""

    most_seeds: int = DEFAULT_MOST_SEEDS
    """Of each group, from LEAST_SEEDS to MOST_SEEDS: the budget."""
    smallest_difference: float | None = None
    """The smallest difference of means that matters; None: each does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What the values so far say of group B against group A."""

    difference: Estimate
    """Mean of B minus mean of A, of so many seeds each, with the repeated confidence interval; it has
    none before the first look."""
    p: float | None
    """At most ERROR where zero is not in the interval; not below LEAST_P. None, likewise."""
    outcome: Outcome


def look(a: Sequence[float], b: Sequence[float], rules: Rules, *, is_spent: bool = False) -> Look:
    """Return what the values so far say, and decide or go on.

    :param a: the values of one group, one for each seed. :param b: of the other, as many.
    :param is_spent: whether the budget is spent; also where seeds had no value.
    :raises ValueError: there are no values, or not as many in both.
    """
    import numpy as np
    from scipy.special import ndtr, ndtri, stdtr, stdtrit

    if len(a) != len(b) or not a:
        raise ValueError(
            f"a race needs as many values of both, at least one: {len(a)} and {len(b)}"
        )
    seeds = len(a)
    difference = fmean(b) - fmean(a)
    undecided: Outcome = "not decided" if is_spent else "open"
    if seeds < LEAST_SEEDS:
        return Look(difference=Estimate(difference, None, None, seeds), p=None, outcome=undecided)
    most_seeds = max(rules.most_seeds, seeds)
    weight = math.pow(seeds / most_seeds, 0.5 - SHAPE)
    bounds = _bounds(most_seeds)
    variances = [float(np.var(values, ddof=1)) / seeds for values in (a, b)]
    error = math.sqrt(sum(variances))
    if error == 0.0:
        reach = 0.0
        strength = math.inf if difference else 0.0
    else:
        shares = [one / sum(variances) for one in variances]
        # Welch's degrees of freedom, rounded down as in the simulation of the bounds
        freedom = math.floor((seeds - 1) / sum(share**2 for share in shares) + 1e-9)
        bound = bounds[ERRORS.index(ERROR)] / weight
        reach = -error * float(stdtrit(freedom, ndtr(-bound)))
        strength = -float(ndtri(stdtr(freedom, -abs(difference) / error))) * weight
    low = difference - reach
    high = difference + reach
    return Look(
        difference=Estimate(difference, low, high, seeds),
        p=_p(strength, bounds),
        outcome=_decision(low, high, rules) or undecided,
    )


def _decision(low: float, high: float, rules: Rules) -> Outcome | None:
    """Read the decision from the ends of the interval; None if it goes on."""
    smallest = rules.smallest_difference
    if smallest is not None and -smallest < low and high < smallest:
        return "no difference"
    if low > 0:
        return "higher"
    return "lower" if high < 0 else None


def _bounds(most_seeds: int) -> Sequence[float]:
    """Return the row of :data:`BOUNDS` for this budget: that of the next larger one."""
    known = min(most_seeds, MOST_SEEDS)
    return BOUNDS[min(budget for budget in BOUNDS if budget >= known)]


def _p(strength: float, bounds: Sequence[float]) -> float:
    """Return how often chance is so strong at some look: between those of :data:`ERRORS`,
    interpolated in its logarithm.
    """
    import numpy as np

    if strength < bounds[0]:
        return 1 - strength / bounds[0] * (1 - ERRORS[0])
    return float(np.exp(np.interp(strength, bounds, np.log(ERRORS))))
