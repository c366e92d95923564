"""Do two learners reach the same returns? Permutation tests for a few seeds.

If both learners give the same distribution of final returns, then the assignment of a robot's
returns to learners is random, and every assignment is equally probable (E. J. G. Pitman,
"Significance tests which may be applied to samples from any populations", Supplement to the J. of
the Royal Statistical Society 4, 1937). Nothing else is assumed: no normal distribution, no equal
spreads. For one robot with up to ten seeds on each side all assignments are enumerated; else, and for
several robots, assigned independently, so many are drawn (:data:`DRAWS`) that a p-value of 0.05
varies by 0.001.

Two statistics. The *difference of means* finds a learner that is better or worse. The *energy
distance* (G. J. Székely, M. L. Rizzo, "Testing for Equal Distributions in High Dimension",
InterStat 5, 2004) also finds one that is more erratic. Both are divided by the spread of all of a
robot's returns, which the assignment does not change, so that robots can be summed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

DRAWS = 40_000
MOST_SPLITS = 200_000
"""Largest number of assignments of one robot's returns of which all are tried; 10 against 10 have
184,756."""
TIE = 1e-9
"""Standardised statistics this close are equal: sums in another order differ by rounding."""
REACH = 20.0
"""Largest distance from the estimate at which shifts are searched, in standard deviations."""

Statistic = Callable[[Floats, int], Floats]
"""Takes ``(…, n)`` returns of one robot, and how many of them, the first ones, are A's; gives ``(…,
splits)``."""


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """Final returns of one robot, one per seed: at least two by each learner."""

    a: Floats
    b: Floats

    @property
    def spread(self) -> float:
        """The pooled standard deviation within the learners."""
        squares = sum(float(((side - side.mean()) ** 2).sum()) for side in (self.a, self.b))
        return math.sqrt(squares / (self.a.size + self.b.size - 2))

    @property
    def difference(self) -> float:
        """B's mean minus A's, in pooled standard deviations; 0 where all returns are equal."""
        raw = float(self.b.mean() - self.a.mean())
        if raw == 0:
            return 0.0
        return raw / self.spread if self.spread > 0 else math.copysign(math.inf, raw)

    def without(self, shift: float) -> Pair:
        """The pair with ``shift`` standard deviations subtracted from B's returns."""
        return Pair(self.a, self.b - shift * self.spread)

    def table(self, statistic: Statistic) -> Floats:
        """``(splits,)``; the first entry is the observed one."""
        return statistic(np.concatenate([self.a, self.b]), self.a.size)


@cache
def weights(n_a: int, n_b: int) -> Floats:
    """Assignments of ``n_a + n_b`` values, the given one first: ``(splits, n)`` of ``-1/n_a`` and
    ``1/n_b``. All there are; of more than :data:`MOST_SPLITS`, so many as are drawn.
    """
    n = n_a + n_b
    if math.comb(n, n_a) <= MOST_SPLITS:
        of_a = np.array(list(itertools.combinations(range(n), n_a)))
    else:
        rng = np.random.default_rng(0)
        drawn = rng.permuted(np.tile(np.arange(n), (DRAWS, 1)), axis=1)[:, :n_a]
        of_a = np.concatenate([np.arange(n_a)[None], drawn])
    table = np.full((len(of_a), n), 1 / n_b)
    np.put_along_axis(table, of_a, -1 / n_a, axis=1)
    return table


def mean_difference(values: Floats, n_a: int) -> Floats:
    """B's mean minus A's, in standard deviations of all values, for every assignment."""
    return _over(values @ weights(n_a, values.shape[-1] - n_a).T, values.std(axis=-1, ddof=1))


def energy_distance(values: Floats, n_a: int) -> Floats:
    """The distance between the two distributions, in mean distances between all values; never below
    0.

    Twice the mean distance between values of A and of B, minus the mean distances within A and
    within B.
    """
    distances = np.abs(values[..., :, None] - values[..., None, :])
    dealt = weights(n_a, values.shape[-1] - n_a)
    return _over(-((dealt @ distances) * dealt).sum(axis=-1), distances.mean(axis=(-1, -2)))


def _over(statistics: Floats, scale: Floats) -> Floats:
    """``statistics / scale``; 0 where all values are equal and the scale is 0."""
    return np.divide(
        statistics, scale[..., None], out=np.zeros_like(statistics), where=scale[..., None] > 0
    )


def p_values(tables: Sequence[Floats], *, draws: int = DRAWS, seed: int = 0) -> Floats:
    """Two-sided p-values of sums over robots: the probability of a sum at least as far from 0 as
    the observed one.

    For one robot it is exact where all assignments are enumerated. Where they are drawn, the
    observed one counts as one draw, so that no p-value is 0 (B. Phipson, G. K. Smyth, "Permutation
    P-values Should Never Be Zero", Statistical Applications in Genetics and Molecular Biology 9,
    2010).

    :param tables: one per robot, ``(…, splits)`` each, as statistics give them; leading axes are
        several experiments.
    """
    observed = np.abs(np.sum([table[..., 0] for table in tables], axis=0))[..., None] - TIE
    if len(tables) == 1:
        return np.asarray((np.abs(tables[0]) >= observed).mean(axis=-1))
    rng = np.random.default_rng(seed)
    sums = np.zeros((*observed.shape[:-1], draws))
    for table in tables:
        sums += table[..., rng.integers(0, table.shape[-1], draws)]
    return np.asarray((1 + (np.abs(sums) >= observed).sum(axis=-1)) / (1 + draws))


def p_value(pairs: Sequence[Pair], statistic: Statistic = mean_difference) -> float:
    """The p-value over all of ``pairs``."""
    return float(p_values([pair.table(statistic) for pair in pairs]))


def holm(p: Sequence[float]) -> list[float]:
    """p-values of several tests, corrected so that the probability of any false positive is that of
    one test.

    S. Holm, "A Simple Sequentially Rejective Multiple Test Procedure", Scandinavian Journal of
    Statistics 6, 1979.
    """
    corrected = [0.0] * len(p)
    least = 0.0
    for rank, place in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        least = max(least, min(1.0, p[place] * (len(p) - rank)))
        corrected[place] = least
    return corrected


def interval(pairs: Sequence[Pair], level: float = 0.95) -> tuple[float, float]:
    """Differences, in each robot's pooled standard deviations, that the test of means would not
    reject.

    Found by subtracting a difference and testing what remains; infinite where there are too few
    seeds to reject any.
    """
    centre = float(np.mean([pair.difference for pair in pairs]))

    def kept(shift: float) -> bool:
        return p_value([pair.without(shift) for pair in pairs]) > 1 - level

    return _edge(kept, centre, -REACH), _edge(kept, centre, REACH)


def _edge(kept: Callable[[float], bool], centre: float, reach: float) -> float:
    if not math.isfinite(centre):
        return centre
    if kept(centre + reach):
        return math.copysign(math.inf, reach)
    inside = centre
    outside = centre + reach
    while abs(outside - inside) > 0.001:
        middle = (inside + outside) / 2
        if kept(middle):
            inside = middle
        else:
            outside = middle
    return inside
