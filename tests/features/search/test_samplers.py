"""Samplers: the same points for the same asks and tells, also after pickling. pyribs starts a
process when imported."""

from __future__ import annotations

import json
import math
import pickle
import random
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.errors import UsageError
from orchestrator.features.search import shown_trials
from orchestrator.features.search.declaration.spec import (
    ARCHIVE_SAMPLERS,
    WITHOUT_CHOICES,
    ArchiveAxis,
    Dimension,
    SearchSpec,
)
from orchestrator.features.search.history import Trial
from orchestrator.features.search.searcher.samplers import (
    FurtherOutcome,
    Sampler,
    TrialOutcome,
    make,
)
from orchestrator.features.search.searcher.space import Space

NUMBERS = (
    Dimension(key="a", low=0.0, high=1.0),
    Dimension(key="b", low=1e-4, high=1e-1, log=True),
    Dimension(key="c", low=2, high=9, integer=True),
)
CHOICE = Dimension(key="d", choices=([32, 32], [64, 64]))
AXES = (
    ArchiveAxis(name="a", low=0, high=1, cells=8),
    ArchiveAxis(name="c", low=0, high=10, cells=8),
)
LATE = ("sobol", "nsga2", "map-elites", "cma-me", "tpe", "gp")
SLOW_TO_IMPORT = [pytest.param(name, marks=pytest.mark.nightly) for name in LATE]
EVERY = ["random", "cmaes", *SLOW_TO_IMPORT]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Optuna fits the model of ``gp`` with torch, whose threads would wait for each other beside
    other tests; a searcher gives it one."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


def spec_of(sampler: str, **changes: Any) -> SearchSpec:
    several = sampler == "nsga2"
    spec = SearchSpec(
        space=NUMBERS if sampler in WITHOUT_CHOICES else (*NUMBERS, CHOICE),
        sampler=sampler,
        seed=3,
        objectives=("x", "y")[: 1 + several],
        directions=("maximize", "minimize")[: 1 + several],
        measures=AXES if sampler in ARCHIVE_SAMPLERS else (),
        sampler_options={"n_startup_trials": 30} if sampler == "gp" else {},  # its model takes long
        trials=100,
    )
    return replace(spec, **changes)


def value(point: Mapping[str, Any]) -> float:
    """At most 0; best at a = 0.3, b = 0.003."""
    return -((point["a"] - 0.3) ** 2) - (math.log10(point["b"]) + 2.5) ** 2 / 9


def outcome_of(spec: SearchSpec, number: int, point: Mapping[str, Any]) -> TrialOutcome:
    if number % 7 in (0, 3):
        return TrialOutcome(values=None)
    values = (value(point), float(point["c"]))[: len(spec.objectives)]
    return TrialOutcome(
        values=values, measures=(point["a"], point["c"]) if spec.measures else None, env_steps=100
    )


def asked(
    spec: SearchSpec, asks: int, *, at_once: int = 5, pickled_at: int = -1, base: Path | None = None
) -> list[Any]:
    """The points of a search in which trials end in any order, and some are never told."""
    sampler: Sampler = make(spec, base)
    order, points, running = random.Random(1), list[dict[str, Any]](), list[int]()
    for number in range(asks):
        if number == pickled_at:
            sampler = pickle.loads(pickle.dumps(sampler))
        points.append(dict(sampler.ask(number)))
        running.append(number)
        while len(running) > at_once:
            ended = running.pop(order.randrange(len(running)))
            if ended % 11 != 5:
                sampler.tell(ended, points[ended], outcome_of(spec, ended, points[ended]))
    return points


@pytest.mark.parametrize("name", EVERY)
def test_sampler_goes_on_as_if_it_had_not_been_pickled(name: str) -> None:
    spec = spec_of(name)
    points = asked(spec, 45)
    assert asked(spec, 45, pickled_at=37) == points
    assert asked(replace(spec, seed=4), 45) != points
    keys = [dimension.key for dimension in spec.space]
    assert all(list(point) == keys for point in points)
    assert len({json.dumps(point) for point in points}) > 40
    for point in points:
        Space(spec.space).encode(
            point
        )  # raises ValueError for a value that is none of its dimension
    json.dumps(points, allow_nan=False)


