"""The table ``evaluate`` of a job file, and the section of the report on what was evaluated."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jobfile_helpers import HOPPER, problems, resolve
from report_helpers import Page, Trained, leave_undrawn, make_run_dir

from orchestrator import report
from orchestrator.analysis import run_reader
from orchestrator.analysis.statistics import MEDIAN_INTERVALS
from orchestrator.core.errors import SpecError
from orchestrator.core.numbers.changing_numbers import END
from orchestrator.core.numbers.evaluation_grid import EvaluationGrid, number_of_points, parse_axis

MASS, FRICTION = "body.trunk.mass", "geom.floor.friction"
GRID = {MASS: ["*0.7", "*1", "*1.3"], FRICTION: [0.4, 0.8]}


def test_the_points_are_all_combinations_in_the_order_of_the_keys() -> None:
    grid = EvaluationGrid.parse({FRICTION: [0.4, 0.8], MASS: ["*0.7", "*1", "*1.3"]})
    assert grid is not None
    assert [tuple(point.at.values()) for point in grid.points[:3]] == [
        ("*0.7", 0.4),
        ("*0.7", 0.8),
        ("*1", 0.4),
    ]
    assert (len(grid.points), number_of_points(GRID), number_of_points({})) == (6, 6, 0)
    assert EvaluationGrid.parse({}) is None


def test_a_point_draws_nothing_but_its_own_value() -> None:
    factor, value = parse_axis(MASS, ["*0.5", "*2"]), parse_axis(FRICTION, [2, 0.5])
    assert (factor.multiplies, value.multiplies) == (True, False)
    assert (factor.range.extremes, value.range.extremes) == ((0.5, 2.0), (0.5, 2.0))
    assert (factor.at("*2").extremes, value.at(2).extremes) == ((2.0, 2.0), (2.0, 2.0))
    noise = parse_axis("observation.noise", [0, 0.1]).at(0.1)
    assert (noise.kind, noise.numbers(END)) == ("normal", (0.0, 0.1))


@pytest.mark.parametrize(
    ("key", "values", "message"),
    [
        (MASS, 1.2, "expected a list of at least two values"),
        (MASS, ["*1"], "expected a list of at least two values"),
        (MASS, "scale(0.7, 1.3)", "expected a list of at least two values"),
        (MASS, ["*0.7", 1.0], "mixes values and factors"),
        (MASS, ["0.7", "1"], "'0.7': expected a finite number, or a factor such as \"*1.2\""),
        (MASS, [1.0, True], "True: expected a finite number"),
        (MASS, [1.0, float("inf")], "inf: expected a finite number"),
        (MASS, [1, 2, 1.0], "1 is there twice"),
        (MASS, [0, 0.0], "0 is there twice"),
        ("push.speed", ["*1", "*2"], 'there is nothing that "*1" could multiply'),
        ("observation.noise", [-0.1, 0.1], "-0.1 is below 0"),
        ("action.delay", [0, 101], "may draw 101; expected at most 100 control steps"),
        ("push.period", [0, 1], "may draw 0; expected more than 0"),
    ],
)
def test_what_are_no_values_of_a_key_is_refused(key: str, values: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_axis(key, values)


def test_jobs_add_to_the_grid_of_the_defaults(place: Path) -> None:
    defaults = {"evaluate": {"geom": {"floor": {"friction": [0.4, 0.8]}}}}
    own = {**HOPPER, "evaluate": {"push.speed": [0, 1]}}
    first, second = resolve(
        place, own, {"name": "other", "env": "Hopper-v5"}, defaults=defaults
    ).jobs
    assert first.spec.evaluate == {FRICTION: [0.4, 0.8], "push.speed": [0, 1]}
    assert second.spec.evaluate == {}


def test_the_grid_does_not_decide_what_is_trained(place: Path) -> None:
    plain, evaluated = (
        resolve(place, {**HOPPER, **keys}).jobs[0].spec for keys in ({}, {"evaluate": GRID})
    )
    assert plain.fingerprint() == evaluated.fingerprint()


@pytest.mark.parametrize(
    ("job", "where", "message"),
    [
        (
            {"evaluate": {MASS: [1]}},
            "evaluate",
            f'"{MASS}": expected a list of at least two values',
        ),
        ({"evaluate": {"wheel.a.size": [1, 2]}}, "evaluate", "or the key observation.noise"),
        ({"evaluate": {"terrain": ["rough(0.1)"]}}, "evaluate", '"terrain" cannot vary on a grid'),
        ({"evaluate": 3}, "evaluate", "expected a table of lists of values"),
        ({"evaluate": GRID, "eval_episodes": 0}, "evaluate", "eval_episodes is 0"),
        (
            {"evaluate": {key: list(range(1, 12)) for key in (MASS, FRICTION, "push.speed")}},
            "evaluate",
            "1_331 combin",
        ),
        ({"env": "Hopper-v5", "evaluate": GRID}, "evaluate", "is for tasks, built-in or your own"),
        (
            {"matrix": {f"evaluate.{MASS}": [[1, 2], [3, 4]]}},
            f'matrix."evaluate.{MASS}"',
            "changes no training",
        ),
    ],
)
def test_what_is_wrong_is_named_with_key_and_cure(
    place: Path, job: dict[str, Any], where: str, message: str
) -> None:
    with pytest.raises(SpecError) as error:
        resolve(place, {**HOPPER, **job})
    assert any(
        place == f"jobs[0].{where}" and message in text for place, text in problems(error)
    ), problems(error)


def test_points_of_a_damaged_file_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "eval.json"
    file.write_text(
        json.dumps(
            {"grid": [{"at": {MASS: "*1", "x": [1], "y": 2}, "mean": 3}, {"at": 3, "mean": "x"}, 4]}
        )
    )
    assert run_reader.evaluation(file) == {
        "episodes": None,
        "grid": [{"at": {MASS: "*1", "y": 2.0}, "mean": 3.0}, {"at": {}, "mean": None}],
    }
    file.write_text('{"grid": 5}')
    assert run_reader.evaluation(file) == {"episodes": None}


@pytest.mark.parametrize("keys", [(MASS,), (MASS, FRICTION), (MASS, FRICTION, "push.speed")])
def test_the_report_draws_a_line_or_a_heat_map_and_has_a_table(
    tmp_path: Path, keys: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_undrawn(monkeypatch, but=["evaluation-grid"])
    values = {**GRID, "push.speed": [0, 1]}
    grid = EvaluationGrid.parse({key: values[key] for key in keys})
    assert grid is not None
    paths = make_run_dir(
        tmp_path / "run", [Trained(name="quadruped", seed=seed) for seed in range(3)]
    )
    for seed, file in enumerate(
        sorted(job.eval for job in map(paths.job, ("j0-s0", "j0-s1", "j0-s2")))
    ):
        points = [
            {"at": point.at, "mean": 100.0 * number + seed}
            for number, point in enumerate(grid.points)
        ]
        file.write_text(json.dumps({"grid": points}))
    done = report.make(paths.root)
    facts, page = json.loads((paths.root / "report/report.json").read_text()), Page(done.page)
    [robot] = facts["robots"]
    assert [point["mean"]["median"] for point in robot["grid"]] == [
        100.0 * n + 1 for n in range(len(grid.points))
    ]
    assert "Evaluation grid" in page.text
    assert f"95 % interval ({MEDIAN_INTERVALS}) in brackets" in page.text
    assert ", ".join(f"{key} = {value}" for key, value in grid.points[1].at.items()) in page.text
    assert ("evaluation-grid" in facts["figures"]) == (len(keys) < 3)
