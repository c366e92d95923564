"""``initial`` in ``[search]``: points that are trained before any that the sampler proposes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from jobfile_helpers import HOPPER

from orchestrator.core.errors import SpecError
from orchestrator.features.search.declaration.constraints import ConstraintCheck
from orchestrator.features.search.declaration.declared_search import (
    declaration_of,
    points_to_begin_with,
)
from orchestrator.features.search.declaration.spec import Dimension, SearchSpec
from orchestrator.features.search.history import History
from orchestrator.features.search.search_events import SearchEvent
from orchestrator.features.search.searcher.proposals import Proposals
from orchestrator.features.search.searcher.samplers import TrialOutcome, make
from orchestrator.features.search.searcher.watchdog import Watchdog
from orchestrator.jobfile import Experiment, from_mapping

RATE = "ppo.learning_rate"


SIZE = "model.geom.*.size"


WIDTH = "policy_kwargs.net_arch"


SPACE = {
    RATE: {"low": 1e-4, "high": 1e-2, "log": True},
    SIZE: {"low": 0.5, "high": 2.0, "multiply": True},
    WIDTH: {"choices": [[32], [64]]},
}


def searched(place: Path, job: dict[str, Any], **search: Any) -> Experiment:
    table = {"space": SPACE, "trials": 20, "sampler": "random", **search}
    data = {"name": "test", "jobs": [{**HOPPER, "task": "forward", **job}], "search": table}
    return from_mapping(data, source="search.toml", base=place)


def test_a_key_that_is_left_out_has_the_value_of_the_unchanged_job(place: Path) -> None:
    job = {"ppo": {"learning_rate": 2e-3}, "policy_kwargs": {"net_arch": [64]}}
    declared = [{}, {RATE: 1e-3, SIZE: 1.5}]
    experiment = searched(place, job, initial=declared)
    unchanged = {RATE: 2e-3, SIZE: 1.0, WIDTH: [64]}
    expected = [unchanged, {RATE: 1e-3, SIZE: 1.5, WIDTH: [64]}]
    assert points_to_begin_with(experiment) == expected
    lines = declaration_of(experiment).lines(experiment)
    assert "trained first: 2 points of search.initial" in lines


@pytest.mark.parametrize(
    ("initial", "where"),
    [
        ([{"ppo.learning_rat": 1e-3}], '[0]."ppo.learning_rat"'),
        ([{RATE: 1.0}], f'[0]."{RATE}"'),
        ([{RATE: 1e-3, SIZE: 1.0}], f'[0]."{WIDTH}"'),
        ([{WIDTH: [32]}, {WIDTH: [32], SIZE: 1.0}], "[1]"),
    ],
    ids=["misspelt", "outside", "unknown in the job", "the same twice"],
)
def test_a_bad_initial_point_is_named(place: Path, initial: list[Any], where: str) -> None:
    with pytest.raises(SpecError) as error:
        searched(place, {}, initial=initial)
    assert f"search.initial{where}" in [problem.where for problem in error.value.problems]


LINE = SearchSpec(
    space=(Dimension(key="a"), Dimension(key="b")),
    sampler="random",
    objectives=("eval_mean",),
    directions=("maximize",),
    trials=40,
    initial=({"a": 0.9, "b": 0.1}, {"a": 0.9, "b": 0.2}),
)


def anything(point: Mapping[str, Any]) -> ConstraintCheck:
    return ConstraintCheck(excess=())


@pytest.mark.parametrize("sampler", ["random", "cmaes"])
def test_points_that_were_added_come_first_and_are_told(sampler: str, tmp_path: Path) -> None:
    spec = dataclasses.replace(LINE, sampler=sampler)
    made = Proposals(
        spec, tmp_path / "s", tmp_path, 1, Watchdog(), tells_at_rungs=True, initial=spec.initial
    )
    history = History()
    history.apply(SearchEvent(kind="began", content={"lanes": 2}, id=1))
    points = [dict(made.next_point(history, anything).point)]
    for index in range(3):
        content = {"point": points[-1], "jobs": []}
        history.apply(SearchEvent(kind="asked", content=content, id=history.last_id + 1))
        told = {"values": [points[-1]["a"]], "measures": [], "env_steps": 1}
        event = SearchEvent(kind="told", trial=index, content=told, id=history.last_id + 1)
        history.apply(event)
        made.tell(event, history)
        points.append(dict(made.next_point(history, anything).point))
    assert points[:2] == list(spec.initial)
    assert points[2] not in points[:2]


def test_cmaes_begins_around_the_best_added_point(tmp_path: Path) -> None:
    sampler = make(dataclasses.replace(LINE, sampler="cmaes"))
    points = ({"a": 0.9, "b": 0.9}, {"a": 0.1, "b": 0.9})
    for number, (point, value) in enumerate(zip(points, (2.0, 1.0), strict=True)):
        sampler.add(number, point)
        sampler.tell(number, point, TrialOutcome(values=(value,)))
    sampler.tell(2, points[0], TrialOutcome(values=None))
    drawn = [sampler.ask(number)["a"] for number in range(3, 60)]
    assert sum(drawn) / len(drawn) > 0.6
