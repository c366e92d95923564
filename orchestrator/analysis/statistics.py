"""Means, differences and ratios with 95 % confidence intervals, and tests of two groups, on scipy.

Intervals are Student's t: of one mean, of the difference of two (Welch's, or that of pairs) and of a
ratio of means. An interquartile mean has a bootstrap interval. numpy and scipy are imported late.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypedDict

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

LEVEL = 0.95
INTERVALS = "Student's t"
"""How the intervals of :func:`estimate` and :func:`ratio` are made, for captions."""
TRIMMED = 0.25
"""Share of the values that an interquartile mean leaves out at either end."""
LEAST_FOR_BOOTSTRAP = 10
"""With fewer values a bootstrap interval is too narrow."""

ROUNDING = 1e-9
"""Values vary if they do so by more than this share of the largest."""

Bodies: TypeAlias = Sequence[Sequence[float]]
"""The values of a group: for each body (or task) those of its seeds, at least one."""


class EstimateFacts(TypedDict):
    """An :class:`Estimate` in JSON."""

    value: float
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its confidence interval of 95 %."""

    value: float
    low: float | None
    """None, as ``high``, where the values are too few for an interval. One of the two alone is None
    where the other is a bound."""
    high: float | None
    n: int
    """Number of values; of two samples, that of the smaller one."""

    def facts(self) -> EstimateFacts:
        return {"value": self.value, "low": self.low, "high": self.high, "n": self.n}

    def scaled(self, factor: float) -> Estimate:
        """Return the estimate times ``factor``."""
        low = None if self.low is None else self.low * factor
        high = None if self.high is None else self.high * factor
        if factor < 0:
            low, high = high, low
        return Estimate(self.value * factor, low, high, self.n)


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoGroups:
    """What can be said of group B against group A."""

    difference: Estimate
    """Mean of B minus mean of A."""
    probability_higher: float
    """That a training of B has a higher value than one of A, where equal values count half."""
    p: float | None
    """Probability of a difference at least as large where the means do not differ; None where the
    values are too few, or do not vary."""


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean of ``values`` with its interval.

    :raises ValueError: without values, or where one is not finite.
    """
    sample = _finite(values)
    n = int(sample.size)
    mean = float(sample.mean())
    if n < 2:
        return Estimate(mean, None, None, n)

    from scipy.special import stdtrit  # lighter than scipy.stats

    standard_error = float(sample.std(ddof=1)) / math.sqrt(n)
    reach = float(stdtrit(n - 1, (1 + LEVEL) / 2)) * standard_error
    return Estimate(mean, mean - reach, mean + reach, n)


def known_estimate(values: Iterable[float | None]) -> EstimateFacts | None:
    """Return the facts of :func:`estimate` of the values that are not None; None without any."""
    known = [value for value in values if value is not None]
    return estimate(known).facts() if known else None


def ratio(
    numerator: Sequence[float], denominator: Sequence[float], *, paired: bool = False
) -> Estimate:
    """Return the mean of ``numerator`` divided by that of ``denominator``.

    The interval is that of the logarithm of the ratio, by the delta method: the difference of two
    samples that are each divided by their mean.

    :param paired: whether values of the same index belong together (the same repeat), so that
        disturbances of both do not count.
    :raises ValueError: without values, where one is not positive, or for pairs of different
        lengths.
    """
    above = _finite(numerator)
    below = _finite(denominator)
    if min(above.min(), below.min()) <= 0:
        raise ValueError("a ratio is made of positive values")
    value = float(above.mean() / below.mean())
    n = int(min(above.size, below.size))
    test = _t_test(above / above.mean(), below / below.mean(), paired=paired)
    if test is None:
        return Estimate(value, None, None, n)
    return Estimate(value, value * math.exp(test.low), value * math.exp(test.high), n)


def interquartile_mean(values: Sequence[float]) -> Estimate:
    """Return the mean of the middle half of ``values``, with an interval from ten values on."""
    from scipy import stats

    sample = _finite(values)
    n = int(sample.size)
    mean = float(stats.trim_mean(sample, TRIMMED))
    if n < LEAST_FOR_BOOTSTRAP:
        return Estimate(mean, None, None, n)

    middle = partial(stats.trim_mean, proportiontocut=TRIMMED)
    found = stats.bootstrap((sample,), middle, confidence_level=LEVEL, method="percentile", rng=0)
    low, high = map(float, found.confidence_interval)
    return Estimate(mean, low, high, n)


def one_value_each(bodies: Bodies) -> Sequence[float]:
    """Return the values of a single body; of several, the mean of each."""
    if len(bodies) == 1:
        return bodies[0]
    return [float(_finite(seeds).mean()) for seeds in bodies]


def compare(a: Bodies, b: Bodies) -> TwoGroups:
    """Compare two groups that were trained on the same bodies, in the same order.

    With one body, a value is a seed, and the test is Welch's. With several, each body counts once, by
    the mean of its seeds, and the test is that of pairs: it tells whether bodies like these differ.

    :raises ValueError: the groups have other numbers of bodies, or a value is not finite.
    """
    from scipy import stats

    if len(a) != len(b):
        raise ValueError(f"{len(a)} bodies cannot be compared with {len(b)}")
    sample_a = _finite(one_value_each(a))
    sample_b = _finite(one_value_each(b))
    value = float(sample_b.mean() - sample_a.mean())
    n = int(min(sample_a.size, sample_b.size))
    difference = Estimate(value, None, None, n)
    p = None
    test = _t_test(sample_b, sample_a, paired=len(a) > 1)
    if test is not None:
        difference = Estimate(value, test.low, test.high, n)
        p = test.p
    shares = [
        stats.mannwhitneyu(of_b, of_a, method="asymptotic").statistic / (len(of_a) * len(of_b))
        for of_a, of_b in zip(a, b, strict=True)
    ]
    return TwoGroups(
        difference=difference, probability_higher=float(sum(shares) / len(shares)), p=p
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _TTest:
    low: float
    high: float
    p: float | None


def _t_test(first: Floats, second: Floats, *, paired: bool) -> _TTest | None:
    """Test the difference of two means; None with fewer than two values on either side."""
    from scipy import stats

    if min(first.size, second.size) < 2:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of values that hardly vary
        test = (
            stats.ttest_rel(first, second)
            if paired
            else stats.ttest_ind(first, second, equal_var=False)
        )
        low, high = map(float, test.confidence_interval(LEVEL))
    rounding = ROUNDING * float(max(abs(first).max(), abs(second).max()))
    return _TTest(low=low, high=high, p=float(test.pvalue) if high - low > rounding else None)


def _finite(values: Sequence[float] | Floats) -> Floats:
    """:raises ValueError: without values, or where one is not finite."""
    import numpy as np

    sample = np.asarray(values, dtype=np.float64)
    if sample.size == 0:
        raise ValueError("no values, no mean")
    if not np.isfinite(sample).all():
        raise ValueError("a value is not finite")
    return sample