def raced(spec: SearchSpec, asks: int, *, hears: bool, pickled_at: int = -1) -> list[Any]:
    """The points of a search in which every third trial has a further seed, which is better by 1."""
    sampler: Sampler = make(spec)
    points = list[dict[str, Any]]()
    for number in range(asks):
        if number == pickled_at:
            sampler = pickle.loads(pickle.dumps(sampler))
        points.append(dict(sampler.ask(number)))
        seen = value(points[-1])
        sampler.tell(number, points[-1], TrialOutcome(values=(seen, 0.0)[: len(spec.objectives)]))
        if hears and number % 3 == 0:
            again = FurtherOutcome(value=seen + 1.0, value_of_trial=seen + 0.5)
            sampler.tell_again(number, points[-1], again)
    return points


@pytest.mark.parametrize("name", ["random", "cmaes", *SLOW_TO_IMPORT[:2], *SLOW_TO_IMPORT[4:]])
def test_samplers_that_learn_hear_of_further_seeds_and_others_do_not(name: str) -> None:
    options: dict[str, Any] = {"n_startup_trials": 8} if name in ("tpe", "gp") else {}
    spec = spec_of(name, objectives=("x",), directions=("maximize",), sampler_options=options)
    trials = 16 if name == "gp" else 40
    told = raced(spec, trials, hears=True)
    assert raced(spec, trials, hears=True, pickled_at=trials - 3) == told
    learns = name in ("tpe", "gp", "cmaes")
    assert (raced(spec, trials, hears=False) != told) == learns


def test_a_population_is_ranked_by_the_values_over_all_seeds() -> None:
    spec = spec_of("cmaes", sampler_options={"population_size": 4})
    corrected, whole = make(spec), make(spec)
    for number in range(4):
        point = corrected.ask(number)
        assert whole.ask(number) == point
        final = float(number % 3)
        corrected.tell(number, point, TrialOutcome(values=(9.0 - number,)))
        whole.tell(number, point, TrialOutcome(values=(final if number < 3 else 9.0 - number,)))
        if number < 3:
            again = FurtherOutcome(value=0.0, value_of_trial=final)
            corrected.tell_again(number, point, again)
    late = FurtherOutcome(value=0.0, value_of_trial=100.0)
    corrected.tell_again(0, whole.ask(4), late)
    assert corrected.ask(5) == whole.ask(5), "the distribution was adapted with it before"


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
@pytest.mark.parametrize("name", ["cmaes", *SLOW_TO_IMPORT[4:]])
def test_a_failed_trial_is_no_better_than_a_further_seed_of_another(
    name: str, direction: str
) -> None:
    """It has the worst value so far, which may be that of a further seed: as if it had that."""
    options = {"population_size": 4} if name == "cmaes" else {"n_startup_trials": 4}
    spec = spec_of(
        name, objectives=("x",), directions=(direction,), sampler_options=options, seed=5
    )
    sign = 1.0 if direction == "maximize" else -1.0
    failing, valued = make(spec), make(spec)
    for sampler in (failing, valued):
        for number in range(4):
            point = sampler.ask(number)
            if number < 3:
                sampler.tell(number, point, TrialOutcome(values=(sign * number,)))
            elif sampler is failing:
                sampler.tell(number, point, TrialOutcome(values=None))
            else:
                sampler.tell(number, point, TrialOutcome(values=(-9.0 * sign,)))
            if number == 2:
                again = FurtherOutcome(value=-9.0 * sign, value_of_trial=-9.0 * sign)
                sampler.tell_again(2, point, again)
    assert [failing.ask(number) for number in (4, 5)] == [valued.ask(number) for number in (4, 5)]


@pytest.mark.parametrize("options", [{}, {"lr_adapt": True}])
def test_pickled_distribution_draws_the_same_places_to_the_last_bit(
    options: dict[str, Any],
) -> None:
    """Points of few digits would hide what is lost."""
    from orchestrator.features.search.searcher.cmaes_sampler import (
        AsynchronousCma,
    )  # takes longer to import than all else here

    space = Space(tuple(Dimension(key=f"d{number}") for number in range(20)))
    whole, pickled = AsynchronousCma(space, 3, options), AsynchronousCma(space, 3, options)
    for number in range(100):
        places = whole.ask(number), pickled.ask(number)
        assert places[0].tobytes() == places[1].tobytes(), number
        for one, place in zip((whole, pickled), places, strict=True):
            one.tell(number, (float(((place - 0.3) ** 2).sum()),))
        if number % 5 == 0:
            pickled = pickle.loads(pickle.dumps(pickled))


