"""Rough terrain and starting poses, drawn for every episode."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np
import pytest
import simulation_helpers
import worker_helpers as helpers

from orchestrator.worker.envs import env_factory
from orchestrator.worker.envs.poses import pose_of
from orchestrator.worker.envs.randomization.episode_starts import EpisodeStarts
from orchestrator.worker.envs.randomization.randomized_fields import RandomizeError
from orchestrator.worker.envs.randomization.randomized_simulation import RandomizedSimulation
from orchestrator.worker.rendering import offscreen, scenery, stills
from orchestrator.worker.tasks import make_task
from orchestrator.worker.training.best_moment import BestMoment

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


def test_a_robot_whose_base_is_not_in_its_middle_is_above_the_terrain_when_it_is_turned(
    tmp_path: Path,
) -> None:
    robot = tmp_path / "arm_of_two_metres.xml"
    robot.write_text("""<mujoco><worldbody><geom name="floor" type="plane" size="50 50 1"/>
      <body name="base" pos="0 0 0.051"><freejoint/>
        <geom type="box" size="0.05 0.05 0.05" pos="2 0 0"/>
        <body pos="2 0 0"><joint name="hinge" axis="0 1 0"/><geom type="sphere" size="0.04"/></body>
      </body></worldbody><actuator><motor joint="hinge"/></actuator></mujoco>""")
    batch = simulation({**ROUGH, "start.turn": "uniform(-3, 3)"}, robot)
    for _ in range(20):
        batch.reset()
        for env in range(3):
            data = batch.data(env)
            assert data.contact.dist[: data.ncon].min(initial=0.0) > -1e-3


def test_a_floor_of_a_fixed_body_lies_as_one_of_the_world_does(tmp_path: Path) -> None:
    text = QUADRUPED.read_text()
    [floor] = re.findall(r'<geom name="floor".*?/>', text)
    batches = []
    for name, placed in {
        "world": floor.replace("/>", ' pos="7 -3 0"/>'),
        "body": '<body pos="5 -4 0">' + floor.replace("/>", ' pos="2 1 0"/></body>'),
    }.items():
        robot = tmp_path / f"{name}.xml"
        robot.write_text(text.replace(floor, "").replace("</worldbody>", f"{placed}</worldbody>"))
        batches.append(simulation(ROUGH, robot))
        batches[-1].reset()
    world, body = batches
    for env in range(3):
        places = [batch.data(env).geom("floor").xpos for batch in batches]
        assert places[1] == pytest.approx(places[0])
        assert ground_below(body, env) == pytest.approx(ground_below(world, env))
        for batch in batches:
            assert drawn_ground(batch, tmp_path / batch.robot, env) == pytest.approx(
                ground_below(batch, env)
            )


def drawn_ground(batch: RandomizedSimulation, robot: Path, env: int) -> float:
    """Height of the terrain under the robot's base in a picture."""
    model = scenery.add_scenery(robot, batch.terrain)
    data = mujoco.MjData(model)
    offscreen.set_pose(model, data, pose_of(batch, env))
    assert model.ngeom == batch.model.ngeom
    return ground_in(model, data)


def test_a_still_shows_the_terrain_of_its_episode(tmp_path: Path) -> None:
    (tmp_path / "robot").mkdir()
    shutil.copy(QUADRUPED, tmp_path / "robot")
    spec = helpers.spec(task="forward", xml="robot/quadruped.xml", randomize=ROUGH)
    paths = helpers.job(tmp_path, spec)
    venv, moment = env_factory.make(spec, tmp_path, n_envs=1, seed=0), BestMoment()
    batch: Any = venv.simulation
    venv.reset()
    moment.begin(venv)
    one = np.ones(1)
    moment.step(one, one, np.ones(1, int), one > 0, one > 0)
    paths.moment.write_bytes(moment.content() or b"")
    kept = stills.read(paths)
    model = stills.robot_as_drawn(paths, kept)
    data = mujoco.MjData(model)
    offscreen.set_pose(model, data, kept.pose)
    assert ground_in(model, data) == pytest.approx(ground_below(batch, 0))
    assert model.hfield_nrow[0] < batch.model.hfield_nrow[0], "no more than is seen"


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


