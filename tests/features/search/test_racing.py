"""Racing by itself: which trial gets a further seed, and what trials are worth."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from statistics import fmean

import pytest

from orchestrator.features.search import racing
from orchestrator.features.search.racing import Contender, Shrunken, next_contender, shrunken


def contenders(*values: Sequence[float], pending: Sequence[int] = ()) -> list[Contender]:
    return [
        Contender(number=number, values=of_seeds, pending=waiting)
        for number, (of_seeds, waiting) in enumerate(
            zip(values, pending or [0] * len(values), strict=True)
        )
    ]


def next_by_seeds(tried: Sequence[Contender], most_seeds: int) -> int | None:
    """Where nothing is believed but what the seeds of each say."""
    return next_contender(tried, shrunken(tried), most_seeds=most_seeds)


def next_of(
    *believed: tuple[float, float | None],
    seeds: Sequence[int] = (),
    pending: Sequence[int] = (),
    most_seeds: int = 9,
) -> int | None:
    """With these means and errors.

    :param seeds: that have values; one each.
    """
    tried = contenders(
        *[[0.0] * number for number in seeds or [1] * len(believed)], pending=pending
    )
    beliefs = {
        number: Shrunken(mean=mean, error=error) for number, (mean, error) in enumerate(believed)
    }
    return next_contender(tried, beliefs, most_seeds=most_seeds)


def test_a_mean_is_drawn_to_that_of_all_by_as_much_as_it_is_noise() -> None:
    """First seeds 0, 4 and 8: their variance is 16, of which half counts as noise before there is a
    second seed; so does half of the distance to the mean.
    """
    worth = shrunken(contenders([0.0], [4.0], [8.0]))
    assert [worth[number].mean for number in range(3)] == pytest.approx([2.0, 4.0, 6.0])
    assert [worth[number].error for number in range(3)] == pytest.approx([2.0] * 3)


def test_noise_is_pooled_over_the_trials_with_several_seeds() -> None:
    """Sums of squares 2 and 2 with one degree of freedom each, and the guess 8 with two: the noise
    is (16 + 4) / 4 = 5, and 11 of the variance 16 are differences.
    """
    worth = shrunken(contenders([0.0], [4.0, 6.0], [8.0, 10.0]))
    weights = [1 / (11 + 5), 1 / (11 + 2.5), 1 / (11 + 2.5)]
    means = [0.0, 5.0, 9.0]
    centre = sum(w * m for w, m in zip(weights, means, strict=True)) / sum(weights)
    for number, (weight, mean) in enumerate(zip(weights, means, strict=True)):
        expected = centre + 11 * weight * (mean - centre)
        assert worth[number].mean == pytest.approx(expected)
    assert worth[0].error == pytest.approx(math.sqrt(11 * 5 / 16))
    assert worth[2].error == pytest.approx(math.sqrt(11 * 2.5 / 13.5))


def test_of_equal_values_and_single_trials_the_error_is_not_known() -> None:
    assert shrunken([]) == {}
    assert shrunken([Contender(number=3, values=())]) == {}
    (only,) = shrunken(contenders([2.0, 4.0])).values()
    assert (only.mean, only.error, str(only)) == (3.0, None, "3.00")
    equal = shrunken(contenders([5.0], [5.0])).values()
    assert {(one.mean, one.error) for one in equal} == {(5.0, None)}


@pytest.mark.parametrize("first", [0.0, 1e-9])
def test_a_lucky_further_seed_among_equal_first_ones_decides_nothing(first: float) -> None:
    """As of success rates that are all 0 at first."""
    tried = contenders([first, 5.0], [0.0], [0.0], [0.0], [0.0], [0.0])
    worth = shrunken(tried)
    assert worth[0].mean < 2.5, "drawn to the others"
    assert all(one.error for one in worth.values())
    assert next_by_seeds(tried, 5) == 1, "of those that are known less"


def test_of_the_leader_and_its_closest_rival_the_one_that_is_known_less_is_next() -> None:
    assert next_of((10.0, 1.0), (9.0, 2.0), (8.0, 1.0)) == 1
    assert next_of((10.0, 2.0), (9.0, 1.0), (8.0, 1.0)) == 0


def test_the_closest_rival_is_the_one_that_is_least_surely_worse() -> None:
    """Not the one with the second best mean: 1 and 1/2 standard deviations of the difference."""
    assert next_of((10.0, 0.6), (9.0, 0.8), (7.5, 4.96)) == 2


def test_of_equal_errors_the_one_with_the_fewest_seeds_is_next() -> None:
    assert next_of((10.0, 1.0), (9.0, 1.0), seeds=[2, 1]) == 1
    assert next_of((10.0, 1.0), (9.0, 1.0), seeds=[1, 2]) == 0


def test_seeds_that_have_no_value_yet_narrow_a_belief_already() -> None:
    believed = [(10.0, 1.0), (9.0, 1.5), (8.0, 1.0)]
    assert next_of(*believed) == 1
    assert next_of(*believed, pending=[0, 2, 0]) == 0


def test_seeds_that_are_lost_narrow_no_belief_and_count_against_the_most() -> None:
    """Though three have failed, nobody knows whether the rival is worse than the leader."""
    leader = Contender(number=0, values=(1.0,), lost=3)
    rival = Contender(number=1, values=(1.0,))
    beliefs = {0: Shrunken(mean=10.0, error=3.0), 1: Shrunken(mean=5.0, error=0.5)}
    assert next_contender([leader, rival], beliefs, most_seeds=9) == 0
    assert next_contender([leader, rival], beliefs, most_seeds=4) == 1
    waits = Contender(number=0, values=(1.0,), pending=3)
    assert next_contender([waits, rival], beliefs, most_seeds=9) is None


def test_where_one_of_the_two_is_full_the_other_one_is_next_and_then_another_rival() -> None:
    believed = [(10.0, 1.0), (9.0, 2.0), (8.0, 1.0)]
    assert next_of(*believed, seeds=[1, 3, 1], most_seeds=3) == 0
    assert next_of(*believed, seeds=[3, 3, 1], most_seeds=3) == 2
    assert next_of(*believed, seeds=[3, 3, 3], most_seeds=3) is None
    assert next_of(*believed, pending=[2, 2, 2], most_seeds=3) is None


def test_who_is_surely_worse_gets_none_however_few_seeds_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    believed = [(10.0, 3.0), (-10.0, 4.0), (-30.0, 4.0)]
    assert next_of(*believed, seeds=[3, 1, 1]) is None, "four standard deviations"
    monkeypatch.setattr(racing, "SURE", 4.0)
    assert next_of(*believed, seeds=[3, 1, 1]) == 1


def test_one_alone_and_what_nothing_is_believed_of_get_none() -> None:
    assert next_of((1.0, 1.0)) is None
    assert next_contender([], {}, most_seeds=9) is None
    others = contenders([1.0], [2.0])
    assert next_contender(others, {0: Shrunken(mean=1.0, error=1.0)}, most_seeds=9) is None


def test_where_nothing_is_known_of_differences_all_get_seeds_in_turn() -> None:
    tried = contenders([5.0], [5.0], [5.0])
    for number in range(6):
        chosen = next_by_seeds(tried, 3)
        assert chosen is not None, number
        values = [one.values for one in tried]
        values[chosen] = [*values[chosen], 5.0]
        tried = contenders(*values)
    assert [len(one.values) for one in tried] == [3, 3, 3]
    assert next_by_seeds(tried, 3) is None


def test_what_has_no_value_yet_is_no_contender() -> None:
    tried = [*contenders([1.0], [2.0]), Contender(number=2, values=(), pending=1)]
    assert next_by_seeds(tried, 5) == 1


BODIES = 24
TRAININGS = 72
NOISE = 1.0
"""As large as the spread over bodies."""


def raced(truth: Sequence[float], rng: random.Random) -> int:
    values = [[rng.gauss(mean, NOISE)] for mean in truth]
    for _ in range(TRAININGS - BODIES):
        chosen = next_by_seeds(contenders(*values), 10)
        if chosen is None:
            break
        values[chosen].append(rng.gauss(truth[chosen], NOISE))
    worth = shrunken(contenders(*values))
    return max(worth, key=lambda number: worth[number].mean)


def equal_seeds(truth: Sequence[float], rng: random.Random) -> int:
    seeds = TRAININGS // BODIES
    means = [fmean(rng.gauss(mean, NOISE) for _ in range(seeds)) for mean in truth]
    return means.index(max(means))


@pytest.mark.nightly
def test_the_best_is_found_more_often_than_with_equally_many_seeds_each() -> None:
    rng = random.Random(38)
    found = {raced: 0, equal_seeds: 0}
    lost = {raced: 0.0, equal_seeds: 0.0}
    for _ in range(400):
        truth = [rng.gauss(0.0, 1.0) for _ in range(BODIES)]
        for search in found:
            chosen = search(truth, rng)
            found[search] += truth[chosen] == max(truth)
            lost[search] += max(truth) - truth[chosen]
    assert found[raced] > 1.1 * found[equal_seeds]
    assert lost[raced] < 0.8 * lost[equal_seeds]


def test_the_winner_is_worth_what_the_model_says_though_it_had_luck() -> None:
    rng = random.Random(7)
    by_model = []
    by_values = []
    for _ in range(150):
        truth = [rng.gauss(0.0, 1.0) for _ in range(BODIES)]
        values = [[rng.gauss(mean, NOISE)] for mean in truth]
        for _ in range(BODIES):
            chosen = next_by_seeds(contenders(*values), 5)
            if chosen is not None:
                values[chosen].append(rng.gauss(truth[chosen], NOISE))
        worth = shrunken(contenders(*values))
        best = max(worth, key=lambda number: worth[number].mean)
        by_model.append((worth[best].mean - truth[best]) / worth[best].error)
        by_values.append((fmean(values[best]) - truth[best]) / worth[best].error)
    assert -0.45 < fmean(by_model) < 0.2, "rather too little than too much"
    assert fmean(by_values) > 0.6