@pytest.mark.parametrize("name", ["random", *SLOW_TO_IMPORT[:1]])
def test_points_without_values_depend_on_seed_and_number_alone(name: str) -> None:
    spec = spec_of(name)
    points = asked(spec, 20)
    assert [make(spec).ask(number) for number in (19, 7)] == [points[19], points[7]]


@pytest.mark.parametrize("name", ["cmaes", *SLOW_TO_IMPORT[2:]])
@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_later_points_are_better_than_random_ones(name: str, direction: str) -> None:
    spec, sign = spec_of(name, directions=(direction,)), 1.0 if direction == "maximize" else -1.0
    sampler, values = make(spec), []
    trials = 45 if name == "gp" else 120  # a third of them after its random ones
    for number in range(trials):
        point = sampler.ask(number)
        values.append(value(point))
        sampler.tell(
            number,
            point,
            TrialOutcome(values=(sign * values[-1],), measures=(point["a"], point["c"])),
        )
    by_chance = [value(make(spec_of("random")).ask(number)) for number in range(120)]
    last = values[-trials // 3 :]
    assert sum(last) / len(last) > sum(by_chance) / 120 + 0.05


@pytest.mark.parametrize("name", ["cmaes", *SLOW_TO_IMPORT[1:]])
def test_nothing_but_failures_is_no_error(name: str) -> None:
    sampler = make(spec_of(name))
    for number in range(30):
        sampler.tell(number, sampler.ask(number), TrialOutcome(values=None))


def test_cmaes_adapts_to_trials_of_earlier_generations() -> None:
    spec = spec_of("cmaes", sampler_options={"population_size": 4, "sigma": 0.2})
    far, near = asked(spec, 150, at_once=12)[:20], asked(spec, 150, at_once=12)[-20:]
    assert sum(map(value, near)) > sum(map(value, far)) / 2


def test_cmaes_whose_learning_rates_follow_the_noise_adapts_otherwise() -> None:
    options = {"population_size": 6, "lr_adapt": True}
    plain = asked(spec_of("cmaes", sampler_options={"population_size": 6}), 120)
    adapted = asked(spec_of("cmaes", sampler_options=options), 120)
    assert adapted[:6] == plain[:6]
    assert adapted[-6:] != plain[-6:]
    assert sum(map(value, adapted[-20:])) > sum(map(value, adapted[:20]))


def test_cmaes_starts_around_another_place_when_it_has_converged() -> None:
    """It has as soon as all of a population have the same values, which have few digits."""
    spec = spec_of("cmaes", space=NUMBERS[:1])
    sampler, places = make(spec), []
    for number in range(300):
        point = sampler.ask(number)
        places.append(point["a"])
        sampler.tell(number, point, TrialOutcome(values=(-((point["a"] - 0.3) ** 2),)))
    converged = next(
        number for number, place in enumerate(places) if place == pytest.approx(0.3, abs=1e-5)
    )
    assert any(abs(place - 0.3) > 0.1 for place in places[converged + 20 :])


def test_users_sampler_is_made_with_space_seed_and_directions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "users_samplers_1.py").write_text(
        "class Grid:\n"
        "    def __init__(self, space, seed, directions, steps):\n"
        "        assert (seed, directions) == (3, ('maximize',))\n"
        "        self.space, self.steps, self.ended = space, steps, []\n"
        "    def ask(self, number):\n"
        "        return self.space.decode([(number % self.steps) / self.steps] * 4)\n"
        "    def tell(self, number, point, outcome):\n"
        "        self.ended.append(outcome.values)\n"
        "class Deaf:\n"
        "    def __init__(self, space, seed, directions): pass\n"
        "    def ask(self, number): return {}\n"
    )
    spec = spec_of("users_samplers_1:Grid", sampler_options={"steps": 10})
    assert asked(spec, 12, pickled_at=8, base=tmp_path)[5]["a"] == 0.5
    with pytest.raises(UsageError, match=r"Grid.*unexpected keyword argument 'stops'"):
        make(replace(spec, sampler_options={"stops": 1}), tmp_path)
    with pytest.raises(UsageError, match=r"Deaf.* has no method tell"):
        make(spec_of("users_samplers_1:Deaf"), tmp_path)
    with pytest.raises(UsageError, match=r"nowhere_1:Grid.*No module named 'nowhere_1'"):
        make(spec_of("nowhere_1:Grid"), tmp_path)


