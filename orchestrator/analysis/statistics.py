"""Medians and ratios with intervals that hold what they promise, also for the few repeats that a benchmark has.

A median's interval is a smoothed percentile bootstrap (B. W. Silverman, G. A. Young, "The bootstrap: to smooth or not
to smooth?", Biometrika 74, 1987; the width of the kernel, s/√n, from T. C. Hesterberg, "What Teachers Should Know about
the Bootstrap", The American Statistician 69, 2015): resampled values are blurred, since the plain bootstrap of a
median of seven values holds the truth in 87 % of cases only where 95 % were asked for. Positive values are taken as
logarithms, so that neither an interval of seconds nor one of ratios reaches below zero.

Of two to four values no bootstrap can do it (the whole range of three values holds the median in 75 % of cases): there
the interval is Student's, which assumes a normal distribution. Of up to five values it is at least their range; of one
value there is none.
``tests/test_statistics.py`` counts how often the truth is inside. numpy is imported late.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

RESAMPLES = 2_000
AT_ONCE = 1 << 20
"""Numbers held at a time, however many values there are."""
LEAST_FOR_BOOTSTRAP = 5
MOST_FOR_RANGE = 5
"""Values whose interval is at least their range, which of five holds the median in 94 % of cases."""
LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A median and the interval that holds the true one with the probability asked for."""

    median: float
    low: float | None
    """None, and ``high`` with it, where there is only one value: no interval is pretended."""
    high: float | None
    n: int
    """Values it is made of; of a ratio, those of the shorter side."""

    def facts(self) -> dict[str, float | int | None]:
        return {"median": self.median, "low": self.low, "high": self.high, "n": self.n}

    def scaled(self, factor: float) -> Estimate:
        """In another unit; ``factor`` must be positive."""
        low, high = (None if bound is None else bound * factor for bound in (self.low, self.high))
        return Estimate(self.median * factor, low, high, self.n)


def estimate(values: Sequence[float], level: float = LEVEL, seed: int = 0) -> Estimate:
    """The median of ``values`` with its interval; the same values give the same one.

    :raises ValueError: without values, or where one is not finite.
    """
    import numpy as np

    given = _checked(values)
    median = float(np.median(given))
    if given.size < 2:
        return Estimate(median, None, None, 1)
    if given.min() > 0:
        low, high = (math.exp(bound) for bound in _interval(np.log(given), level, seed))
    else:
        low, high = _interval(given, level, seed)
        if given.min() >= 0:
            low = max(low, 0.0)
    # Of an even number of values the median of logarithms is not quite the logarithm of the median.
    return Estimate(median, min(low, median), max(high, median), int(given.size))


def location(values: Sequence[float]) -> Estimate:
    """As :func:`estimate`, of numbers without a natural zero, such as returns: not to be taken as logarithms."""
    highest = max(values)
    found = estimate([value - highest for value in values])
    low, high = (None if bound is None else bound + highest for bound in (found.low, found.high))
    return Estimate(found.median + highest, low, high, found.n)


def ratio(
    numerator: Sequence[float],
    denominator: Sequence[float],
    *,
    paired: bool = False,
    level: float = LEVEL,
    seed: int = 0,
) -> Estimate:
    """How many times the median of one is the median of the other.

    :param paired: whether values of the same place belong together (the same repeat); then it is the median of their
        ratios, which what disturbs both alike does not touch.
    :raises ValueError: without values, where one is not positive, or pairs of different number.
    """
    import numpy as np

    above, below = _checked(numerator), _checked(denominator)
    if min(above.min(), below.min()) <= 0:
        raise ValueError("a ratio is made of positive values")
    if paired:
        if above.size != below.size:
            raise ValueError(f"{above.size} values cannot be paired with {below.size}")
        return estimate((above / below).tolist(), level, seed)
    median = float(np.median(above) / np.median(below))
    n = int(min(above.size, below.size))
    if n < 2:
        return Estimate(median, None, None, n)
    low, high = (math.exp(bound) for bound in _difference(np.log(above), np.log(below), level, seed))
    return Estimate(median, min(low, median), max(high, median), n)


def _checked(values: Sequence[float]) -> Floats:
    import numpy as np

    given = np.asarray(values, dtype=np.float64)
    if given.size == 0:
        raise ValueError("no values, no median")
    if not np.isfinite(given).all():
        raise ValueError("a value is not finite")
    return given


def _interval(given: Floats, level: float, seed: int) -> tuple[float, float]:
    if given.size >= LEAST_FOR_BOOTSTRAP:
        low, high = _quantiles(_medians(given, seed), level)
    else:
        reach = t_quantile((1 + level) / 2, given.size - 1) * _standard_error(given)
        low, high = float(given.mean()) - reach, float(given.mean()) + reach
    if given.size > MOST_FOR_RANGE:
        return low, high
    return min(low, float(given.min())), max(high, float(given.max()))


def _difference(above: Floats, below: Floats, level: float, seed: int) -> tuple[float, float]:
    """Of the medians of two independent samples."""
    fewest = min(above.size, below.size)
    if fewest >= LEAST_FOR_BOOTSTRAP:
        return _quantiles(_medians(above, seed) - _medians(below, seed + 1), level)
    # Fewer degrees of freedom than Welch's formula gives: wider, never narrower.
    reach = t_quantile((1 + level) / 2, fewest - 1) * math.hypot(_standard_error(above), _standard_error(below))
    centre = float(above.mean() - below.mean())
    return centre - reach, centre + reach


def _standard_error(given: Floats) -> float:
    return float(given.std(ddof=1)) / math.sqrt(given.size)


def _medians(given: Floats, seed: int) -> Floats:
    """Of smoothed resamples; shape (RESAMPLES,)."""
    import numpy as np

    generator = np.random.default_rng(seed)
    width = _standard_error(given)
    medians = np.empty(RESAMPLES)
    at_once = max(1, AT_ONCE // given.size)
    for start in range(0, RESAMPLES, at_once):
        block = medians[start : start + at_once]
        places = generator.integers(0, given.size, (block.size, given.size))
        block[:] = np.median(given[places] + generator.normal(0.0, width, places.shape), axis=1)
    return medians


def _quantiles(values: Floats, level: float) -> tuple[float, float]:
    import numpy as np

    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


_T_CDF: dict[int, Callable[[float], float]] = {
    1: lambda x: 0.5 + math.atan(x) / math.pi,
    2: lambda x: 0.5 + x / (2 * math.sqrt(2 + x * x)),
    3: lambda x: 0.5 + (x / math.sqrt(3) / (1 + x * x / 3) + math.atan(x / math.sqrt(3))) / math.pi,
}
"""Student's distribution functions with few degrees of freedom."""


def t_quantile(probability: float, freedom: int) -> float:
    """Of Student's distribution, for a probability in [0.5, 1): to three digits.

    With four degrees of freedom and more by the expansion about the normal one (M. Abramowitz, I. A. Stegun, "Handbook
    of Mathematical Functions", 26.7.5).
    """
    if freedom in _T_CDF:
        low, high = 0.0, 1.0
        while _T_CDF[freedom](high) < probability:
            high *= 2
        while high - low > 1e-9 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if _T_CDF[freedom](middle) < probability else (low, middle)
        return high
    z = NormalDist().inv_cdf(probability)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92_160,
    )
    return z + math.fsum(term / freedom**power for power, term in enumerate(terms, start=1))
