"""The table ``evaluate`` of a job file, and the section of the report on what was evaluated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jobfile_helpers import HOPPER, resolve
from report_helpers import Trained, make_run_dir, rows

from orchestrator import report
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
    ("key", "values"),
    [
        (MASS, 1.2),
        (MASS, ["*0.7", 1.0]),
        (MASS, ["0.7", "1"]),
        (MASS, [1, 2, 1.0]),
        ("push.speed", ["*1", "*2"]),
        ("action.delay", [0, 101]),
        ("push.period", [0, 1]),
    ],
)
def test_what_are_no_values_of_a_key_is_refused(key: str, values: Any) -> None:
    with pytest.raises(ValueError):
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


def test_the_report_has_the_mean_over_seeds_at_every_point(tmp_path: Path) -> None:
    grid = EvaluationGrid.parse(GRID)
    assert grid is not None
    paths = make_run_dir(tmp_path / "run", [Trained(seed=seed) for seed in range(3)])
    for seed in range(3):
        points = [
            {"at": point.at, "mean": 100.0 * number + seed}
            for number, point in enumerate(grid.points)
        ]
        paths.job(f"j0-s{seed}").eval.write_text(json.dumps({"grid": points}))
    document = report.compose(paths.root)
    [robot] = document.numbers["robots"]
    assert [point["mean"]["value"] for point in robot["grid"]] == [
        100.0 * n + 1 for n in range(len(grid.points))
    ]
    shown = rows(document, "Evaluation grid")
    assert len(shown) == len(grid.points)
    assert f"{MASS} = *0.7, {FRICTION} = 0.8" in shown[1]
