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
from orchestrator.experiment.directory import run_directory
from orchestrator.features.search import constraint_check, search_events
from orchestrator.features.search.constraint_check import PointMeasurer
from orchestrator.features.search.declaration.constraints import (
    MODEL_MEASURES,
    Constraint,
    ConstraintCheck,
    check_measures,
)
from orchestrator.features.search.declaration.spec import ArchiveAxis, Dimension, SearchSpec
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


BAD: list[tuple[str, Any, str]] = [
    ("misspelt", {"mas_kg": {"high": 3}}, '"mas_kg" is no measure of a compiled model; did you'),
    ("in an expression", {"torque_max / mass": {"high": 3}}, '"mass" is no measure of a compiled'),
    ("of a training", {"energy_j": {"high": 3}}, '"energy_j" is known only after a training'),
    ("no expression", {"mass_kg /": {"high": 3}}, '"mass_kg /" is no expression'),
    ("no bound", {"mass_kg": {}}, "has no bound; add low or high"),
    ("nothing between", {"mass_kg": {"low": 4, "high": 3}}, "low = 4 is above high = 3"),
    ("another form", {"mass_kg": {"max": 3}}, 'did you mean "high"?'),
    ("text", {"mass_kg": "<= 3"}, "expected"),
]


@pytest.mark.parametrize(
    ("constraints", "message"), [row[1:] for row in BAD], ids=[r[0] for r in BAD]
)
def test_a_bad_constraint_is_named(place: Path, constraints: Any, message: str) -> None:
    with pytest.raises(SpecError) as error:
        searched(place, constraints)
    (problem,) = error.value.problems
    assert problem.where.startswith("search.constraints.")
    assert message in problem.message


def test_an_environment_without_a_robot_has_nothing_to_measure(place: Path) -> None:
    table = {
        "space": {"ppo.gamma": {"low": 0.9, "high": 0.99}},
        "trials": 2,
        "sampler": "random",
        "constraints": {"mass_kg": {"high": 3}},
    }
    data = {"name": "t", "jobs": [{"name": "a", "env": "Hopper-v5"}], "search": table}
    with pytest.raises(SpecError, match=r"search\.constraints: are measured on a robot"):
        from_mapping(data, source="search.toml", base=place)


def test_constraints_say_by_how_much_a_body_is_beyond_them() -> None:
    constraints = (
        Constraint(measure="mass_kg", low=3.0, high=12.0),
        Constraint(measure="torque_sum / mass_kg", low=2.0, high=None),
    )
    good = check_measures(constraints, {"mass_kg": 12.0, "torque_sum": 24.0})
    assert (good.is_satisfied, good.excess) == (True, [0.0, 0.0])
    bad = check_measures(constraints, {"mass_kg": 13.0, "torque_sum": 13.0})
    assert bad.excess == [1.0, 1.0]
    assert bad.why == (
        "mass_kg is 13, expected from 3 to 12; torque_sum / mass_kg is 1, expected at least 2"
    )
    unknown = check_measures(constraints, {"mass_kg": 5.0, "torque_sum": None})
    assert (unknown.excess, unknown.why) == (None, "torque_sum has no value")
    nothing = check_measures(constraints[1:], {"mass_kg": 0.0, "torque_sum": 1.0})
    assert nothing.excess is None
    assert "mass_kg is 0, and nothing can be divided by it" in nothing.why


