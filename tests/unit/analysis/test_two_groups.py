"""Two groups of trainings: figures equal their definitions, and intervals hold what they state."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest
import scipy

from orchestrator.analysis.two_groups import Figure, compare, interquartile_mean, mean

A = [3.0, 1.0, 4.0, 1.5, 5.0]
B = [9.0, 2.0, 6.0, 5.0, 3.5]


def ends(figure: Figure | None) -> tuple[float, float]:
    assert figure is not None
    assert figure.interval is not None
    assert figure.interval.low <= figure.value <= figure.interval.high
    return figure.interval.low, figure.interval.high


def test_the_difference_and_its_interval_are_those_of_welch() -> None:
    found = compare([A], [B]).difference
    expected = scipy.stats.ttest_ind(B, A, equal_var=False)
    assert found.value == pytest.approx(np.mean(B) - np.mean(A))
    interval = expected.confidence_interval(0.95)
    # Degrees of freedom are rounded down: a little wider.
    low, high = ends(found)
    assert low == pytest.approx(interval.low, abs=0.15)
    assert low <= interval.low
    assert high >= interval.high


def test_probability_and_p_are_those_of_scipy() -> None:
    found = compare([A], [B])
    pairs = scipy.stats.mannwhitneyu(B, A).statistic / 25
    assert found.probability_higher.value == pytest.approx(pairs)

    def difference(one: np.ndarray, other: np.ndarray, axis: int) -> np.ndarray:
        return np.mean(one, axis=axis) - np.mean(other, axis=axis)

    expected = scipy.stats.permutation_test((B, A), difference, n_resamples=np.inf, vectorized=True)
    assert found.p == pytest.approx(expected.pvalue)
    assert found.least_p == pytest.approx(2 / 252)


@pytest.mark.parametrize("n", [3, 4, 5, 10, 17])
def test_the_interquartile_mean_is_as_agarwal_et_al_define_it(n: int) -> None:
    """The mean of all scores but the lowest and the highest quarter: scipy's trimmed mean."""
    values = np.random.default_rng(n).normal(size=(2, n))
    expected = scipy.stats.trim_mean(values, proportiontocut=0.25, axis=None)
    assert interquartile_mean(values.tolist()).value == pytest.approx(expected)


def test_point_values_are_those_of_rliable() -> None:
    """Expected are the outputs of ``rliable.metrics`` 1.2.0 (R. Agarwal et al., "Deep Reinforcement
    Learning at the Edge of the Statistical Precipice") for these scores: three tasks with five runs
    of X and four of Y, ties among them, by aggregate_iqm, aggregate_mean and
    probability_of_improvement(Y, X).
    """
    x = [[0.31, 0.62, 0.45, 0.45, 0.88], [1.20, 0.95, 1.80, 1.05, 1.33], [2.5, 2.5, 3.1, 0.4, 2.9]]
    y = [[0.40, 0.45, 0.95, 0.71], [1.50, 1.05, 1.90, 1.45], [2.5, 3.0, 3.6, 2.2]]
    assert interquartile_mean(x).value == pytest.approx(1.1977777777777778, rel=1e-12)
    assert interquartile_mean(y).value == pytest.approx(1.5083333333333335, rel=1e-12)
    assert mean(x).value == pytest.approx(1.3626666666666667, rel=1e-12)
    assert mean(y).value == pytest.approx(1.6425, rel=1e-12)
    assert compare(x, y).probability_higher.value == pytest.approx(0.6416666666666666, rel=1e-12)


def test_the_interval_of_a_ratio_is_fiellers() -> None:
    """At its ends B − end · A is told from zero just so, with as many degrees of freedom as B −
    ratio · A has.
    """
    low, high = ends(compare([A], [B]).ratio)
    ratio = np.mean(B) / np.mean(A)
    of_a, of_b = ratio**2 * np.var(A, ddof=1) / 5, np.var(B, ddof=1) / 5
    freedom = np.floor((of_a + of_b) ** 2 / (of_a**2 / 4 + of_b**2 / 4))
    t = scipy.stats.t.ppf(0.975, freedom)
    for end in (low, high):
        error = np.sqrt(np.var(B, ddof=1) / 5 + end**2 * np.var(A, ddof=1) / 5)
        assert abs(np.mean(B) - end * np.mean(A)) == pytest.approx(t * error, rel=1e-3)


def test_p_over_strata_deals_seeds_within_each() -> None:
    """Two strata with two values a side: 6 × 6 ways, of which two have the largest difference."""
    found = compare([[1.0, 2.0], [101.0, 102.0]], [[3.0, 4.0], [103.0, 104.0]])
    assert found.p == pytest.approx(2 / 36)
    many = compare([[1.0, 2.0]] * 7, [[3.0, 4.0]] * 7)
    assert many.p is not None
    assert 1 / 20_001 <= many.p <= 5 / 20_001


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([[1.0]], [[1.0], [2.0]]),
        ([[]], [[1.0]]),
        ([[float("nan")]], [[1.0]]),
    ],
)
def test_what_cannot_be_compared_is_refused(a: object, b: object) -> None:
    with pytest.raises(ValueError):
        compare(a, b)  # type: ignore[arg-type]


@pytest.mark.nightly
@pytest.mark.parametrize("times_as_high", [0.1, 10.0])
def test_intervals_of_ratios_far_from_one_hold_the_truth(times_as_high: float) -> None:
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(1_000):
        a, b = rng.normal(10, 1, 5), rng.normal(10 * times_as_high, 1, 5)
        if min(*a, *b) <= 0:
            held += 1
            continue
        low, high = ends(compare([a.tolist()], [b.tolist()]).ratio)
        held += low <= times_as_high <= high
    assert held >= 935


@pytest.mark.nightly
@pytest.mark.parametrize("n", [3, 5, 10])
def test_intervals_hold_the_truth_in_95_of_100_cases(n: int) -> None:
    rng = np.random.default_rng(n)
    higher = NormalDist().cdf(1 / np.sqrt(2))
    held = {"difference": 0, "ratio": 0, "probability": 0, "interquartile mean": 0}
    times = 400
    for _ in range(times):
        a, b = rng.normal(10, 1, n).tolist(), rng.normal(11, 1, n).tolist()
        found = compare([a], [b])
        for name, figure, truth in (
            ("difference", found.difference, 1.0),
            ("ratio", found.ratio, 1.1),
            ("probability", found.probability_higher, higher),
        ):
            low, high = ends(figure)
            held[name] += low <= truth <= high
        middle = interquartile_mean([b])
        if n < 5:
            assert middle.interval is None
            held["interquartile mean"] = times
        else:
            low, high = ends(middle)
            held["interquartile mean"] += low <= 11 <= high
    assert min(held.values()) >= 0.92 * times, held


@pytest.mark.nightly
def test_equal_groups_differ_by_chance_in_5_of_100_cases() -> None:
    rng = np.random.default_rng(0)
    p = [compare([rng.normal(size=5)], [rng.normal(size=5)]).p or 1.0 for _ in range(400)]
    assert 0.02 < np.mean(np.array(p) <= 0.05) < 0.08
