"""``[search.constraints]``: bodies that violate one are not trained, and are no trials."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import command_helpers as commands
import pytest
from jobfile_helpers import HOPPER
from searcher_helpers import examine_here

from orchestrator.core.errors import SpecError, UsageError
from orchestrator.core.paths import RunPaths
from orchestrator.features.search import constraint_check, search_events
from orchestrator.features.search.constraint_check import PointMeasurer
from orchestrator.features.search.declaration.constraints import (
    MODEL_MEASURES,
    Constraint,
    ConstraintCheck,
    check_measures,
)
from orchestrator.features.search.declaration.spec import Dimension, SearchSpec
from orchestrator.features.search.history import History
from orchestrator.features.search.search_events import SearchEvent
from orchestrator.features.search.searcher import proposals as proposals_module
from orchestrator.features.search.searcher.proposals import Proposals
from orchestrator.features.search.searcher.watchdog import Watchdog
from orchestrator.jobfile import Experiment, from_mapping, load

SIZE = "model.geom.*thigh*.size"


FEWER_POINTS = 20
"""That are looked at, in place of a thousand: each is compiled."""


SPACE = {SIZE: {"low": 0.5, "high": 2.0, "multiply": True}}


def searched(place: Path, constraints: Any, **job: Any) -> Experiment:
    table = {"space": SPACE, "trials": 20, "sampler": "random", "constraints": constraints}
    data = {"name": "test", "jobs": [{**HOPPER, "task": "forward", **job}], "search": table}
    return from_mapping(data, source="search.toml", base=place)


@pytest.mark.parametrize(
    "constraints",
    [{"mas_kg": {"high": 3}}, {"energy_j": {"high": 3}}, {"mass_kg": {"low": 4, "high": 3}}],
    ids=["misspelt", "of a training", "nothing between"],
)
def test_a_bad_constraint_is_named(place: Path, constraints: Any) -> None:
    with pytest.raises(SpecError) as error:
        searched(place, constraints)
    (problem,) = error.value.problems
    assert problem.where.startswith("search.constraints.")


def test_constraints_say_by_how_much_a_body_is_beyond_them() -> None:
    constraints = (
        Constraint(measure="mass_kg", low=3.0, high=12.0),
        Constraint(measure="torque_sum / mass_kg", low=2.0, high=None),
    )
    good = check_measures(constraints, {"mass_kg": 12.0, "torque_sum": 24.0})
    assert (good.is_satisfied, good.excess) == (True, [0.0, 0.0])
    bad = check_measures(constraints, {"mass_kg": 13.0, "torque_sum": 13.0})
    assert bad.excess == [1.0, 1.0]
    unknown = check_measures(constraints, {"mass_kg": 5.0, "torque_sum": None})
    assert unknown.excess is None
    nothing = check_measures(constraints[1:], {"mass_kg": 0.0, "torque_sum": 1.0})
    assert nothing.excess is None


LINE = SearchSpec(
    space=(Dimension(key="a"), Dimension(key="b")),
    sampler="random",
    objectives=("eval_mean",),
    directions=("maximize",),
    trials=100,
    constraints=(Constraint(measure="mass_kg", low=None, high=0.4),),
)


def light(point: Mapping[str, Any]) -> ConstraintCheck:
    """The body weighs as much as ``a``."""
    return check_measures(LINE.constraints, {"mass_kg": point["a"]})


def made(folder: Path, spec: SearchSpec) -> Proposals:
    return Proposals(spec, folder / "sampler", folder, 1, Watchdog(), tells_at_rungs=True)


class Asked:
    """A search whose trials are over at once, but for some of which nothing is ever told."""

    def __init__(self, proposals: Proposals) -> None:
        self.proposals = proposals
        self.history = History()
        self.events: list[SearchEvent] = []
        self._add(SearchEvent(kind="began", content={"lanes": 2}))

    def _add(self, event: SearchEvent) -> SearchEvent:
        event = dataclasses.replace(event, id=len(self.events) + 1)
        self.events.append(event)
        self.history.apply(event)
        return event

    def next_point(self, check: Any = light) -> Mapping[str, Any]:
        number = len(self.history.trials)
        proposed = self.proposals.next_point(self.history, check)
        content = {"point": proposed.point, "jobs": [], **proposed.facts}
        self._add(SearchEvent(kind="asked", content=content))
        if number % 4 != 3:
            told = {"values": [proposed.point["b"]], "measures": [0.5], "env_steps": 1}
            event = self._add(SearchEvent(kind="told", trial=number, content=told))
            self.proposals.tell(event, self.history)
        return proposed.point

    def resumed(self, proposals: Proposals) -> Asked:
        """The same from the events alone."""
        other = Asked(proposals)
        for event in self.events[1:]:
            other._add(event)
            other.proposals.replay(event, other.history)
        return other


@pytest.mark.parametrize("sampler", ["random", "cmaes"])
def test_a_resumed_search_draws_the_same_points_within_the_constraints(
    sampler: str, tmp_path: Path
) -> None:
    spec = dataclasses.replace(LINE, sampler=sampler)
    whole = Asked(made(tmp_path, spec))
    points = [whole.next_point() for _ in range(25)]
    assert all(point["a"] <= 0.4 for point in points)
    assert len({(point["a"], point["b"]) for point in points}) > 20
    assert len(whole.history.asked) == 25
    assert whole.history.rejected > 3

    pickled = whole.resumed(made(tmp_path, spec))
    pickled.proposals._sampler = pickle.loads(pickle.dumps(whole.proposals._sampler))
    replayed = whole.resumed(made(tmp_path, spec))
    following = [whole.next_point() for _ in range(5)]
    assert [pickled.next_point() for _ in range(5)] == following
    assert [replayed.next_point() for _ in range(5)] == following


def test_a_search_whose_constraints_no_point_satisfies_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proposals_module, "MOST_FOR_ONE", 200)
    monkeypatch.setattr(proposals_module, "MOST_REFUSED", 150)

    def none(point: Mapping[str, Any]) -> ConstraintCheck:
        return ConstraintCheck(excess=None, why="torque_max has no value")

    for spec in (LINE, dataclasses.replace(LINE, constraints=())):
        with pytest.raises(UsageError):
            Asked(made(tmp_path, spec)).next_point(none)


def test_the_measures_of_a_model_are_those_of_its_body(place: Path) -> None:
    hopper = {"xml": str(commands.HOPPER)}
    names = {name: {"low": -1.0} for name in MODEL_MEASURES}
    experiment = searched(place, names, **hopper)
    measurer = PointMeasurer(experiment=experiment)
    try:
        (normal,) = measurer.check([{SIZE: 1.0}])
        assert normal.is_satisfied, normal.why
        heavy = {"mass_kg": {"high": 0.001}, "torque_max": {"high": 0.001}, "nu": {"high": 2}}
        measurer.experiment = searched(place, heavy, **hopper)
        thin, thick = measurer.check([{SIZE: 0.6}, {SIZE: 1.8}])
    finally:
        measurer.close()
    assert "nu is 3, expected at most 2" in thin.why
    assert thin.excess is not None
    assert thick.excess is not None
    assert thick.excess[0] > thin.excess[0] > 0
    assert thick.excess[1] == thin.excess[1] > 0


def search_file(folder: Path, constraints: str, table: str = "trials = 3") -> Path:
    path = folder / "jobs.toml"
    path.write_text(
        f'name = "search"\nmax_parallel = 1\n{commands.TINY}\n'
        f'[[jobs]]\nname = "hopper"\nxml = "{commands.HOPPER}"\ntask = "forward"\n'
        'resources.start = "exec"\n'
        f'[search]\nsampler = "random"\nobjective = "ep_rew_mean"\n{table}\n'
        f"[search.constraints]\n{constraints}\n"
        f'[search.space]\n"{SIZE}" = {{ low = 0.5, high = 2.0, multiply = true }}\n'
    )
    return path


def masses(jobs: Path) -> dict[float, float]:
    """Size → kg of the body with it."""
    from orchestrator.jobfile import load

    experiment = load(jobs)
    measurer = PointMeasurer(experiment=experiment)
    sizes = [0.5, 1.0, 1.25, 2.0]
    try:
        checks = measurer.check([{SIZE: size} for size in sizes])
    finally:
        measurer.close()
    excess = [check.excess[0] for check in checks if check.excess is not None]
    return dict(zip(sizes, excess, strict=True))


@pytest.mark.nightly
def test_a_search_trains_bodies_within_the_constraints_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the middle of the space violates one."""
    examine_here(monkeypatch)
    monkeypatch.setattr(constraint_check, "POINTS", FEWER_POINTS)
    kg = masses(search_file(tmp_path, "mass_kg = { high = -1e-9 }"))
    assert kg[0.5] < kg[1.0] < kg[1.25] < kg[2.0]
    jobs = search_file(tmp_path, f"mass_kg = {{ high = {kg[1.0]} }}")
    commands.instant_workers(monkeypatch, tmp_path)
    commands.succeed("run", jobs, "--run-dir", "run", cwd=tmp_path)
    rows = commands.summary(tmp_path / "run")
    assert list(rows) == [f"hopper-t{number:05d}-s0" for number in range(3)]
    assert all(row[SIZE] <= 1.0 for row in rows.values())
    events = search_events.events(RunPaths(tmp_path / "run"))
    asked = [one for one in events if one.kind == "asked"]
    assert any(event.content.get("rejected") for event in asked)


def test_where_no_point_satisfies_them_nothing_is_launched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(
        _: PointMeasurer, points: Sequence[Any], turn: object = None
    ) -> list[ConstraintCheck]:
        return [ConstraintCheck(excess=None, why="too heavy") for _ in points]

    monkeypatch.setattr(PointMeasurer, "check", check)
    monkeypatch.setattr(constraint_check, "POINTS", FEWER_POINTS)
    experiment = load(search_file(tmp_path, "nu = { low = 1 }"))
    assert constraint_check.examine(experiment, lambda: None).problem is not None


def test_an_initial_point_that_violates_a_constraint_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examine_here(monkeypatch)
    kg = masses(search_file(tmp_path, "mass_kg = { high = -1e-9 }"))
    table = f'trials = 3\ninitial = [{{ "{SIZE}" = 0.9 }}, {{ "{SIZE}" = 1.9 }}]'
    jobs = search_file(tmp_path, f"mass_kg = {{ high = {kg[1.0]} }}", table)
    done = commands.invoke("run", jobs, cwd=tmp_path)
    assert done.returncode != 0
    assert "search.initial[1]" in done.stderr
