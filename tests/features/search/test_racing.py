"""Racing by itself: which trial gets a further seed, and what trials are worth."""

from __future__ import annotations

from collections.abc import Sequence

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


def test_of_the_leader_and_its_closest_rival_the_one_that_is_known_less_is_next() -> None:
    assert next_of((10.0, 1.0), (9.0, 2.0), (8.0, 1.0)) == 1
    assert next_of((10.0, 2.0), (9.0, 1.0), (8.0, 1.0)) == 0


def test_the_closest_rival_is_the_one_that_is_least_surely_worse() -> None:
    """Not the one with the second best mean: 1 and 1/2 standard deviations of the difference."""
    assert next_of((10.0, 0.6), (9.0, 0.8), (7.5, 4.96)) == 2


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