LINE = SearchSpec(
    space=(Dimension(key="a"), Dimension(key="b")),
    sampler="random",
    objectives=("eval_mean",),
    directions=("maximize",),
    trials=100,
    constraints=(Constraint(measure="mass_kg", low=None, high=0.4),),
)
ARCHIVE = (ArchiveAxis(name="a", low=0, high=1, cells=8),)
SAMPLERS = ["random", "cmaes"] + [
    pytest.param(name, marks=pytest.mark.nightly)
    for name in ("sobol", "tpe", "gp", "nsga2", "map-elites", "cma-me")
]


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


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_resumed_search_draws_the_same_points_within_the_constraints(
    sampler: str, tmp_path: Path
) -> None:
    measures = ARCHIVE if sampler in ("map-elites", "cma-me") else ()
    spec = dataclasses.replace(LINE, sampler=sampler, measures=measures)
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


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_where_the_sampler_finds_no_body_random_points_are_taken(
    sampler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proposals_module, "ASKED_FOR_ONE", 3)
    measures = ARCHIVE if sampler in ("map-elites", "cma-me") else ()
    constraint = Constraint(measure="mass_kg", low=None, high=0.03)
    spec = dataclasses.replace(LINE, sampler=sampler, measures=measures, constraints=(constraint,))

    def lightest(point: Mapping[str, Any]) -> ConstraintCheck:
        return check_measures(spec.constraints, {"mass_kg": point["a"]})

    whole = Asked(made(tmp_path, spec))
    points = [whole.next_point(lightest) for _ in range(6)]
    assert all(point["a"] <= 0.03 for point in points)
    asked = [event.content for event in whole.events if event.kind == "asked"]
    assert max(len(content.get("rejected", ())) for content in asked) == 3, "no event grows"
    assert sum(content.get("rejected_random", 0) for content in asked) > 20
    assert whole.history.rejected > 20 + 3
    replayed = whole.resumed(made(tmp_path, spec))
    assert replayed.next_point(lightest) == whole.next_point(lightest)


def test_a_search_whose_constraints_no_point_satisfies_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proposals_module, "MOST_FOR_ONE", 200)
    monkeypatch.setattr(proposals_module, "MOST_REFUSED", 150)

    def none(point: Mapping[str, Any]) -> ConstraintCheck:
        return ConstraintCheck(excess=None, why="torque_max has no value")

    unconstrained = dataclasses.replace(LINE, constraints=())
    for spec, message in (
        (
            LINE,
            r"none of 200 points in a row satisfies search.constraints; the last one: torque_max",
        ),
        (
            unconstrained,
            r"none of 150 points in a row makes a job; the last one: torque_max has no value",
        ),
    ):
        with pytest.raises(UsageError, match=message):
            Asked(made(tmp_path, spec)).next_point(none)


@pytest.mark.nightly
def test_tpe_learns_where_bodies_satisfy_the_constraints(tmp_path: Path) -> None:
    spec = dataclasses.replace(LINE, sampler="tpe")

    def narrow(point: Mapping[str, Any]) -> ConstraintCheck:
        constraint = Constraint(measure="mass_kg", low=0.7, high=0.8)
        return check_measures([constraint], {"mass_kg": point["a"]})

    whole = Asked(made(tmp_path, spec))
    for _ in range(30):
        whole.next_point(narrow)
    by_chance = 30 * 9
    assert whole.history.rejected < by_chance / 2


# -- with robots


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
    shown = " ".join(commands.succeed("run", jobs, "--dry-run", cwd=tmp_path).stdout.split())
    assert (
        f"of {FEWER_POINTS} random points satisfy the constraints (one that does not: mass_kg is"
        in shown
    )
    assert "constraints: mass_kg at most" in shown
    commands.instant_workers(monkeypatch, tmp_path)
    commands.succeed("run", jobs, "--run-dir", "run", cwd=tmp_path)
    rows = commands.summary(tmp_path / "run")
    assert list(rows) == [f"hopper-t{number:05d}-s0" for number in range(3)]
    assert all(row[SIZE] <= 1.0 for row in rows.values())
    with run_directory.opened_ledger(RunPaths(tmp_path / "run"), read_only=True) as ledger:
        asked = [one for one in search_events.events(ledger) if one.kind == "asked"]
    assert any(event.content.get("rejected") for event in asked)
    status = commands.invoke("status", "run", cwd=tmp_path).stdout
    assert "the constraints" in " ".join(status.split())

    def counted(_: Any) -> constraint_check.SatisfiedPoints:
        opened = [str(file.readlink()) for file in Path("/proc/self/fd").iterdir() if file.exists()]
        assert not [file for file in opened if "ledger" in file], "counting takes up to a minute"
        return constraint_check.SatisfiedPoints(
            satisfied=3, measured=1000, example="", is_example_measured=False
        )

    monkeypatch.setattr(constraint_check, "count_satisfied", counted)
    shown = commands.succeed("run", jobs, "--dry-run", "--run-dir", "run", cwd=tmp_path).stdout
    assert "3 of 1,000 random points satisfy the constraints" in " ".join(shown.split())


