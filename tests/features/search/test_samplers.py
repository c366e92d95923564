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
from orchestrator.features.search.declaration.spec import (
    ARCHIVE_SAMPLERS,
    WITHOUT_CHOICES,
    ArchiveAxis,
    Dimension,
    SearchSpec,
)
from orchestrator.features.search.searcher.samplers import (
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
LEARNING = [
    "cmaes",
    "tpe",
    "nsga2",
    *(pytest.param(name, marks=pytest.mark.nightly) for name in ("gp", "map-elites", "cma-me")),
]
"""The models of ``gp`` take long, and pyribs takes long to import."""


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


@pytest.mark.parametrize("name", ["random", "sobol", *LEARNING])
def test_sampler_goes_on_as_if_it_had_not_been_pickled(name: str) -> None:
    spec = spec_of(name)
    asks = 36 if name == "gp" else 45
    points = asked(spec, asks)
    assert asked(spec, asks, pickled_at=asks - 3) == points
    assert asked(replace(spec, seed=4), asks) != points
    keys = [dimension.key for dimension in spec.space]
    assert all(list(point) == keys for point in points)
    assert len({json.dumps(point) for point in points}) > 0.8 * asks
    for point in points:
        Space(spec.space).encode(
            point
        )  # raises ValueError for a value that is none of its dimension
    json.dumps(points, allow_nan=False)


@pytest.mark.parametrize("name", ["random", "sobol"])
def test_points_without_values_depend_on_seed_and_number_alone(name: str) -> None:
    spec = spec_of(name)
    points = asked(spec, 20)
    assert [make(spec).ask(number) for number in (19, 7)] == [points[19], points[7]]


@pytest.mark.parametrize("name", LEARNING)
def test_later_points_are_better_than_random_ones(name: str) -> None:
    spec = spec_of(name, directions=("maximize",))
    sampler, values = make(spec), []
    trials = 45 if name == "gp" else 120  # a third of them after its random ones
    for number in range(trials):
        point = sampler.ask(number)
        values.append(value(point))
        sampler.tell(
            number,
            point,
            TrialOutcome(values=(values[-1],), measures=(point["a"], point["c"])),
        )
    by_chance = [value(make(spec_of("random")).ask(number)) for number in range(120)]
    last = values[-trials // 3 :]
    assert sum(last) / len(last) > sum(by_chance) / 120 + 0.05


@pytest.mark.parametrize("name", LEARNING)
def test_nothing_but_failures_is_no_error(name: str) -> None:
    sampler = make(spec_of(name))
    for number in range(30):
        sampler.tell(number, sampler.ask(number), TrialOutcome(values=None))


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
