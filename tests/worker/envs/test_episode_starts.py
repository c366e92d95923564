"""Rough terrain and starting poses, drawn for every episode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import simulation_helpers

from orchestrator.worker.envs.randomization.randomized_fields import RandomizeError
from orchestrator.worker.envs.randomization.randomized_simulation import RandomizedSimulation

MJCF = Path(__file__).parents[3] / "mjcf"


QUADRUPED = MJCF / "quadruped.xml"


ROUGH = {"terrain": "rough(0.08)"}


STARTS = {
    "start.joints": "uniform(-0.5, 0.5)",
    "start.height": "uniform(0.1, 0.3)",
    "start.turn": "uniform(-3, 3)",
    "start.speed": "uniform(0.5, 1)",
}


EVERYTHING = {
    **ROUGH,
    **STARTS,
    "geom.floor.friction": "uniform(0.4, 1.2)",
    "observation.delay": "choice(0, 2)",
}


def simulation(
    randomize: dict[str, str], robot: Path = QUADRUPED, **changes: Any
) -> RandomizedSimulation:
    settings: Any = {"n_envs": 3, "seed": 7} | changes
    options = {"max_episode_steps": 30, "reset_noise_scale": 0.0}
    return RandomizedSimulation(robot, "auto", options, randomize, **settings)


def ground_below(batch: RandomizedSimulation, env: int) -> float:
    """Height of the terrain under the robot's base."""
    return ground_in(batch.model_of(env), batch.data(env))


def ground_in(model: mujoco.MjModel, data: mujoco.MjData) -> float:
    origin = np.array([*data.qpos[:2], 5.0])
    down, hit = np.array([0.0, 0.0, -1.0]), np.zeros(1, np.int32)
    return float(5.0 - mujoco.mj_ray(model, data, origin, down, None, True, 1, hit))


def test_every_episode_starts_on_another_part_of_the_terrain_and_above_it() -> None:
    batch = simulation(ROUGH)
    heights = []
    for _ in range(6):
        batch.reset()
        for env in range(3):
            data = batch.data(env)
            assert data.contact.dist[: data.ncon].min(initial=0.0) > -1e-3, (
                "nothing starts below the ground"
            )
            heights.append(ground_below(batch, env))
    assert len(set(np.round(heights, 6))) == len(heights)
    assert 0 <= min(heights) < 0.03 < 0.05 < max(heights) <= 0.08


def test_the_robot_stands_on_the_terrain() -> None:
    batch = simulation(ROUGH)
    batch.reset()
    for _ in range(25):
        batch.step(np.zeros((3, batch.model.nu)))
    for env in range(3):
        data = batch.data(env)
        assert data.ncon >= 3
        assert data.contact.dist[: data.ncon].min() > -0.02
        assert 0.2 < data.qpos[2] - ground_below(batch, env) < 0.45


def test_starts_are_drawn_within_their_bounds_and_the_limits_of_joints() -> None:
    plain, batch = (
        simulation({"geom.floor.friction": "uniform(0.4, 1.2)"}),
        simulation(STARTS, n_envs=64),
    )
    plain.reset()
    batch.reset()
    pose, qpos = plain.states.qpos[0], batch.states.qpos
    raised, joints = qpos[:, 2] - pose[2], qpos[:, 7:] - pose[7:]
    assert (raised.min() >= 0.1, raised.max() <= 0.3) == (True, True)
    assert np.ptp(raised) > 0.15
    assert (np.abs(joints).max() <= 0.5, np.std(joints) > 0.2) == (True, True)
    assert np.ptp(2 * np.arctan2(qpos[:, 6], qpos[:, 3])) > 3
    assert np.linalg.norm(qpos[:, 3:7], axis=1) == pytest.approx(1)
    speeds = np.linalg.norm(batch.states.qvel[:, :2], axis=1)
    assert (speeds.min() >= 0.5, speeds.max() <= 1.0) == (True, True)
    wide = simulation({"start.joints": "uniform(-3, 3)"}, n_envs=16)
    wide.reset()
    low, high = wide.model.jnt_range[1:].T
    assert (wide.states.qpos[:, 7:] >= low).all()
    assert (wide.states.qpos[:, 7:] <= high).all()


def test_an_environment_is_the_same_alone_and_among_neighbours_and_with_threads() -> None:
    plan = np.random.default_rng(1).uniform(-1, 1, (70, 3, 8))
    together, threads = simulation(EVERYTHING), simulation(EVERYTHING, n_threads=2)
    alone = simulation(EVERYTHING, n_envs=1, first_env=2)
    first = together.reset()
    assert np.array_equal(first, threads.reset())
    assert np.array_equal(first[2], alone.reset()[0])
    results = simulation_helpers.steps(together, plan)
    simulation_helpers.assert_same(results, simulation_helpers.steps(threads, plan))
    for row, single in zip(results, simulation_helpers.steps(alone, plan[:, 2:]), strict=True):
        assert np.array_equal(row[0][2], single[0][0])


def test_a_saved_state_continues_on_the_same_terrain() -> None:
    plan = np.random.default_rng(1).uniform(-1, 1, (70, 3, 8))
    whole, copy = simulation(EVERYTHING), simulation(EVERYTHING, seed=99)
    whole.reset()
    copy.reset()
    simulation_helpers.steps(whole, plan[:20])
    copy.set_state(whole.get_state())
    simulation_helpers.assert_same(
        simulation_helpers.steps(whole, plan[20:]), simulation_helpers.steps(copy, plan[20:])
    )


@pytest.mark.parametrize(
    ("robot", "randomize", "message"),
    [
        ("arm", ROUGH, "randomize.terrain: needs"),
        ("arm", {"start.speed": "uniform(0, 1)"}, "randomize.start.speed: needs"),
        (
            "hopper",
            {"start.turn": "uniform(0, 1)"},
            "randomize.start.turn: the robot's base cannot move like that; leave",
        ),
        ("rover", {}, None),
    ],
)
def test_what_a_robot_cannot_do_is_refused(
    robot: str, randomize: dict[str, str], message: str | None
) -> None:
    if message is None:
        simulation({**ROUGH, "start.joints": "uniform(0, 0.1)"}, MJCF / f"{robot}.xml").reset()
        return
    with pytest.raises(RandomizeError) as error:
        simulation(randomize, MJCF / f"{robot}.xml")
    assert str(error.value).startswith(message)
    assert randomize == ROUGH or str(error.value).endswith("; leave the key out")


@pytest.mark.parametrize(
    ("floor", "message"),
    [
        ("", "this robot has none"),
        (
            '<geom type="plane" size="9 9 1"/><geom type="plane" size="1 1 1" pos="0 0 -1"/>',
            "this robot has 2",
        ),
        ('<geom type="plane" size="9 9 1" euler="5 0 0"/>', "this robot has none"),
    ],
)
def test_a_terrain_needs_one_level_floor(tmp_path: Path, floor: str, message: str) -> None:
    robot = tmp_path / "robot.xml"
    body = '<body pos="0 0 1"><freejoint/><geom size="0.1"/><body><joint name="j"/><geom size="0.1" pos="0.2 0 0"/>'
    motor = '<actuator><motor joint="j" ctrlrange="-1 1"/></actuator>'
    robot.write_text(f"<mujoco><worldbody>{floor}{body}</body></body></worldbody>{motor}</mujoco>")
    with pytest.raises(RandomizeError, match=message):
        simulation(ROUGH, robot)