@pytest.mark.nightly
def test_constraints_that_no_point_satisfies_are_refused_before_anything_is_launched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = search_file(tmp_path, '"mass_kg / torque_sum" = { high = 0.0 }')
    monkeypatch.setattr(constraint_check, "POINTS", FEWER_POINTS)
    for command in (("run", jobs), ("run", jobs, "--dry-run"), ("check", jobs)):
        done = commands.invoke(*command, cwd=tmp_path)
        shown = " ".join((done.stdout + done.stderr).split())
        assert done.returncode != 0, shown
        assert f"none of {FEWER_POINTS} random points satisfies them" in shown
        assert "Traceback" not in shown
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("satisfied", "is_said"), [(1, True), (2, False)])
def test_a_search_says_when_it_begins_that_few_points_satisfy_its_constraints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, satisfied: int, is_said: bool
) -> None:
    """Of twenty, the first ones, however many are measured at a time; `check` and a dry run show it."""
    examine_here(monkeypatch)
    known: list[Mapping[str, Any]] = []

    def check(
        _: PointMeasurer, points: Sequence[Mapping[str, Any]], turn: object = None
    ) -> list[ConstraintCheck]:
        known.extend(point for point in points if point not in known)
        good, bad = ConstraintCheck(excess=()), ConstraintCheck(excess=None, why="too heavy")
        return [good if known.index(point) < satisfied else bad for point in points]

    monkeypatch.setattr(PointMeasurer, "check", check)
    monkeypatch.setattr(constraint_check, "POINTS", FEWER_POINTS)
    monkeypatch.setattr(constraint_check, "AT_ONCE", 1)
    jobs = search_file(tmp_path, "nu = { low = 1 }")
    found = constraint_check.examine(load(jobs), lambda: None)
    assert found.problem is None
    said = [
        "search.constraints: 1 of 20 random points satisfies the constraints (one that does not: too heavy), so many "
        "bodies are measured for each that is trained; a wider bound would help"
    ]
    assert found.warnings == (said if is_said else ())
    for command in (("run", jobs, "--dry-run"), ("check", jobs)):
        shown = commands.invoke(*command, cwd=tmp_path)
        text = " ".join((shown.stdout + shown.stderr).split())
        assert ("a wider bound would help" in text) is is_said, text


def test_where_none_satisfies_them_a_run_counts_enough_and_then_only_for_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(
        _: PointMeasurer, points: Sequence[Any], turn: object = None
    ) -> list[ConstraintCheck]:
        return [ConstraintCheck(excess=None, why="too heavy") for _ in points]

    monkeypatch.setattr(PointMeasurer, "check", check)
    monkeypatch.setattr(constraint_check, "AT_ONCE", 1)
    experiment = load(search_file(tmp_path, "nu = { low = 1 }"))
    for counting_s, counted in ((60.0, "1,000"), (-1.0, "100")):
        monkeypatch.setattr(constraint_check, "COUNTING_S", counting_s)
        problem = constraint_check.examine(experiment, lambda: None).problem
        assert problem is not None
        assert f"none of {counted} random points satisfies them" in str(problem)
        found = constraint_check.count_satisfied(experiment)
        assert found is not None
        assert found.measured == 1000 if counting_s > 0 else found.measured < 100


def test_an_initial_point_that_violates_a_constraint_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examine_here(monkeypatch)
    kg = masses(search_file(tmp_path, "mass_kg = { high = -1e-9 }"))
    table = f'trials = 3\ninitial = [{{ "{SIZE}" = 0.9 }}, {{ "{SIZE}" = 1.9 }}]'
    jobs = search_file(tmp_path, f"mass_kg = {{ high = {kg[1.0]} }}", table)
    done = commands.invoke("run", jobs, cwd=tmp_path)
    assert done.returncode != 0
    shown = " ".join(done.stderr.split())
    assert "search.initial[1]: the point does not satisfy search.constraints: mass_kg is" in shown
