"""Evaluation on a grid: the finished policy on changed robots, each from the same starts."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import worker_helpers as helpers

from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.messages import ExaminationRequest
from orchestrator.core.numbers.evaluation_grid import EvaluationGrid
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.worker.envs.episode_conditions import GridPlaces
from orchestrator.worker.envs.randomization.randomized_simulation import RandomizedSimulation
from orchestrator.worker.robots.preflight_child import check
from orchestrator.worker.training import evaluation

QUADRUPED = Path(__file__).parents[3] / "mjcf/quadruped.xml"


MASS, FRICTION = "body.trunk.mass", "geom.floor.friction"


RANDOMIZE = {MASS: "scale(0.9, 1.1)", "actuator.*.kp": "scale(0.9, 1.1)"}


GRID = {MASS: ["*0.5", "*1", "*1.5"], FRICTION: [0.2, 2.0]}
"""The feet have a friction of 1, and the larger one of two counts: both frictions differ in effect."""


OPTIONS = {"max_episode_steps": 20}


def on_grid(
    grid: dict[str, Any], at_each: int = 2, randomize: Any = RANDOMIZE, **changes: Any
) -> RandomizedSimulation:
    parsed = EvaluationGrid.parse(grid)
    assert parsed is not None
    places = GridPlaces(parsed, parsed.points, at_each)
    settings: Any = {"n_envs": at_each * len(parsed.points), "seed": 7, **changes}
    return RandomizedSimulation(QUADRUPED, "auto", OPTIONS, randomize, places, **settings)


def job(directory: Path, **changes: Any) -> WorkerSpec:
    given: dict[str, Any] = {
        "task": "forward",
        "xml": "robot/quadruped.xml",
        "task_options": OPTIONS,
    }
    given |= {"randomize": RANDOMIZE, "evaluate": GRID, "eval_episodes": 3, "total_timesteps": 128}
    (directory / "robot").mkdir(parents=True)
    shutil.copy(QUADRUPED, directory / "robot")
    return helpers.algorithm("ppo", **given | changes)


def test_environments_have_the_values_of_their_points_and_the_same_streams_at_each() -> None:
    batch = on_grid(GRID)
    batch.reset()
    friction = batch.model.geom("floor").friction
    for env in range(12):
        model, point = batch.model_of(env), env // 2
        factor = (0.5, 1.0, 1.5)[point // 2]
        assert model.body("trunk").mass[0] == pytest.approx(
            factor * batch.model.body("trunk").mass[0]
        )
        assert model.geom("floor").friction == pytest.approx([(0.2, 2.0)[point % 2], *friction[1:]])
    gains = batch.draws.values["actuator.*.kp"]
    assert len(set(gains)) == 2
    assert np.array_equal(gains, np.tile(gains[:2], 6))
    assert np.array_equal(batch.states.qpos, np.tile(batch.states.qpos[:2], (6, 1)))


def test_disturbances_have_the_values_of_their_points() -> None:
    grid = {"push.speed": [0, 2], "push.period": [0.2, 10], "action.delay": [0, 3]}
    parsed = EvaluationGrid.parse(grid)
    assert parsed is not None
    pushed, delayed = on_grid(grid, at_each=1), on_grid(grid, at_each=1)
    pushed.reset()
    for _ in range(round(0.2 / pushed.control_period_s) + 1):
        pushed.step(np.zeros((8, pushed.model.nu)))
    moved = np.linalg.norm(pushed.states.qvel - pushed.states.qvel[0], axis=1) > 0.5
    assert moved.tolist() == [
        point.at["push.speed"] == 2 and point.at["push.period"] == 0.2 for point in parsed.points
    ]
    delayed.reset()
    for action in np.random.default_rng(1).uniform(-0.3, 0.3, (2, 1, delayed.model.nu)):
        delayed.step(np.repeat(action, 8, axis=0))
    late = np.abs(delayed.states.qpos - delayed.states.qpos[0]).max(axis=1) > 1e-4
    assert late.tolist() == [point.at["action.delay"] == 3 for point in parsed.points]


def test_eval_json_has_a_point_for_each_combination_whatever_the_size_of_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = job(tmp_path / "job")
    paths = helpers.job(tmp_path / "job", spec)
    record, log = helpers.train_here(paths)
    assert record.code == ExitCode.SUCCEEDED, log
    content = json.loads(paths.eval.read_text())
    assert [point["at"] for point in content["grid"]][:3] == [
        {MASS: "*0.5", FRICTION: 0.2},
        {MASS: "*0.5", FRICTION: 2.0},
        {MASS: "*1", FRICTION: 0.2},
    ]
    assert len(content["grid"]) == 6
    for point in content["grid"]:
        assert len(point["returns"]) == len(point["lengths"]) == 3
        assert point["drawn"][MASS] == [float(point["at"][MASS][1:])] * 3
    assert all(0.9 <= value <= 1.1 for value in content["deterministic"]["drawn"][MASS])
    assert len({point["mean"] for point in content["grid"]}) == 6
    monkeypatch.setattr(evaluation, "GRID_AT_ONCE", 3)
    again = helpers.job(tmp_path / "again", job(tmp_path / "again"))
    helpers.train_here(again)
    for point, same in zip(
        content["grid"], json.loads(again.eval.read_text())["grid"], strict=True
    ):
        assert (same["at"], same["drawn"]) == (point["at"], point["drawn"])
        assert sorted(same["returns"]) == pytest.approx(sorted(point["returns"]), rel=1e-3), (
            "the policy rounds by batch"
        )


@pytest.mark.parametrize(
    ("grid", "randomize", "problem"),
    [
        (GRID, RANDOMIZE, None),
        (
            {"body.trunk.weight": [1, 2]},
            {},
            "evaluate.body.trunk.weight: cannot be drawn",
        ),
        (
            {"body.trunk.mass": [-1, 2]},
            {},
            "evaluate.body.trunk.mass: may be -1; expected above 0",
        ),
        ({"geom.floor.size": ["*1", "*2"]}, {}, "evaluate.geom.floor.size: "),
        ({"push.period": [1, 2]}, {}, "evaluate.push.period: there are no pushes"),
        ({"geom.floor.friction": [1, 2]}, {"geom.*.friction": "uniform(0.5, 1)"}, None),
    ],
)
def test_the_examination_before_the_launch_finds_what_does_not_fit(
    grid: dict[str, Any], randomize: dict[str, Any], problem: str | None
) -> None:
    request = ExaminationRequest(
        xml=str(QUADRUPED), task="auto", randomize=randomize, evaluate=grid, simulate_s=0.02
    )
    answer = check(request)
    assert (answer.problem is None) == (problem is None), answer.problem
    assert (problem or "") in (answer.problem or "")


def test_the_grid_is_no_part_of_the_fingerprint() -> None:
    spec = helpers.spec()
    assert dataclasses.replace(spec, evaluate=GRID).fingerprint() == spec.fingerprint()
