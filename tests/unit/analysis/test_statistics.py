"""Estimates are those of scipy, and intervals have the coverage that they state."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from orchestrator.analysis.statistics import (
    Estimate,
    compare,
    estimate,
    interquartile_mean,
    known_estimate,
    one_value_each,
    ratio,
)

A = [3.0, 1.0, 4.0, 1.5, 5.0]
B = [9.0, 2.0, 6.0, 5.0, 3.5]


def ends(found: Estimate) -> tuple[float, float]:
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.value <= found.high
    return found.low, found.high


def test_a_mean_has_students_interval() -> None:
    found = estimate(A)
    assert found.value == pytest.approx(np.mean(A))
    assert ends(found) == pytest.approx(stats.ttest_1samp(A, 0).confidence_interval(0.95))
    assert found.n == 5


def test_the_difference_of_one_body_is_that_of_welch() -> None:
    found = compare([A], [B])
    expected = stats.ttest_ind(B, A, equal_var=False)
    assert found.difference.value == pytest.approx(np.mean(B) - np.mean(A))
    assert ends(found.difference) == pytest.approx(expected.confidence_interval(0.95))
    assert found.p == pytest.approx(expected.pvalue)
    assert found.probability_higher == pytest.approx(19.5 / 25), "one pair is equal"


def test_each_of_several_bodies_counts_once() -> None:
    a = [[1.0, 2.0], [4.0], [7.0, 8.0, 9.0]]
    b = [[2.0, 4.0], [3.0], [9.0]]
    found = compare(a, b)
    expected = stats.ttest_rel([3.0, 3.0, 9.0], [1.5, 4.0, 8.0])
    assert one_value_each(a) == [1.5, 4.0, 8.0]
    assert found.difference.n == 3
    assert ends(found.difference) == pytest.approx(expected.confidence_interval(0.95))
    assert found.p == pytest.approx(expected.pvalue)
    assert found.probability_higher == pytest.approx((3.5 / 4 + 0 + 2.5 / 3) / 3)


def test_an_interquartile_mean_has_an_interval_from_ten_values_on() -> None:
    values = [*range(9), 100.0]
    assert interquartile_mean(values).value == pytest.approx(4.5)
    low, high = ends(interquartile_mean(values))
    assert 1 < low < 4 < 5 < high < 40
    assert interquartile_mean(values) == interquartile_mean(values)
    assert interquartile_mean(values[1:]) == Estimate(5.0, None, None, 9)


def test_a_ratio_of_pairs_does_not_count_what_disturbs_both() -> None:
    disturbed = np.array([1.0, 2.0, 0.5, 1.5, 3.0])
    above = 2 * disturbed * [1.01, 1.0, 0.99, 1.0, 1.01]
    paired = ratio(above.tolist(), disturbed.tolist(), paired=True)
    assert paired.value == pytest.approx(2.0, rel=0.01)
    low, high = ends(paired)
    assert 1.9 < low < high < 2.1
    low, high = ends(ratio(above.tolist(), disturbed.tolist()))
    assert low < 1
    assert high > 4


def test_one_value_has_no_interval() -> None:
    assert estimate([3.0]) == Estimate(3.0, None, None, 1)
    assert ratio([3.0], [1.0, 2.0]) == Estimate(2.0, None, None, 1)
    found = compare([[3.0]], [A])
    assert found.difference.low is None
    assert found.p is None
    assert known_estimate([None]) is None
    assert known_estimate([None, 3.0]) == {"value": 3.0, "low": None, "high": None, "n": 1}


@pytest.mark.parametrize("other", [2.0, 1.0])
def test_of_values_that_do_not_vary_nothing_is_said_of_chance(other: float) -> None:
    found = compare([[1.0, 1.0]], [[other, other]])
    assert found.p is None
    assert ends(found.difference) == (other - 1, other - 1)
    assert ends(ratio([2.0, 2.0], [1.0, 1.0])) == (2.0, 2.0)
    assert compare([[0.1] * 3], [[0.3] * 3]).p is None, "their means are rounded"


def test_a_negative_factor_turns_the_interval_round() -> None:
    assert Estimate(2.0, 1.0, 4.0, 5).scaled(-2) == Estimate(-4.0, -8.0, -2.0, 5)


@pytest.mark.parametrize(
    "call",
    [
        lambda: estimate([]),
        lambda: estimate([1.0, float("nan")]),
        lambda: ratio([1.0, 2.0], [0.0, 1.0]),
        lambda: ratio([1.0, 2.0, 3.0], [1.0, 2.0], paired=True),
        lambda: compare([A], [A, B]),
        lambda: compare([[]], [A]),
    ],
)
def test_what_has_no_mean_is_refused(call: Callable[[], object]) -> None:
    with pytest.raises(ValueError):
        call()


@pytest.mark.nightly
@pytest.mark.parametrize("n", [3, 5, 12])
def test_intervals_hold_the_truth_in_95_of_100_cases(n: int) -> None:
    rng = np.random.default_rng(n)
    held = {"mean": 0, "difference": 0, "ratio": 0, "interquartile mean": 0}
    times = 400
    for _ in range(times):
        a, b = rng.normal(10, 1, n).tolist(), rng.normal(11, 1, n).tolist()
        for name, found, truth in (
            ("mean", estimate(b), 11.0),
            ("difference", compare([a], [b]).difference, 1.0),
            ("ratio", ratio(b, a), 1.1),
            ("interquartile mean", interquartile_mean(b) if n >= 10 else estimate(b), 11.0),
        ):
            low, high = ends(found)
            held[name] += low <= truth <= high
    assert min(held.values()) >= 0.92 * times, held
    assert max(held.values()) <= 0.985 * times, held
