"""Which trials of a search go on from a rung, as tables of cases and over arbitrary searches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.features.search.declaration.spec import SchedulerKind, SchedulerSpec, TrialOrder
from orchestrator.features.search.searcher.schedulers import FIRST_GO_ON, Promotion, Scheduler, make


def scheduler(
    kind: SchedulerKind = "asha",
    order: TrialOrder = "asynchronous",
    *,
    rungs: int = 2,
    factor: int = 3,
) -> Scheduler:
    return make(
        SchedulerSpec(kind=kind, min_env_steps=100, factor=factor), order, rungs, "maximize"
    )


def after(
    compared: Scheduler, rung: int, *values: float | None, first: int = 0
) -> list[tuple[int, int | None]]:
    """Promotions when trials ``first``, ``first + 1`` … come to ``rung`` with ``values``, one after
    another."""
    promotions = []
    for trial, value in enumerate(values, first):
        compared.reached(trial, rung, value)
        promotions += decided(compared)
    return [(promotion.trial, promotion.rung) for promotion in promotions]


def decided(compared: Scheduler) -> list[Promotion]:
    """What goes on now, entered as the searcher enters it."""
    promotions = compared.decisions()
    for promotion in promotions:
        compared.promoted(promotion.trial, promotion.rung)
    assert compared.decisions() == []
    return promotions


def test_asha_promotes_the_best_third_of_those_that_have_come_whenever_one_comes() -> None:
    compared = scheduler()
    assert after(compared, 0, 5.0, 7.0) == []
    assert after(compared, 0, 1.0, first=2) == [(1, 1)]
    assert after(compared, 0, 6.0, 2.0, first=3) == []
    assert after(compared, 0, 8.0, first=5) == [(5, 1)]
    assert after(compared, 0, 0.0, 0.0, 0.0, first=6) == [(3, 1)], (
        "one that was left behind is promoted later"
    )


@pytest.mark.parametrize("order", ["asynchronous", "fixed"])
def test_a_trial_that_had_failed_and_is_retried_goes_on_like_any_other(order: TrialOrder) -> None:
    compared = scheduler(order=order, rungs=1)
    compared.no_more(3)
    for trial, value in enumerate((1.0, 2.0)):
        compared.reached(trial, 0, value)
    compared.failed(2)
    assert decided(compared) == [Promotion(1, None)]
    compared.retried(2)
    compared.reached(2, 0, 3.0)
    assert decided(compared) == [Promotion(2, None)]


def test_asha_gives_those_of_higher_rungs_first() -> None:
    compared = scheduler()
    after(compared, 0, *map(float, range(9)))
    for trial in (8, 7, 6):
        compared.reached(trial, 1, -1.0 * trial)
    compared.reached(9, 0, 10.0)
    assert [promotion.rung for promotion in compared.decisions()] == [None, 1]


def test_in_a_short_search_the_best_trial_is_trained_to_its_end() -> None:
    compared = scheduler()
    assert after(compared, 0, 1.0, 2.0) == []
    compared.no_more(3)
    assert compared.decisions() == [], "one is still on the way"
    compared.failed(2)
    assert compared.decisions() == [Promotion(1, 1)]
    assert after(compared, 1, 0.0, first=1) == [(1, None)]


@pytest.mark.parametrize("order", ["asynchronous", "fixed"])
@pytest.mark.parametrize("fails", ["at once", "from the next rung on"])
def test_when_all_have_come_the_next_best_takes_the_place_of_one_that_fails(
    fails: str, order: TrialOrder
) -> None:
    compared = scheduler(order=order)
    compared.no_more(3)
    for trial, value in enumerate((3.0, 1.0, 2.0)):
        compared.reached(trial, 0, value)
    assert decided(compared) == [Promotion(0, 1)]
    if fails == "from the next rung on":
        compared.reached(0, 1, 3.0)
        assert decided(compared) == [Promotion(0, None)]
    compared.failed(0)
    assert decided(compared) == [Promotion(2, 1)]
    compared.failed(2)
    assert decided(compared) == [Promotion(1, 1)]
    assert after(compared, 1, 1.0, first=1) == [(1, None)]
    compared.retried(0)
    assert decided(compared) == [], "what has gone on goes on"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 1.0, 1.0], 0),
        ([None, 1.0, 2.0], 2),
        ([None, -5.0, None], 1),
        ([None, None, None], 0),
        ([math.nan, math.inf, 0.0], 2),
    ],
)
def test_of_equal_trials_the_first_is_better_and_without_a_value_none_is(
    values: list[float | None], expected: int
) -> None:
    assert after(scheduler(), 0, *values) == [(expected, 1)]


def test_smaller_values_are_better_where_the_search_minimizes() -> None:
    compared = make(SchedulerSpec(kind="asha", min_env_steps=100), "asynchronous", 1, "minimize")
    assert after(compared, 0, 3.0, None, 4.0) == [(0, None)]


def test_a_trial_is_stopped_that_is_worse_than_the_median_of_those_before() -> None:
    compared = scheduler("median")
    assert len(after(compared, 0, None, *map(float, range(FIRST_GO_ON - 1)))) == FIRST_GO_ON
    assert after(compared, 0, 0.5, 1.0, 1.0, first=FIRST_GO_ON) == [
        (FIRST_GO_ON + 1, 1),
        (FIRST_GO_ON + 2, 1),
    ]
    assert after(compared, 1, 0.0, first=3) == [(3, None)], "each rung has a median of its own"


def test_brackets_wait_for_all_of_their_trials_and_one_of_each_is_trained_to_its_end() -> None:
    compared = scheduler(order="fixed")
    assert after(compared, 0, *map(float, range(8))) == []
    assert after(compared, 0, *map(float, range(10, 18)), first=9) == [], "another bracket"
    compared.failed(8)
    assert [promotion.trial for promotion in decided(compared)] == [7, 6, 5]
    compared.reached(6, 1, 1.0)
    compared.failed(7)
    assert decided(compared) == [Promotion(4, 1)]
    assert after(compared, 1, 0.0, first=5) == []
    assert after(compared, 1, 0.5, first=4) == [(6, None)]


def search(
    compared: Scheduler,
    values: Sequence[Sequence[float | None]],
    fails: Callable[[int, int], bool],
    slots: Random,
) -> tuple[list[Promotion], list[tuple[str, tuple[int | float | None, ...]]]]:
    """A search whose trials come to their rungs in an order that ``slots`` chooses.

    Returns its promotions, and the calls that led to them. No trial is promoted that does not wait
    at the rung before.

    :param values: of each trial, at each rung. :param fails: whether a trial fails on the way to a
        rung.
    """
    calls: list[tuple[str, tuple[int | float | None, ...]]] = []
    promotions: list[Promotion] = []
    running: list[tuple[int, int | None]] = []
    begun, rungs = 0, len(values[0])
    at: dict[int, int] = {}

    def call(name: str, *arguments: int | float | None) -> None:
        calls.append((name, arguments))
        getattr(compared, name)(*arguments)
        for promotion in decided(compared):
            calls.append(("promoted", (promotion.trial, promotion.rung)))
            rung = at.pop(promotion.trial)
            assert promotion.rung == (rung + 1 if rung + 1 < rungs else None)
            promotions.append(promotion)
            running.append((promotion.trial, promotion.rung))

    while running or begun < len(values):
        if begun < len(values) and (not running or slots.random() < 0.5):
            running.append((begun, 0))
            begun += 1
            if begun == len(values):
                call("no_more", begun)
            continue
        trial, rung = running.pop(slots.randrange(len(running)))
        if rung is not None and fails(trial, rung):
            call("failed", trial)
        elif rung is None:
            call("ended", trial)
        else:
            at[trial] = rung
            call("reached", trial, rung, values[trial][rung])
    return promotions, calls


RUNGS = 2
TRIAL_VALUES = st.lists(
    st.one_of(st.none(), st.integers(-3, 3).map(float)), min_size=RUNGS, max_size=RUNGS
)
VALUES = st.lists(TRIAL_VALUES, min_size=1, max_size=25)
FAILURES = st.sets(st.tuples(st.integers(0, 24), st.integers(0, RUNGS - 1)))
KINDS = st.sampled_from(
    [("asha", "asynchronous"), ("median", "asynchronous"), ("asha", "fixed"), ("median", "fixed")]
)


@settings(max_examples=40)
@given(KINDS, VALUES, FAILURES, st.randoms(use_true_random=False))
def test_in_any_search_the_same_calls_lead_to_the_same_promotions_and_as_many_as_are_due(
    kind: tuple[SchedulerKind, TrialOrder],
    values: list[list[float | None]],
    fail: set[tuple[int, int]],
    slots: Random,
) -> None:
    promotions, calls = search(
        scheduler(*kind), values, lambda trial, rung: (trial, rung) in fail, slots
    )
    again = scheduler(*kind)
    for name, arguments in calls:
        expected = [
            ("promoted", (promotion.trial, promotion.rung)) for promotion in again.decisions()
        ]
        assert (name == "promoted") == bool(expected)
        assert not expected or (name, arguments) in expected
        getattr(again, name)(*arguments)
    assert again.decisions() == []
    comers = len(values)
    for rung in range(RUNGS):
        going = [
            promotion
            for promotion in promotions
            if promotion.rung == (rung + 1 if rung + 1 < RUNGS else None)
        ]
        if kind == ("asha", "asynchronous") and not fail:
            assert len(going) >= math.ceil(comers / 3)
        comers = len(going)


@settings(max_examples=40)
@given(VALUES, FAILURES, st.randoms(use_true_random=False), st.randoms(use_true_random=False))
def test_brackets_promote_the_same_trials_in_whatever_order_these_come(
    values: list[list[float | None]], fail: set[tuple[int, int]], one: Random, other: Random
) -> None:
    promoted = [
        set(
            search(
                scheduler(order="fixed"), values, lambda trial, rung: (trial, rung) in fail, slots
            )[0]
        )
        for slots in (one, other)
    ]
    assert promoted[0] == promoted[1]
    size = 9
    for number in range(math.ceil(len(values) / size)):
        bracket = range(number * size, min((number + 1) * size, len(values)))
        alive = [trial for trial in bracket if (trial, 0) not in fail]
        at_the_first = [
            promotion
            for promotion in promoted[0]
            if promotion.trial in bracket and promotion.rung == 1
        ]
        going = min(len(alive), math.ceil(len(bracket) / 3))
        assert going <= len(at_the_first) <= len(alive)
        failed = [promotion for promotion in at_the_first if (promotion.trial, 1) in fail]
        assert len(at_the_first) == min(len(alive), going + len(failed))
        to_the_end = [one for one in promoted[0] if one.trial in bracket and one.rung is None]
        assert len(to_the_end) == (len(failed) < len(at_the_first))
