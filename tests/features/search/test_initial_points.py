"""``initial`` in ``[search]``: points that are trained before any that the sampler proposes."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import command_helpers as commands
import pytest
from jobfile_helpers import HOPPER

from orchestrator.core.errors import SpecError
from orchestrator.features.search.declaration.constraints import ConstraintCheck
from orchestrator.features.search.declaration.declared_search import (
    declaration_of,
    points_to_begin_with,
)
from orchestrator.features.search.declaration.spec import ArchiveAxis, Dimension, SearchSpec
from orchestrator.features.search.history import History
from orchestrator.features.search.search_events import SearchEvent
from orchestrator.features.search.searcher.proposals import Proposals
from orchestrator.features.search.searcher.samplers import FurtherOutcome, TrialOutcome, make
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


def test_the_unchanged_job_has_the_defaults_of_its_algorithm_and_its_own_edits(
    place: Path,
) -> None:
    job = {"model": {"geom.*.size": "*1.25", "option.timestep": 0.004}}
    space = {
        RATE: SPACE[RATE],
        SIZE: SPACE[SIZE],
        "model.option.timestep": {"low": 0.001, "high": 0.01},
        "total_timesteps": {"low": 10_000, "high": 500_000},
    }
    experiment = searched(place, job, space=space, initial=[{}])
    (point,) = points_to_begin_with(experiment)
    own = experiment.jobs_to_examine[0].spec.total_timesteps
    assert point[RATE] == 3e-4
    assert (point[SIZE], point["model.option.timestep"]) == (1.25, 0.004)
    assert point["total_timesteps"] == 200_000
    assert own != point["total_timesteps"]


BAD: list[tuple[str, list[Any], str, str]] = [
    # claim, initial, place, message
    ("misspelt", [{"ppo.learning_rat": 1e-3}], '[0]."ppo.learning_rat"', f'did you mean "{RATE}"?'),
    (
        "without quotes",
        [{RATE: 1e-3, WIDTH: [32]}, {"ppo": {"learning_rate": 1e-3}}],
        "[1].ppo",
        "is no key of search.space",
    ),
    ("outside", [{RATE: 1.0}], f'[0]."{RATE}"', "expected a number from 0.0001 to 0.01, found 1.0"),
    ("no choice", [{WIDTH: [16]}], f'[0]."{WIDTH}"', "expected one of [32], [64], found [16]"),
    ("text", [{SIZE: "*1.2"}], f'[0]."{SIZE}"', "expected a number from 0.5 to 2, found '*1.2'"),
    ("no table", [3], "[0]", "expected a table with values"),
    (
        "unknown in the job",
        [{RATE: 1e-3, SIZE: 1.0}],
        f'[0]."{WIDTH}"',
        "what the unchanged job has is not known here; add the value",
    ),
    (
        "the same twice",
        [{WIDTH: [32]}, {WIDTH: [32], SIZE: 1.0}],
        "[1]",
        "is the same point as search.initial[0]; leave one of them out",
    ),
]


@pytest.mark.parametrize(
    ("initial", "where", "message"), [row[1:] for row in BAD], ids=[row[0] for row in BAD]
)
def test_a_bad_initial_point_is_named(
    place: Path, initial: list[Any], where: str, message: str
) -> None:
    with pytest.raises(SpecError) as error:
        searched(place, {}, initial=initial)
    assert any(
        problem.where == f"search.initial{where}" and message in problem.message
        for problem in error.value.problems
    ), error.value.problems


def test_the_unchanged_job_outside_of_the_space_is_named(place: Path) -> None:
    with pytest.raises(SpecError) as error:
        searched(place, {"ppo": {"learning_rate": 0.1}}, initial=[{WIDTH: [32]}])
    text = str(error.value)
    assert "the unchanged job has 0.1; expected a number from 0.0001 to 0.01" in text
    with pytest.raises(SpecError, match=r"search\.initial: has 2 points, and .* trials = 1"):
        searched(place, {}, trials=1, initial=[{WIDTH: [32]}, {WIDTH: [64]}])


def test_a_whole_number_and_a_float_are_one_choice_and_true_is_another(place: Path) -> None:
    coefficient = "ppo.ent_coef"
    space = {coefficient: {"choices": [0, 0.01]}}
    assert points_to_begin_with(searched(place, {}, space=space, initial=[{}])) == [
        {coefficient: 0}
    ]
    points = [{"params.legs": 1}, {"params.legs": True}]
    space = {"params.legs": {"choices": [1, True]}}
    made = searched(place, {"xml": "bodies:make"}, space=space, initial=points)
    assert points_to_begin_with(made) == points


LINE = SearchSpec(
    space=(Dimension(key="a"), Dimension(key="b")),
    sampler="random",
    objectives=("eval_mean",),
    directions=("maximize",),
    trials=40,
    initial=({"a": 0.9, "b": 0.1}, {"a": 0.9, "b": 0.2}),
)
ARCHIVE = (ArchiveAxis(name="a", low=0, high=1, cells=8),)
EVERY = [
    "random",
    "cmaes",
    *(pytest.param(name, marks=pytest.mark.nightly) for name in ("sobol", "tpe", "map-elites")),
]


def anything(point: Mapping[str, Any]) -> ConstraintCheck:
    return ConstraintCheck(excess=())


def spec_for(sampler: str) -> SearchSpec:
    measures = ARCHIVE if sampler == "map-elites" else ()
    return dataclasses.replace(LINE, sampler=sampler, measures=measures)


@pytest.mark.parametrize("sampler", EVERY)
def test_points_that_were_added_come_first_and_are_told(sampler: str, tmp_path: Path) -> None:
    spec = spec_for(sampler)

    def asked(pickled_at: int) -> list[dict[str, Any]]:
        made = Proposals(
            spec, tmp_path / "s", tmp_path, 1, Watchdog(), tells_at_rungs=True, initial=spec.initial
        )
        history = History()
        history.apply(SearchEvent(kind="began", content={"lanes": 2}, id=1))
        points = []
        for index in range(12):
            if index == pickled_at:
                made._sampler = pickle.loads(pickle.dumps(made._sampler))
            points.append(dict(made.next_point(history, anything).point))
            content: dict[str, Any] = {"point": points[-1], "jobs": []}
            history.apply(SearchEvent(kind="asked", content=content, id=history.last_id + 1))
            told = {"values": [points[-1]["a"]], "measures": [0.5] * len(spec.measures)}
            event = SearchEvent(
                kind="told", trial=index, content={**told, "env_steps": 1}, id=history.last_id + 1
            )
            history.apply(event)
            made.tell(event, history)
        return points

    points = asked(-1)
    assert points[:2] == list(spec.initial)
    assert asked(5) == points
    if sampler == "sobol":
        alone = make(dataclasses.replace(spec, initial=()))
        assert points[2:6] == [alone.ask(number) for number in range(4)]


def test_cmaes_begins_around_the_best_added_point(tmp_path: Path) -> None:
    sampler = make(spec_for("cmaes"))
    points = ({"a": 0.9, "b": 0.9}, {"a": 0.1, "b": 0.9})
    for number, (point, value) in enumerate(zip(points, (2.0, 1.0), strict=True)):
        sampler.add(number, point)
        sampler.tell(number, point, TrialOutcome(values=(value,)))
    sampler.tell(2, points[0], TrialOutcome(values=None))
    drawn = [sampler.ask(number)["a"] for number in range(3, 60)]
    assert sum(drawn) / len(drawn) > 0.6


@pytest.mark.parametrize(("value", "moves"), [(2.0, True), (0.5, False)])
def test_cmaes_leaves_a_better_point_that_was_told_before_for_no_added_one(
    value: float, *, moves: bool
) -> None:
    sampler = make(spec_for("cmaes"))
    added = {"a": 0.9, "b": 0.9}
    sampler.add(0, added)
    asked = sampler.ask(1)
    sampler.tell(1, asked, TrialOutcome(values=(1.0,)))
    sampler.tell(0, added, TrialOutcome(values=(value,)))
    drawn = [sampler.ask(number)["a"] for number in range(2, 60)]
    assert (sum(drawn) / len(drawn) > 0.6) == moves


def test_cmaes_begins_around_the_best_added_point_by_the_values_over_all_seeds() -> None:
    """The first one had luck with its first seed."""
    lucky, known = make(spec_for("cmaes")), make(spec_for("cmaes"))
    points = ({"a": 0.1, "b": 0.9}, {"a": 0.9, "b": 0.9})
    for sampler, value in ((lucky, 9.0), (known, 1.0)):
        for number, point in enumerate(points):
            sampler.add(number, point)
        sampler.tell(0, points[0], TrialOutcome(values=(value,)))
    lucky.tell_again(0, points[0], FurtherOutcome(value=-7.0, value_of_trial=1.0))
    for sampler in (lucky, known):
        sampler.tell(1, points[1], TrialOutcome(values=(2.0,)))
    drawn = [lucky.ask(number) for number in range(2, 60)]
    assert drawn == [known.ask(number) for number in range(2, 60)]
    assert sum(point["a"] for point in drawn) / len(drawn) > 0.6


def test_a_class_without_add_hears_nothing_of_initial_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deaf_1.py").write_text(
        "class Deaf:\n"
        "    def __init__(self, **_): self.told = []\n"
        "    def ask(self, number): return {'a': 0.5, 'b': number / 100}\n"
        "    def tell(self, number, point, outcome): self.told.append(number)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    spec = dataclasses.replace(LINE, sampler="deaf_1:Deaf")
    made = Proposals(
        spec, tmp_path / "s", tmp_path, 1, Watchdog(), tells_at_rungs=True, initial=spec.initial
    )
    history = History()
    for index in range(3):
        point = made.next_point(history, anything).point
        history.apply(SearchEvent(kind="asked", content={"point": point, "jobs": []}, id=index + 1))
        content = {"values": [1.0], "measures": None, "env_steps": 1}
        made.tell(SearchEvent(kind="told", trial=index, content=content, id=9), history)
    assert point == {"a": 0.5, "b": 0.02}
    assert made._sampler.told == [2]  # type: ignore[attr-defined]


@pytest.mark.nightly
def test_a_search_trains_its_initial_points_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.instant_workers(monkeypatch, tmp_path)
    (tmp_path / "jobs.toml").write_text(
        f'name = "search"\nmax_parallel = 1\n{commands.TINY}\n'
        f'[[jobs]]\nname = "hopper"\nxml = "{commands.HOPPER}"\ntask = "forward"\n'
        'resources.start = "exec"\n'
        '[search]\nsampler = "random"\ntrials = 3\nobjective = "ep_rew_mean"\n'
        'initial = [{}, { "model.geom.*thigh*.size" = 1.1 }]\n'
        '[search.space]\n"model.geom.*thigh*.size" = { low = 0.8, high = 1.2, multiply = true }\n'
    )
    shown = commands.succeed("run", "jobs.toml", "--dry-run", cwd=tmp_path).stdout
    assert "trained first: 2 points" in " ".join(shown.split())
    commands.succeed("run", "jobs.toml", "--run-dir", "run", cwd=tmp_path)
    rows = commands.summary(tmp_path / "run")
    sizes = [row["model.geom.*thigh*.size"] for row in rows.values()]
    assert sizes[:2] == [1.0, 1.1]
    assert len(set(sizes)) == 3
