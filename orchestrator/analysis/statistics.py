"""Medians and ratios with confidence intervals that have the stated coverage, also for few values.

A median's interval is a smoothed percentile bootstrap (B. W. Silverman, G. A. Young, "The
bootstrap: to smooth or not to smooth?", Biometrika 74, 1987; the width of the kernel, s/√n, from T.
C. Hesterberg, "What Teachers Should Know about the Bootstrap", The American Statistician 69, 2015):
resampled values are blurred, since the plain bootstrap of a median of seven values covers the true
median in 87 % of cases where 95 % are required. Positive values are taken as logarithms, so that
intervals of times and ratios stay positive.

A bootstrap cannot work with two to four values (the range of three values covers the median in 75 %
of cases). There the interval is Student's, which assumes a normal distribution. For up to five
values it is at least their range; for one value there is none. ``tests/unit/analysis/test_statistics.py``
measures the coverage. numpy is imported late.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

RESAMPLES = 2_000
AT_ONCE = 1 << 20
"""Numbers in memory at a time, for any number of values."""
LEAST_FOR_BOOTSTRAP = 5
MOST_FOR_RANGE = 5
"""Up to so many values, the interval is at least their range; that of five covers the median in 94
% of cases."""
LEVEL = 0.95
STUDENT = "Student's t"
BOOTSTRAP = "smoothed bootstrap"
MEDIAN_INTERVALS = f"{BOOTSTRAP}; for fewer than five values {STUDENT}"
"""How the intervals of :func:`estimate`, :func:`location` and :func:`ratio` are made, for captions."""


class EstimateFacts(TypedDict):
    """An :class:`Estimate` in JSON."""

    median: float
    low: float | None
    high: float | None
    n: int
    method: str | None


@dataclass(frozen=True, slots=True)
class Estimate:
    """A median with its confidence interval."""

    median: float
    low: float | None
    """None, as ``high``, where there is only one value. One of the two alone is None where the
    other is a bound."""
    high: float | None
    n: int
    """Number of values; of a ratio, that of the shorter side."""
    method: str | None = None
    """What the interval was made by; None where there is no interval."""

    def facts(self) -> EstimateFacts:
        return {
            "median": self.median,
            "low": self.low,
            "high": self.high,
            "n": self.n,
            "method": self.method,
        }

    def scaled(self, factor: float) -> Estimate:
        """The same estimate in another unit; ``factor`` must be positive."""
        return self._changed(lambda value: value * factor)

    def shifted(self, by: float) -> Estimate:
        """That of the same values with ``by`` added to each."""
        return self._changed(lambda value: value + by)

    def _changed(self, change: Callable[[float], float]) -> Estimate:
        """:param change: keeps the order of numbers."""
        low = None if self.low is None else change(self.low)
        high = None if self.high is None else change(self.high)
        return Estimate(change(self.median), low, high, self.n, self.method)


def estimate(values: Sequence[float]) -> Estimate:
    """The median of ``values`` with its interval; the same values always give the same interval.

    :raises ValueError: without values, or where one is not finite.
    """
    import numpy as np

    sample = finite_sample(values)
    median = float(np.median(sample))
    if sample.size < 2:
        return Estimate(median, None, None, 1)
    if sample.min() > 0:
        low, high = (_exp(bound) for bound in _interval(np.log(sample)))
    else:
        low, high = _interval(sample)
        if sample.min() >= 0:
            low = max(low, 0.0)
    # For an even number of values, the median of logarithms is not exactly the logarithm of the
    # median.
    n = int(sample.size)
    return Estimate(median, min(low, median), max(high, median), n, _method(n))


def location(values: Sequence[float]) -> Estimate:
    """As :func:`estimate`, for numbers without a natural zero, such as returns: no logarithms are
    taken.
    """
    highest = max(values)
    not_positive = estimate([value - highest for value in values])
    return not_positive.shifted(highest)


def known_estimate(
    values: Iterable[float | None], of: Callable[[list[float]], Estimate] = estimate
) -> EstimateFacts | None:
    """The facts of :func:`estimate` or :func:`location` of the values that are not None; None
    without any.
    """
    known = [value for value in values if value is not None]
    return of(known).facts() if known else None


def ratio(
    numerator: Sequence[float], denominator: Sequence[float], *, paired: bool = False
) -> Estimate:
    """The median of ``numerator`` divided by that of ``denominator``.

    :param paired: whether values of the same index belong together (the same repeat). The result is
        then the median of their ratios, which disturbances of both do not change.
    :raises ValueError: without values, where one is not positive, or for pairs of different
        lengths.
    """
    import numpy as np

    above = finite_sample(numerator)
    below = finite_sample(denominator)
    if min(above.min(), below.min()) <= 0:
        raise ValueError("a ratio is made of positive values")
    if paired:
        if above.size != below.size:
            raise ValueError(f"{above.size} values cannot be paired with {below.size}")
        return estimate((above / below).tolist())
    median = float(np.median(above) / np.median(below))
    n = int(min(above.size, below.size))
    if n < 2:
        return Estimate(median, None, None, n)
    low, high = (_exp(bound) for bound in _difference(np.log(above), np.log(below)))
    return Estimate(median, min(low, median), max(high, median), n, _method(n))


def _method(values: int) -> str:
    """What the interval of a median of at least two values is made by."""
    return BOOTSTRAP if values >= LEAST_FOR_BOOTSTRAP else STUDENT


def _exp(bound: float) -> float:
    """The value whose logarithm is ``bound``, limited: of very few and very different values, the
    interval may end beyond the largest number.
    """
    return math.exp(min(bound, 700.0))


def finite_sample(values: Sequence[float]) -> Floats:
    """:raises ValueError: without values, or where one is not finite."""
    import numpy as np

    sample = np.asarray(values, dtype=np.float64)
    if sample.size == 0:
        raise ValueError("no values, no median")
    if not np.isfinite(sample).all():
        raise ValueError("a value is not finite")
    return sample


def _interval(sample: Floats) -> tuple[float, float]:
    """Ends of the interval of a median, of at least two values."""
    if sample.size >= LEAST_FOR_BOOTSTRAP:
        low, high = quantiles(_medians(sample, seed=0))
    else:
        reach = t_quantile((1 + LEVEL) / 2, sample.size - 1) * _standard_error(sample)
        low = float(sample.mean()) - reach
        high = float(sample.mean()) + reach
    if sample.size > MOST_FOR_RANGE:
        return low, high
    return min(low, float(sample.min())), max(high, float(sample.max()))


def _difference(above: Floats, below: Floats) -> tuple[float, float]:
    """Interval of the difference of the medians of two independent samples."""
    fewest = min(above.size, below.size)
    if fewest >= LEAST_FOR_BOOTSTRAP:
        return quantiles(_medians(above, seed=0) - _medians(below, seed=1))
    # Fewer degrees of freedom than in Welch's formula: the interval is wider, never narrower.
    reach = t_quantile((1 + LEVEL) / 2, fewest - 1) * math.hypot(
        _standard_error(above), _standard_error(below)
    )
    centre = float(above.mean() - below.mean())
    return centre - reach, centre + reach


def _standard_error(sample: Floats) -> float:
    """Of the mean."""
    return float(sample.std(ddof=1)) / math.sqrt(sample.size)


def _medians(sample: Floats, seed: int) -> Floats:
    """Medians of smoothed resamples; shape (RESAMPLES,)."""
    import numpy as np

    return smoothed_bootstrap(sample, lambda block: np.median(block, axis=1), RESAMPLES, seed)


def smoothed_bootstrap(
    sample: Floats, statistic: Callable[[Floats], Floats], resamples: int, seed: int
) -> Floats:
    """A statistic of blurred resamples, ``(resamples,)``.

    :param statistic: given ``(n, sample.size)`` returns ``(n,)``.
    """
    import numpy as np

    generator = np.random.default_rng(seed)
    width = _standard_error(sample)
    values = np.empty(resamples)
    at_once = max(1, AT_ONCE // sample.size)
    for start in range(0, resamples, at_once):
        block = values[start : start + at_once]
        places = generator.integers(0, sample.size, (block.size, sample.size))
        block[:] = statistic(sample[places] + generator.normal(0.0, width, places.shape))
    return values


def quantiles(values: Floats) -> tuple[float, float]:
    """The ends between which :data:`LEVEL` of ``values`` lie."""
    import numpy as np

    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


MOST_FOR_SERIES = 200
"""Up to so many degrees of freedom, quantiles are found from the distribution itself."""


def t_within(value: float, freedom: int) -> float:
    """Probability that Student's t lies between ``-value`` and ``value``, which is at least 0, with
    a whole number of degrees of freedom (M. Abramowitz, I. A. Stegun, "Handbook of Mathematical
    Functions", 26.7.3 and 26.7.4).
    """
    angle = math.atan(value / math.sqrt(freedom))
    squared = math.cos(angle) ** 2
    is_odd = freedom % 2 == 1
    term = math.cos(angle) if is_odd else 1.0
    series = 0.0
    for power in range(2 + is_odd, freedom + 1, 2):
        series += term
        term *= squared * (power - 1) / power
    if is_odd:
        return 2 / math.pi * (angle + math.sin(angle) * series)
    return math.sin(angle) * series


def t_quantile(probability: float, freedom: int) -> float:
    """Quantile of Student's distribution, for a probability in [0.5, 1).

    From two hundred degrees of freedom on, it uses the expansion about the normal distribution (M.
    Abramowitz, I. A. Stegun, "Handbook of Mathematical Functions", 26.7.5).
    """
    if freedom <= MOST_FOR_SERIES:
        return _t_quantile_by_bisection(2 * probability - 1, freedom)
    z = NormalDist().inv_cdf(probability)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92_160,
    )
    return z + math.fsum(term / freedom**power for power, term in enumerate(terms, start=1))


def _t_quantile_by_bisection(within: float, freedom: int) -> float:
    """:param within: probability between the quantile and its negative."""
    low = 0.0
    high = 1.0
    while t_within(high, freedom) < within:
        high *= 2
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        if t_within(middle, freedom) < within:
            low = middle
        else:
            high = middle
    return high
