"""The test behind `compare --race`: decisions by tables of cases, errors by simulation."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import scipy

from orchestrator.analysis import sequential
from orchestrator.analysis.sequential import (
    BOUNDS,
    ERRORS,
    LEAST_P,
    LEAST_SEEDS,
    SHAPE,
    Outcome,
    Rules,
    decide,
    look,
)

LOW = [1.0, 1.2, 0.9, 1.1, 1.0]
HIGH = [2.0, 2.4, 1.9, 2.2, 2.1]
NEAR = [1.1, 1.0, 1.2, 0.9, 1.0]
FEW = Rules(most_seeds=8)
WITH_LIMIT = Rules(most_seeds=8, smallest_difference=0.6)


@pytest.mark.parametrize(
    ("a", "b", "rules", "is_spent", "outcome"),
    [
        pytest.param([1.0], [9.0], FEW, False, "open", id="one seed says nothing"),
        pytest.param([1.0], [9.0], FEW, True, "not decided", id="nor does it with no budget left"),
        pytest.param(LOW[:2], HIGH[:2], FEW, False, "open", id="two seeds are no look"),
        pytest.param(LOW, HIGH, FEW, False, "higher", id="far above"),
        pytest.param(HIGH, LOW, FEW, False, "lower", id="far below"),
        pytest.param(LOW, HIGH, FEW, True, "higher", id="decided with the last seed"),
        pytest.param(LOW, NEAR, FEW, False, "open", id="near each other"),
        pytest.param(LOW, NEAR, FEW, True, "not decided", id="near each other, budget spent"),
        pytest.param(LOW, NEAR, WITH_LIMIT, False, "no difference", id="none that matters"),
        pytest.param(LOW, HIGH, WITH_LIMIT, False, "higher", id="one that matters"),
        pytest.param(
            LOW,
            HIGH,
            Rules(smallest_difference=9.0),
            False,
            "no difference",
            id="one that does not",
        ),
        pytest.param([1.0] * 3, [2.0] * 3, FEW, False, "higher", id="values without noise"),
        pytest.param([1.0] * 3, [1.0] * 3, FEW, False, "open", id="equal values without noise"),
        pytest.param([1.0] * 3, [1.0] * 3, WITH_LIMIT, False, "no difference", id="and a limit"),
        pytest.param([1e200, 2e200, 3e200], [-1e200, 4e200, 2e200], FEW, False, "open", id="huge"),
    ],
)
def test_it_decides_or_goes_on(
    a: Sequence[float], b: Sequence[float], rules: Rules, is_spent: bool, outcome: Outcome
) -> None:
    assert decide(a, b, rules, is_spent=is_spent) == outcome
    assert look(a, b, rules, is_spent=is_spent).outcome == outcome


@pytest.mark.parametrize("seeds", [3, 5, 8])
def test_bodies_that_are_very_far_apart_are_decided(seeds: int) -> None:
    """As one that walks and one that falls: chance would hardly ever do that."""
    for power in range(1, 160):
        apart = 10 ** (power / 10)
        a = [0.01 * seed for seed in range(seeds)]
        b = [apart + value for value in a]
        seen = look(a, b, FEW)
        assert seen.difference > 0
        assert decide(a, b, FEW, is_spent=True) in ("higher", "not decided")
        if apart > 10_000:
            assert decide(a, b, FEW, is_spent=True) == "higher"


@pytest.mark.parametrize(("a", "b"), [([], []), ([1.0], [1.0, 2.0])])
def test_other_numbers_of_values_are_refused(a: Sequence[float], b: Sequence[float]) -> None:
    with pytest.raises(ValueError, match="as many values of both"):
        decide(a, b, FEW)


def test_the_decision_is_what_the_interval_says() -> None:
    chance = random.Random(0)
    seen = set()
    for _ in range(300):
        seeds = chance.randrange(LEAST_SEEDS, 12)
        a = [chance.gauss(0, 1) for _ in range(seeds)]
        b = [chance.gauss(chance.choice((0, 2)), 1) for _ in range(seeds)]
        found = look(a, b, Rules(most_seeds=12, smallest_difference=1.5))
        assert found.reach is not None
        low = found.difference - found.reach
        high = found.difference + found.reach
        if low > -1.5 and high < 1.5:
            assert found.outcome == "no difference"
        elif low > 0:
            assert found.outcome == "higher"
        elif high < 0:
            assert found.outcome == "lower"
        else:
            assert found.outcome == "open"
        seen.add(found.outcome)
    assert seen >= {"no difference", "higher", "open"}


def test_p_is_below_five_percent_where_zero_is_outside_of_the_interval() -> None:
    for shift in np.linspace(0, 3, 40):
        found = look(LOW, [value + float(shift) for value in NEAR], FEW)
        assert found.reach is not None
        assert found.p is not None
        assert LEAST_P <= found.p <= 1
        assert (found.p < 0.05) == (abs(found.difference) > found.reach)


def test_intervals_are_wider_than_those_of_one_look_and_wider_the_earlier_the_look() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(0, 1, (2, 20)).tolist()
    stretches = []
    for seeds in (3, 6, 12, 20):
        found = look(a[:seeds], b[:seeds], Rules(most_seeds=20))
        once = scipy.stats.ttest_ind(b[:seeds], a[:seeds], equal_var=False).confidence_interval(
            0.95
        )
        assert found.reach is not None
        stretches.append(found.reach / ((once.high - once.low) / 2))
    assert stretches == sorted(stretches, reverse=True)
    assert 1.1 < stretches[-1] < 1.3


def test_more_seeds_than_the_budget_are_their_own_budget() -> None:
    many = [1.0, 2.0, 3.0] * 5
    assert look(many, many[::-1], FEW) == look(many, many[::-1], Rules(most_seeds=15))


def test_bounds_rise_with_the_budget_and_as_the_error_falls() -> None:
    rows = [BOUNDS[budget] for budget in sorted(BOUNDS)]
    assert all(list(row) == sorted(row) for row in rows)
    for place in range(len(ERRORS)):
        column = [row[place] for row in rows]
        assert column == sorted(column)


# -- by simulation

Draw = Callable[[random.Random], float]


def normal(chance: random.Random) -> float:
    return chance.gauss(0, 1)


def wide(chance: random.Random) -> float:
    return chance.gauss(0, 4)


def skewed(chance: random.Random) -> float:
    return chance.lognormvariate(0, 1)


def raced(
    draw_a: Draw, draw_b: Draw, rules: Rules, *, races: int, at_once: int = 1
) -> list[tuple[Outcome, int]]:
    """Outcomes of races, and their seeds; ``at_once`` seeds of both are added between two looks."""
    chance = random.Random(1)
    ended = []
    for _ in range(races):
        a: list[float] = []
        b: list[float] = []
        outcome: Outcome = "open"
        while outcome == "open":
            for _ in range(min(at_once, rules.most_seeds - len(a))):
                a.append(draw_a(chance))
                b.append(draw_b(chance))
            outcome = decide(a, b, rules, is_spent=len(a) >= rules.most_seeds)
        ended.append((outcome, len(a)))
    return ended


@pytest.mark.parametrize("most_seeds", [5, 12, 24])
@pytest.mark.parametrize(("draw_a", "draw_b"), [(normal, normal), (normal, wide), (skewed, skewed)])
def test_equal_bodies_are_decided_in_at_most_five_percent(
    draw_a: Draw, draw_b: Draw, most_seeds: int
) -> None:
    ended = raced(draw_a, draw_b, Rules(most_seeds=most_seeds), races=1_000)
    wrong = sum(outcome != "not decided" for outcome, _ in ended)
    assert wrong <= 62  # 50, and chance of the count


def test_seeds_that_come_several_at_once_make_no_more_errors() -> None:
    ended = raced(normal, normal, Rules(most_seeds=24), races=1_000, at_once=4)
    assert sum(outcome != "not decided" for outcome, _ in ended) <= 50


def test_one_standard_deviation_takes_fewer_seeds_than_a_fixed_test_of_the_same_power() -> None:
    ended = raced(normal, lambda chance: chance.gauss(1, 1), Rules(), races=1_000)
    power = sum(outcome == "higher" for outcome, _ in ended) / len(ended)
    mean_seeds = sum(seeds for _, seeds in ended) / len(ended)
    fixed = 1
    found = 0.0
    while found < power:
        fixed += 1
        freedom = 2 * fixed - 2
        found = scipy.stats.nct.sf(scipy.stats.t.ppf(0.975, freedom), freedom, np.sqrt(fixed / 2))
    assert power >= 0.9
    assert mean_seeds / (fixed - 1) <= 0.75
    assert sum(outcome == "lower" for outcome, _ in ended) <= 5


def test_a_difference_of_the_declared_size_is_seldom_found_to_be_none() -> None:
    rules = Rules(smallest_difference=1.0)
    ended = raced(normal, lambda chance: chance.gauss(1, 1), rules, races=500)
    assert sum(outcome == "no difference" for outcome, _ in ended) <= 25
    equal = raced(normal, normal, rules, races=500)
    assert sum(outcome == "no difference" for outcome, _ in equal) >= 350
    assert sum(seeds for _, seeds in equal) / 500 < 24  # of 30


def simulated_bounds(most_seeds: int, chance: np.random.Generator, races: int) -> Any:
    """For each of ERRORS the z that the largest look of a race of equal bodies exceeds in so many cases.

    One of the bodies has the same value with every seed: there Welch's test has the error that it
    states, and a smaller one the more alike the spreads are.
    """
    largest = np.zeros(races)
    values = chance.standard_normal((races, most_seeds))
    sums, squares = values.cumsum(axis=1), (values**2).cumsum(axis=1)
    for seeds in range(LEAST_SEEDS, most_seeds + 1):
        mean = sums[:, seeds - 1] / seeds
        variance = (squares[:, seeds - 1] - seeds * mean**2) / (seeds - 1)
        beyond = scipy.stats.t.sf(np.abs(mean) / np.sqrt(variance / seeds), seeds - 1)
        weight = (seeds / most_seeds) ** (0.5 - SHAPE)
        np.maximum(largest, scipy.stats.norm.isf(beyond) * weight, out=largest)
    return 1.02 * np.quantile(largest, 1 - np.array(ERRORS))  # no bound too narrow by chance


@pytest.mark.parametrize("most_seeds", [5, 24])
def test_bounds_are_those_of_the_simulation_that_made_them(most_seeds: int) -> None:
    found = simulated_bounds(most_seeds, np.random.default_rng(1), 40_000)
    for bound, made, error in zip(BOUNDS[most_seeds], found, ERRORS, strict=True):
        assert bound == pytest.approx(made, abs=0.02 if error >= 0.05 else 0.1)


def test_the_look_knows_nothing_of_the_order_of_seeds() -> None:
    assert look(LOW, HIGH, FEW) == look(LOW[::-1], HIGH[::-1], FEW)
    assert sequential.look(LOW[:2], HIGH[:2], FEW).reach is None
