"""Two groups of trainings compared by one value of each training: difference, ratio, probability
that one group is higher, and whether chance explains it.

A group is a sequence of *strata*, one for each body (or task) on which it was trained; a stratum has
the values of its seeds. Both groups have the same strata.

With one stratum, intervals are those that hold for few values: Student's t for one mean, Welch's for
the difference of two, Fieller's for their ratio, Newcombe's for probabilities, and from five values
on a smoothed bootstrap for interquartile means. With several, they are percentiles of a bootstrap
that draws seeds anew within each stratum (R. Agarwal et al., "Deep Reinforcement Learning at the Edge
of the Statistical Precipice", NeurIPS 2021); interquartile mean and probability of improvement are
defined as there. numpy is imported late.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from orchestrator.analysis.statistics import (
    BOOTSTRAP,
    LEAST_FOR_BOOTSTRAP,
    LEVEL,
    MOST_FOR_RANGE,
    STUDENT,
    finite_sample,
    quantiles,
    smoothed_bootstrap,
    t_quantile,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

Strata = Sequence[Sequence[float]]
"""The values of a group: for each stratum those of its seeds, at least one."""
RESAMPLES = 10_000
MOST_EXACT = 20_000
"""Up to so many ways to deal the values to both groups, each is looked at."""
PERMUTATIONS = 20_000
"""Otherwise so many ways are drawn."""
TRIMMED = 0.25
"""The share of the values that an interquartile mean leaves out at either end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A confidence interval of 95 %."""

    low: float
    high: float
    method: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A value with its interval."""

    value: float
    interval: Interval | None
    """None where the values are too few for one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoGroups:
    """What can be said of group B against group A."""

    difference: Figure
    """Mean of B minus mean of A."""
    ratio: Figure | None
    """Mean of B divided by mean of A; None where a value is not positive."""
    probability_higher: Figure
    """That a training of B has a higher value than one of A, where equal values count half."""
    p: float | None
    """Probability of a difference at least as large where the groups do not differ; None for one
    value in each.
    """
    least_p: float | None
    """The smallest :attr:`p` that so many values can give, or so many ways to deal them as are
    drawn."""


def compare(a: Strata, b: Strata) -> TwoGroups:
    """:raises ValueError: the groups have other numbers of strata, or a value is not finite."""
    samples_a = _finite_samples(a)
    samples_b = _finite_samples(b)
    if len(samples_a) != len(samples_b):
        raise ValueError(f"{len(samples_a)} strata cannot be compared with {len(samples_b)}")
    p, least_p = _permutation_test(samples_a, samples_b)
    return TwoGroups(
        difference=_difference(samples_a, samples_b),
        ratio=_ratio(samples_a, samples_b),
        probability_higher=_probability_higher(samples_a, samples_b),
        p=p,
        least_p=least_p,
    )


def mean(group: Strata) -> Figure:
    """The mean over strata of the mean over seeds."""
    samples = _finite_samples(group)
    value = _mean_of_means(samples)
    if len(samples) > 1:
        return Figure(value=value, interval=_bootstrapped([samples], _mean_of_means_each))
    (sample,) = samples
    if sample.size < 2:
        return Figure(value=value, interval=None)
    reach = t_quantile((1 + LEVEL) / 2, sample.size - 1) * math.sqrt(_variance_of_mean(sample))
    interval = Interval(low=value - reach, high=value + reach, method=STUDENT)
    return Figure(value=value, interval=interval)


def interquartile_mean(group: Strata) -> Figure:
    """The mean of the middle half of all values."""
    import numpy as np

    samples = _finite_samples(group)
    value = float(_interquartile_means(np.concatenate(samples)[np.newaxis])[0])
    if len(samples) > 1:
        return Figure(value=value, interval=_bootstrapped([samples], _interquartile_means_each))
    (sample,) = samples
    if sample.size < LEAST_FOR_BOOTSTRAP:
        return Figure(value=value, interval=None)
    resampled = smoothed_bootstrap(sample, _interquartile_means, RESAMPLES, seed=0)
    interval = _percentiles(resampled, BOOTSTRAP)
    if sample.size <= MOST_FOR_RANGE:
        interval = Interval(
            low=min(interval.low, float(sample.min())),
            high=max(interval.high, float(sample.max())),
            method=f"{BOOTSTRAP}, at least the range",
        )
    return Figure(value=value, interval=interval)


def _finite_samples(group: Strata) -> list[Floats]:
    """:raises ValueError: there is no stratum, or one has no value, or one that is not finite."""
    if not len(group) or not all(map(len, group)):
        raise ValueError("a stratum has no value")
    return [finite_sample(values) for values in group]


def _variance_of_mean(sample: Floats) -> float:
    """The variance of the mean of at least two values."""
    return float(sample.var(ddof=1)) / sample.size


def _mean_of_means(samples: Sequence[Floats]) -> float:
    return sum(float(sample.mean()) for sample in samples) / len(samples)


# -- difference and ratio of means


def _difference(a: Sequence[Floats], b: Sequence[Floats]) -> Figure:
    value = _mean_of_means(b) - _mean_of_means(a)
    if len(a) > 1:
        interval = _bootstrapped(
            [a, b], lambda a, b: _mean_of_means_each(b) - _mean_of_means_each(a)
        )
    else:
        interval = _welch(a[0], b[0])
    return Figure(value=value, interval=interval)


def _welch(a: Floats, b: Floats) -> Interval | None:
    """The interval of the difference of two means with variances of their own (B. L. Welch, "The
    generalization of 'Student's' problem …", Biometrika 34, 1947).
    """
    if min(a.size, b.size) < 2:
        return None
    variance_a = _variance_of_mean(a)
    variance_b = _variance_of_mean(b)
    quantile = _welch_quantile(variance_a, a.size, variance_b, b.size)
    reach = quantile * math.sqrt(variance_a + variance_b)
    value = float(b.mean() - a.mean())
    return Interval(low=value - reach, high=value + reach, method="Welch's t")


def _welch_quantile(variance_a: float, size_a: int, variance_b: float, size_b: int) -> float:
    """Student's quantile with Welch's degrees of freedom, rounded down, for a sum of two estimates
    with these variances, of samples of these sizes.
    """
    total = variance_a + variance_b
    fewest = min(size_a, size_b) - 1
    if total == 0.0:
        return t_quantile((1 + LEVEL) / 2, fewest)
    share_a = variance_a / total
    share_b = variance_b / total
    freedom = 1 / (share_a**2 / (size_a - 1) + share_b**2 / (size_b - 1))
    return t_quantile((1 + LEVEL) / 2, max(fewest, math.floor(freedom)))


def _ratio(a: Sequence[Floats], b: Sequence[Floats]) -> Figure | None:
    if min(float(sample.min()) for sample in (*a, *b)) <= 0:
        return None
    value = _mean_of_means(b) / _mean_of_means(a)
    if len(a) > 1:
        interval = _bootstrapped(
            [a, b], lambda a, b: _mean_of_means_each(b) / _mean_of_means_each(a)
        )
    else:
        interval = _fieller(a[0], b[0])
    return Figure(value=value, interval=interval)


def _fieller(a: Floats, b: Floats) -> Interval | None:
    """The interval of the ratio of two means; None where that of A is not told from zero, so that
    the ratio has no bound (E. C. Fieller, "Some problems in interval estimation", J. R. Stat. Soc. B
    16, 1954).
    """
    if min(a.size, b.size) < 2:
        return None
    below = float(a.mean())
    ratio = float(b.mean()) / below
    variance_a = _variance_of_mean(a)
    variance_b = _variance_of_mean(b)
    # What has to be told from zero is B − ratio · A, so that the unit of B does not matter.
    quantile = _welch_quantile(ratio**2 * variance_a, a.size, variance_b, b.size)
    uncertainty = quantile**2 * variance_a / below**2
    if uncertainty >= 1:
        return None
    root = math.sqrt(variance_b + ratio**2 * variance_a - uncertainty * variance_b)
    reach = quantile / below * root
    return Interval(
        low=(ratio - reach) / (1 - uncertainty),
        high=(ratio + reach) / (1 - uncertainty),
        method="Fieller's",
    )


# -- probability


def _probability_higher(a: Sequence[Floats], b: Sequence[Floats]) -> Figure:
    each = [_share_higher(*pair) for pair in zip(a, b, strict=True)]
    value = sum(each) / len(each)
    if len(a) > 1:
        return Figure(value=value, interval=_bootstrapped([a, b], _shares_higher_each))
    return Figure(value=value, interval=_newcombe(value, a[0].size, b[0].size))


def _share_higher(a: Floats, b: Floats) -> float:
    """Mann and Whitney's U of B, as a share of all pairs."""
    difference = b[:, None] - a[None, :]
    return float((difference > 0).mean() + (difference == 0).mean() / 2)


def _newcombe(share: float, size_a: int, size_b: int) -> Interval | None:
    """The interval of a share of pairs (R. G. Newcombe, "Confidence intervals for an effect size
    measure based on the Mann–Whitney statistic. Part 2", Statistics in Medicine 25, 2006, method 5).
    """
    if min(size_a, size_b) < 2:
        return None
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    pairs = size_a * size_b
    weight = (size_a + size_b) / 2 - 1

    def is_within(true: float) -> bool:
        factor = 1 + weight * (1 - true) / (2 - true) + weight * true / (1 + true)
        return (true - share) ** 2 <= z**2 * true * (1 - true) * factor / pairs

    return Interval(
        low=_last_within(is_within, share, 0.0),
        high=_last_within(is_within, share, 1.0),
        method="Newcombe's",
    )


def _last_within(is_within: Callable[[float], bool], inside: float, end: float) -> float:
    """The last value on the way from ``inside`` to ``end`` that is within, by bisection."""
    outside = end
    for _ in range(50):
        middle = (inside + outside) / 2
        if is_within(middle):
            inside = middle
        else:
            outside = middle
    return (inside + outside) / 2


# -- bootstrap by strata


def _bootstrapped(
    groups: Sequence[Sequence[Floats]], statistic: Callable[..., Floats]
) -> Interval | None:
    """The interval of a statistic by a bootstrap by strata; None where a stratum has one value.

    :param statistic: given for each group its resamples, one array ``(RESAMPLES, seeds)`` a
        stratum, returns ``(RESAMPLES,)``.
    """
    import numpy as np

    if any(sample.size < 2 for samples in groups for sample in samples):
        return None
    generator = np.random.default_rng(0)
    resampled = [
        [sample[generator.integers(0, sample.size, (RESAMPLES, sample.size))] for sample in samples]
        for samples in groups
    ]
    return _percentiles(statistic(*resampled), "bootstrap by strata")


def _percentiles(values: Floats, method: str) -> Interval:
    low, high = quantiles(values)
    return Interval(low=low, high=high, method=method)


def _mean_of_means_each(strata: Sequence[Floats]) -> Floats:
    import numpy as np

    means: Floats = np.mean([resamples.mean(axis=1) for resamples in strata], axis=0)
    return means


def _interquartile_means_each(strata: Sequence[Floats]) -> Floats:
    import numpy as np

    return _interquartile_means(np.concatenate(strata, axis=1))


def _interquartile_means(values: Floats) -> Floats:
    """:param values: ``(resamples, n)``. :returns: ``(resamples,)``."""
    import numpy as np

    n = values.shape[1]
    left_out = int(TRIMMED * n)
    ordered = np.sort(values, axis=1)
    middle: Floats = ordered[:, left_out : n - left_out].mean(axis=1)
    return middle


def _shares_higher_each(a: Sequence[Floats], b: Sequence[Floats]) -> Floats:
    import numpy as np

    each = []
    for one, other in zip(a, b, strict=True):
        higher = np.zeros(len(one))
        # One column after another: all pairs of many seeds would not fit into memory.
        for column in one.T:
            higher += (other > column[:, None]).mean(axis=1)
            higher += (other == column[:, None]).mean(axis=1) / 2
        each.append(higher / one.shape[1])
    shares: Floats = np.mean(each, axis=0)
    return shares


# -- test


def _permutation_test(
    a: Sequence[Floats], b: Sequence[Floats]
) -> tuple[float | None, float | None]:
    """Two-sided, by the difference of means: seeds are dealt anew to both groups within each
    stratum, in all ways or in some that are drawn.

    :returns: the probability, and the smallest one that is possible.
    """
    ways = math.prod(
        math.comb(one.size + other.size, one.size) for one, other in zip(a, b, strict=True)
    )
    if ways <= 2:
        return None, None
    is_exact = ways <= MOST_EXACT
    pooled = [_centred(one, other) for one, other in zip(a, b, strict=True)]
    sizes = [one.size for one in a]
    if is_exact:
        each = [_all_dealings(both, size) for both, size in zip(pooled, sizes, strict=True)]
        dealt = _all_sums(each) / len(each)
    else:
        dealt = _drawn_dealings(pooled, sizes)
    observed = sum(
        _difference_dealt(both, both[:size].sum(), size)
        for both, size in zip(pooled, sizes, strict=True)
    )
    # Dealings with the same difference are as large, whatever rounding makes of them.
    rounding = 1e-9 * max(float(abs(both).max()) for both in pooled)
    is_as_large = abs(dealt) >= abs(float(observed)) / len(pooled) - rounding
    if is_exact:
        # Where groups are of the same size, each dealing has a mirror image, as large a difference.
        is_mirrored = all(one.size == other.size for one, other in zip(a, b, strict=True))
        as_large_at_least = 2 if is_mirrored else 1
        return float(is_as_large.mean()), as_large_at_least / ways
    # The observed one counts as one that was drawn, so that p is never 0.
    return (1 + int(is_as_large.sum())) / (1 + PERMUTATIONS), 1 / (1 + PERMUTATIONS)


def _centred(a: Floats, b: Floats) -> Floats:
    """The values of A and then those of B, less the mean of all: differences stay, and large values
    cost no digits.
    """
    import numpy as np

    both = np.concatenate([a, b])
    centred: Floats = both - both.mean()
    return centred


def _difference_dealt(both: Floats, sums: Any, size: int) -> Any:
    """Mean of the others minus the mean of ``size`` values of ``both`` that have these ``sums``."""
    return (both.sum() - sums) / (both.size - size) - sums / size


def _all_dealings(both: Floats, size: int) -> Floats:
    """Differences of means in all ways to deal ``size`` values to A."""
    import numpy as np

    chosen = np.array(list(itertools.combinations(range(both.size), size)))
    differences: Floats = _difference_dealt(both, both[chosen].sum(axis=1), size)
    return differences


def _all_sums(each: Sequence[Floats]) -> Floats:
    """Sums of one value of each, in all combinations."""
    import numpy as np

    total = np.zeros(1)
    for values in each:
        total = (total[:, None] + values[None, :]).ravel()
    return total


def _drawn_dealings(pooled: Sequence[Floats], sizes: Sequence[int]) -> Floats:
    import numpy as np

    generator = np.random.default_rng(0)
    total = np.zeros(PERMUTATIONS)
    for both, size in zip(pooled, sizes, strict=True):
        shuffled = generator.permuted(np.tile(both, (PERMUTATIONS, 1)), axis=1)
        total += _difference_dealt(both, shuffled[:, :size].sum(axis=1), size)
    differences: Floats = total / len(pooled)
    return differences
