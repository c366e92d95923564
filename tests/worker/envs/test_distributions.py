"""Distributions that a job file writes as text."""

from __future__ import annotations

import re

import numpy as np
import pytest

from orchestrator.core.numbers.changing_numbers import END, TrainingMoment
from orchestrator.core.numbers.distributions import check_disturbance, parse_distribution
from orchestrator.worker.envs.randomization.draws import draw


def drawn(text: str, moment: TrainingMoment = END, count: int = 2000) -> np.ndarray:
    rng = np.random.default_rng(0)
    distribution = parse_distribution(text)
    return np.array([draw(distribution, rng, moment) for _ in range(count)])


@pytest.mark.parametrize(
    ("text", "low", "high", "mean"),
    [
        ("uniform(0.4, 1.2)", 0.4, 1.2, 0.8),
        ("scale( 0.8 ,1.2)", 0.8, 1.2, 1.0),
        ("loguniform(0.01, 100)", 0.01, 100.0, 99.99 / np.log(10_000)),
        ("normal(2, 0.5)", 0.5, 3.5, 2.0),
        ("choice(0, 1, 5)", 0.0, 5.0, 2.0),
        ("uniform(-1e-1, 0)", -0.1, 0.0, -0.05),
    ],
)
def test_values_lie_within_the_bounds_around_the_mean(
    text: str, low: float, high: float, mean: float
) -> None:
    values = drawn(text)
    assert parse_distribution(text).extremes == pytest.approx((low, high))
    assert (low <= values.min(), values.max() <= high) == (True, True)
    assert values.mean() == pytest.approx(mean, abs=4 * values.std() / len(values) ** 0.5)
    assert np.ptp(values) > 0.8 * (high - low)
    assert parse_distribution(text).multiplies == text.startswith("scale")


def test_a_choice_gives_its_values_alone() -> None:
    assert set(drawn("choice(0.5, 2, 2.5)")) == {0.5, 2.0, 2.5}


def test_numbers_change_over_the_training() -> None:
    distribution = parse_distribution("uniform(linear(1, 0.4), linear(1, 2, 0.5))")
    assert distribution.numbers(TrainingMoment(0.0)) == (1.0, 1.0)
    assert distribution.numbers(TrainingMoment(0.25)) == pytest.approx((0.85, 1.5))
    assert distribution.numbers(TrainingMoment(0.75)) == pytest.approx((0.55, 2.0))
    assert distribution.extremes == pytest.approx((0.4, 2.0))
    half = drawn("uniform(linear(1, 0), 1)", TrainingMoment(0.5))
    assert 0.5 <= half.min() < half.max() <= 1.0


def test_numbers_have_a_value_for_each_stage() -> None:
    distribution = parse_distribution("uniform(stages(0, -1, -3), linear(1, 2))")
    assert distribution.numbers(TrainingMoment(0.0, 1)) == (0.0, 1.0)
    assert distribution.numbers(TrainingMoment(0.5, 2)) == (-1.0, 1.5)
    assert distribution.numbers(END) == (-3.0, 2.0)
    assert distribution.extremes == (-3.0, 2.0)


@pytest.mark.parametrize(
    "text",
    [
        "1.2",
        "unifrom(1, 2)",
        "uniform(1)",
        "choice(1)",
        "uniform(1, two)",
        "uniform(2, 1)",
        "uniform(linear(0, 3), 2)",
        "uniform(0, stages(1, -1, 2))",
        "uniform(0, stages(1))",
        "uniform(0, linear(0, 1, 50000))",
        "loguniform(linear(1, 5, 0.1), linear(2, 5))",
        "loguniform(0, 1)",
        "normal(1, -1)",
        "uniform(0, inf)",
        "uniform(0, quadratic(1, 2))",
    ],
)
def test_what_is_no_distribution_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_distribution(text)


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        (
            "observation.noise",
            "choice(0, 1)",
            "choice does not fit here; expected normal(mean, ",
        ),
        ("action.delay", "scale(1, 2)", "scale does not fit here"),
        ("action.delay", "uniform(-1, 2)", "may draw -1; expected at least 0"),
        ("observation.delay", "choice(0, 101)", "may draw 101; expected at most 100 control steps"),
        ("push.period", "uniform(0, 2)", "may draw 0; expected more than 0"),
        ("push.speed", "normal(1, 1)", "may draw -2; expected at least 0"),
    ],
)
def test_what_does_not_fit_a_disturbance_is_refused(key: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        check_disturbance(key, parse_distribution(text))
