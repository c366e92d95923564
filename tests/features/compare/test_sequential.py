"""The test behind `compare --race`: decisions by tables of cases, errors by simulation."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import scipy

from orchestrator.features.compare.sequential import (
    BOUNDS,
    ERROR,
    ERRORS,
    LEAST_SEEDS,
    Outcome,
    Rules,
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
        pytest.param(LOW[:2], HIGH[:2], FEW, False, "open", id="two seeds are no look"),
        pytest.param(LOW, HIGH, FEW, False, "higher", id="far above"),
        pytest.param(HIGH, LOW, FEW, False, "lower", id="far below"),
        pytest.param(LOW, HIGH, FEW, True, "higher", id="decided with the last seed"),
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
        pytest.param([1.0] * 3, [1.0] * 3, FEW, False, "open", id="equal values without noise"),
    ],
)
def test_it_decides_or_goes_on(
    a: Sequence[float], b: Sequence[float], rules: Rules, is_spent: bool, outcome: Outcome
) -> None:
    assert look(a, b, rules, is_spent=is_spent).outcome == outcome


@pytest.mark.parametrize(("a", "b"), [([], []), ([1.0], [1.0, 2.0])])
def test_other_numbers_of_values_are_refused(a: Sequence[float], b: Sequence[float]) -> None:
    with pytest.raises(ValueError):
        look(a, b, FEW)


def test_the_decision_is_what_the_interval_says() -> None:
    chance = random.Random(0)
    seen = set()
    for _ in range(300):
        seeds = chance.randrange(LEAST_SEEDS, 12)
        a = [chance.gauss(0, 1) for _ in range(seeds)]
        b = [chance.gauss(chance.choice((0, 2)), 1) for _ in range(seeds)]
        found = look(a, b, Rules(most_seeds=12, smallest_difference=1.5))
        low, high = found.difference.low, found.difference.high
        assert low is not None
        assert high is not None
        if low > -1.5 and high < 1.5:
            assert found.outcome == "no difference"
        elif low > 0:
            assert found.outcome == "higher"
        elif high < 0:
            assert found.outcome == "lower"
        else:
            assert found.outcome == "open"
        assert found.p is not None
        assert (found.p <= ERROR) == (low > 0 or high < 0)
        seen.add(found.outcome)
    assert seen >= {"no difference", "higher", "open"}


def test_bounds_rise_with_the_budget_and_as_the_error_falls() -> None:
    rows = [BOUNDS[budget] for budget in sorted(BOUNDS)]
    assert all(list(row) == sorted(row) for row in rows)
    for place in range(len(ERRORS)):
        column = [row[place] for row in rows]
        assert column == sorted(column)


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
            outcome = look(a, b, rules, is_spent=len(a) >= rules.most_seeds).outcome
        ended.append((outcome, len(a)))
    return ended


@pytest.mark.nightly
@pytest.mark.parametrize(
    "most_seeds",
    [
        5,
        24,
    ],
)
@pytest.mark.parametrize(("draw_a", "draw_b"), [(normal, normal), (normal, wide), (skewed, skewed)])
def test_equal_bodies_are_decided_in_at_most_five_percent(
    draw_a: Draw, draw_b: Draw, most_seeds: int
) -> None:
    ended = raced(draw_a, draw_b, Rules(most_seeds=most_seeds), races=1_000)
    wrong = sum(outcome != "not decided" for outcome, _ in ended)
    assert wrong <= 62  # 50, and chance of the count


@pytest.mark.nightly
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


def test_the_look_knows_nothing_of_the_order_of_seeds() -> None:
    assert look(LOW, HIGH, FEW) == look(LOW[::-1], HIGH[::-1], FEW)
    assert look(LOW[:2], HIGH[:2], FEW).difference.low is None