@given(unit=st.lists(st.floats(0, 1), min_size=4, max_size=4))
def test_encode_is_the_inverse_of_decode(unit: list[float]) -> None:
    space = Space((*NUMBERS, CHOICE))
    point = space.decode(unit)
    assert space.encode(space.decode(space.encode(point))) == pytest.approx(
        space.encode(point), abs=2e-6
    )
    assert space.encode(point)[:2] == pytest.approx(unit[:2], abs=2e-6)
    assert space.distance(point, point) == 0


def test_a_space_has_ends_whole_numbers_and_few_digits() -> None:
    space = Space((*NUMBERS, CHOICE))
    assert space.decode([0, 0, 0, 0]) == {"a": 0.0, "b": 1e-4, "c": 2, "d": [32, 32]}
    assert space.decode([1, 1, 1, 1]) == {"a": 1.0, "b": 1e-1, "c": 9, "d": [64, 64]}
    assert space.decode([1 / 3, 1 / 3, 1 / 3, 1 / 3]) == {
        "a": 0.333333,
        "b": 0.001,
        "c": 4,
        "d": [32, 32],
    }
    counts = [space.decode([0, 0, step / 1600, 0])["c"] for step in range(1600)]
    assert all(abs(counts.count(number) - 200) <= 1 for number in range(2, 10))


def test_distance_is_that_of_the_unit_cube_and_choices_are_1_apart() -> None:
    space = Space((*NUMBERS, CHOICE))
    one = {"a": 0.0, "b": 1e-4, "c": 2, "d": [32, 32]}
    assert space.distance(one, {**one, "b": 1e-1}) == pytest.approx(1)
    assert space.distance(one, {**one, "a": 0.6, "d": [64, 64]}) == pytest.approx(
        math.hypot(0.6, 1)
    )


@pytest.mark.parametrize(
    ("choices", "value", "place"),
    [
        ([{"vf": [32], "pi": [32]}, {"vf": [64], "pi": [64]}], {"pi": [64], "vf": [64]}, 1),
        ([0, 0.01], 0.0, 0),
        ([[64.0], [32]], [64], 0),
        ([1, True], True, 1),
        ([True, 1], 1.0, 1),
    ],
)
def test_a_choice_is_the_same_in_any_order_of_its_keys_and_spelling_of_its_numbers(
    choices: list[Any], value: Any, place: int
) -> None:
    choice = Dimension(key="a", choices=tuple(choices))
    space = Space((choice,))
    assert choice.unit(value) == (place + 0.5) / 2
    assert space.distance({"a": value}, {"a": choices[place]}) == 0
    assert space.distance({"a": value}, {"a": choices[1 - place]}) == 1
    with pytest.raises(ValueError, match="expected one of"):
        choice.unit("none")


@pytest.mark.nightly
def test_points_that_are_refused_do_not_count_among_the_first_random_ones() -> None:
    spec = spec_of("map-elites", sampler_options={"initial": 5})
    sampler, independent = make(spec, Path()), make(replace(spec, sampler="random"), Path())
    is_random = []
    for number in range(60):
        point = sampler.ask(number)
        if number % 10 < 9:
            sampler.reject(number, point, None)
            continue
        is_random.append(point == independent.ask(number))
        sampler.tell(number, point, outcome_of(spec, number, point))
    assert is_random == [True] * 5 + [False]


@pytest.mark.nightly
def test_the_archive_of_a_report_is_that_of_pyribs() -> None:
    import numpy as np

    from orchestrator.features.search.searcher.archive_samplers import make_archive

    spec, rng = spec_of("map-elites"), random.Random(4)
    trials = [
        Trial(number=n, point={}, jobs=(), values=[rng.random()], measures=[a / 10, c / 4])
        for n, (a, c) in enumerate((rng.randint(-3, 13), rng.randint(-5, 45)) for _ in range(300))
    ]
    theirs = make_archive(spec)
    for trial in trials:
        theirs.add_single(np.zeros(len(spec.space)), trial.values[0], np.array(trial.measures))
    elites = theirs.data(["objective", "index"])
    cells = map(tuple, theirs.int_to_grid_index(elites["index"]).tolist())
    ours = {tuple(elite["cell"]): elite["value"] for elite in shown_trials.archive(trials, spec)}
    assert ours == pytest.approx(dict(zip(cells, elites["objective"].tolist(), strict=True)))