def test_floor_keys_hold_for_the_terrain() -> None:
    batch = simulation({**ROUGH, "geom.floor.friction": "uniform(0.4, 1.2)"})
    batch.reset()
    for env in range(3):
        assert batch.model_of(env).geom("floor").friction[0] == pytest.approx(batch.drawn[env, 0])
        assert batch.model_of(env).geom("floor").type == mujoco.mjtGeom.mjGEOM_HFIELD


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
            "randomize.start.turn: the robot's base cannot turn freely, as it has no free joint; leave",
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


def test_joints_of_a_robot_that_has_none_besides_its_base_are_refused(tmp_path: Path) -> None:
    xml = tmp_path / "drone.xml"
    xml.write_text("""<mujoco><worldbody><geom type="plane" size="5 5 0.1"/>
    <body pos="0 0 1"><freejoint/><geom size="0.1"/><site name="thrust"/></body></worldbody>
    <actuator><motor site="thrust" gear="0 0 1 0 0 0" ctrlrange="0 20"/></actuator></mujoco>""")
    with pytest.raises(RandomizeError, match="no hinge or slide besides its base; leave the key"):
        simulation({"start.joints": "uniform(0.5, 0.6)"}, xml)


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


def test_joints_of_a_robot_that_moves_about_are_drawn_and_not_those_of_a_door(
    tmp_path: Path,
) -> None:
    xml = tmp_path / "drone.xml"
    xml.write_text("""<mujoco><worldbody><geom type="plane" size="5 5 0.1"/>
    <body pos="0 0 1"><freejoint/><geom size="0.1"/><site name="thrust"/>
    <body><joint name="arm" axis="0 1 0"/><geom size="0.03" pos="0.1 0 0"/></body></body>
    <body pos="3 0 0.5"><joint name="door" axis="0 0 1"/><geom size="0.4"/></body></worldbody>
    <actuator><motor site="thrust" gear="0 0 1 0 0 0" ctrlrange="0 20"/></actuator></mujoco>""")
    batch = simulation({"start.joints": "uniform(0.5, 0.6)"}, xml)
    batch.reset()
    arm, door = (batch.model.joint(name).qposadr[0] for name in ("arm", "door"))
    assert (batch.states.qpos[:, arm] > 0.4).all()
    assert (batch.states.qpos[:, door] == 0).all()


def test_a_drawn_joint_without_a_name_is_called_as_in_the_observations() -> None:
    model = mujoco.MjModel.from_xml_string(
        """<mujoco><worldbody><body><joint name="a" axis="0 1 0"/><geom size="0.1"/>
        <body name="tip" pos="0 0 0.3"><joint axis="0 1 0"/><geom size="0.1"/></body></body>
        </worldbody><actuator><motor joint="a" ctrlrange="-1 1"/></actuator></mujoco>"""
    )
    task = make_task("reach", model, {})
    starts = EpisodeStarts({"start.joints": "uniform(0, 1)"}, task, None, np.zeros((1, 2)))
    assert list(starts.drawn) == ["start.joints.a", "start.joints.tip joint 0"]
    observed = task.observation_names()
    assert observed is not None
    assert {"a velocity", "tip joint 0 velocity"} < set(observed)


@pytest.mark.parametrize("robot", ["pusher_v5", "reacher", "swimmer", "walker2d_v5", "ant"])
def test_in_the_files_of_gymnasium_all_joints_but_those_of_the_base_are_drawn(robot: str) -> None:
    xml = Path(gymnasium.__file__).parent / f"envs/mujoco/assets/{robot}.xml"
    batch = simulation({"start.joints": "uniform(-0.02, 0.02)"}, xml)
    scalar = (mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE)
    moved = {"pusher_v5": 11, "reacher": 4, "swimmer": 2, "walker2d_v5": 6, "ant": 8}[robot]
    addresses = batch.model.jnt_qposadr[np.isin(batch.model.jnt_type, list(map(int, scalar)))]
    is_moved = np.zeros(len(addresses), bool)
    for _ in range(5):  # some start at a limit, and move only away from it
        batch.reset()
        is_moved |= (batch.states.qpos != batch.task.pose)[:, addresses].any(axis=0)
    assert is_moved.sum() == moved
