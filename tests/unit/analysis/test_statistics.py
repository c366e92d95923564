"""Intervals have the coverage that they state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import scipy

from orchestrator.analysis.statistics import (
    BOOTSTRAP,
    STUDENT,
    Estimate,
    estimate,
    location,
    ratio,
    t_quantile,
    t_within,
)


def tries(n: int) -> int:
    """Synthetic samples of ``n`` values: so many that chance moves the counted coverage by a
    percent or so."""
    return 1_000 if n <= 10 else 250


Draw = Callable[[np.random.Generator, int], Sequence[float]]

SHAPES: dict[str, tuple[Draw, float]] = {
    "normal": (lambda rng, n: rng.normal(100, 5, n), 100.0),
    "lognormal": (lambda rng, n: rng.lognormal(0, 0.5, n), 1.0),
    "exponential": (lambda rng, n: rng.exponential(1, n), float(np.log(2))),
}
"""How values are drawn, and their true median."""


def holds(interval: Estimate, truth: float) -> bool:
    assert interval.low is not None
    assert interval.high is not None
    assert interval.low <= interval.median <= interval.high
    return interval.low <= truth <= interval.high


@pytest.mark.nightly
class TestCoverage:
    @pytest.mark.parametrize("n", [5, 10, 30])
    @pytest.mark.parametrize("shape", SHAPES)
    def test_the_interval_of_a_median_holds_it_in_95_of_100_cases(self, shape: str, n: int) -> None:
        draw, truth = SHAPES[shape]
        rng = np.random.default_rng(n)
        held = sum(holds(estimate(draw(rng, n)), truth) for _ in range(tries(n)))
        assert 0.92 <= held / tries(n) <= 0.98

    @pytest.mark.parametrize("n", [3, 5, 30])
    @pytest.mark.parametrize("shape", SHAPES)
    def test_the_interval_of_a_ratio_holds_it_and_is_no_wider_than_it_need_be(
        self, shape: str, n: int
    ) -> None:
        draw, _ = SHAPES[shape]
        rng = np.random.default_rng(n)
        held = sum(
            holds(ratio(draw(rng, n), np.multiply(draw(rng, n), 0.5)), 2.0) for _ in range(tries(n))
        )
        # With three values on either side it errs on the safe side.
        assert 0.92 <= held / tries(n) <= (0.98 if n >= 10 else 1.0)


class TestEdges:
    def test_one_value_has_no_interval(self) -> None:
        assert estimate([3.0]) == Estimate(3.0, None, None, 1)
        assert ratio([3.0], [1.0, 2.0]) == Estimate(2.0, None, None, 1)

    def test_the_same_values_give_the_same_interval(self) -> None:
        values = [3.0, 1.0, 4.0, 1.5, 9.0, 2.6]
        assert estimate(values) == estimate(values)

    def test_equal_values_have_an_interval_of_no_width(self) -> None:
        two: Any = pytest.approx(2.0)
        assert estimate([2.0] * 6) == Estimate(2.0, two, two, 6, BOOTSTRAP)

    @pytest.mark.parametrize("of", [estimate, location])
    def test_an_interval_names_its_method(self, of: Callable[[Sequence[float]], Estimate]) -> None:
        values = [3.0, 1.0, 4.0, 1.5, 9.0]
        assert [of(values[:n]).method for n in (1, 2, 4, 5)] == [None, STUDENT, STUDENT, BOOTSTRAP]
        assert ratio(values, values[:3]).method == STUDENT, "the shorter side decides"
        assert ratio(values, values).scaled(2.0).method == BOOTSTRAP

    def test_what_cannot_be_negative_has_no_negative_bound(self) -> None:
        for values in ([1.0, 5.0, 400.0], [0.0, 0.0, 7.0, 1.0, 0.0, 300.0], [0.0, 2.0]):
            interval = estimate(values)
            assert interval.low is not None
            assert interval.low >= 0
        assert (estimate([-5.0, 3.0, 1.0, -2.0, 4.0]).low or 0.0) < 0

    @pytest.mark.parametrize(
        "call",
        [
            lambda: estimate([]),
            lambda: estimate([1.0, float("nan")]),
            lambda: ratio([1.0, 2.0], [0.0, 1.0]),
            lambda: ratio([1.0, 2.0], [1.0], paired=True),
        ],
    )
    def test_values_without_a_median_are_refused(self, call: Callable[[], object]) -> None:
        with pytest.raises(ValueError):
            call()

    def test_another_unit_scales_all_three(self) -> None:
        assert Estimate(2.0, 1.0, 3.0, 5).scaled(1000) == Estimate(2000.0, 1000.0, 3000.0, 5)
        assert Estimate(2.0, None, None, 1).scaled(2).facts() == {
            "median": 4.0,
            "low": None,
            "high": None,
            "n": 1,
            "method": None,
        }

    def test_returns_have_the_same_interval_wherever_their_zero_is(self) -> None:
        values = [3.0, 5.0, 4.0, 9.0, 6.0, 5.5]
        here, there = location(values), location([value - 1000 for value in values])
        assert (here.median, here.n) == (5.25, 6)
        for bound in ("median", "low", "high"):
            assert getattr(here, bound) == pytest.approx(getattr(there, bound) + 1000)
        assert location([7.0]) == Estimate(7.0, None, None, 1)

    def test_quantiles_of_students_distribution_are_the_tabulated_ones(self) -> None:
        assert [round(t_quantile(0.975, freedom), 3) for freedom in (1, 2, 3)] == [
            12.706,
            4.303,
            3.182,
        ]
        assert [round(t_quantile(0.95, freedom), 3) for freedom in (1, 2, 3)] == [
            6.314,
            2.920,
            2.353,
        ]
        tabulated = {4: 2.776, 5: 2.571, 10: 2.228, 30: 2.042, 1000: 1.962}
        assert {freedom: t_quantile(0.975, freedom) for freedom in tabulated} == pytest.approx(
            tabulated, rel=1e-3
        )


def test_the_distribution_of_t_is_that_of_scipy() -> None:
    for freedom in (1, 2, 3, 4, 7, 40, 200, 201):
        for value in (0.0, 0.3, 2.0, 15.0):
            expected = 1 - 2 * scipy.stats.t.sf(value, freedom)
            assert t_within(value, freedom) == pytest.approx(expected, abs=1e-12)
        for probability in (0.6, 0.975, 0.99995):
            expected = scipy.stats.t.ppf(probability, freedom)
            assert t_quantile(probability, freedom) == pytest.approx(expected, rel=1e-6)
