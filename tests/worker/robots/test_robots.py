"""The robots in ``mjcf/``: each one compiles, stands where it should, and takes whatever a policy
may ask of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import mujoco
import numpy as np
import pytest

MJCF = Path(__file__).parents[3] / "mjcf"
FILES = sorted(MJCF.rglob("*.xml"))
ROBOTS = [path for path in FILES if ElementTree.parse(path).getroot().tag == "mujoco"]

PLAYED_S = 5.0
HELD_S = 2.0
HELD_CONTROL_S = 0.04
DEEPEST_M = 0.002
"""Of a contact at the start: less than the soft contact of a robot that just stands gives way."""


@pytest.fixture(autouse=True)
def warnings() -> Iterator[list[str]]:
    """What MuJoCo warns of; nothing, in any of these tests."""
    said: list[str] = []
    mujoco.set_mju_user_warning(said.append)
    yield said
    mujoco.set_mju_user_warning(None)
    assert said == []


def load(path: Path) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_path(str(path))


def started(model: mujoco.MjModel) -> mujoco.MjData:
    """In the pose an episode starts from, with the keyframe's controls."""
    data = mujoco.MjData(model)
    if model.nkey:
        mujoco.mj_resetDataKeyframe(model, data, model.key("home").id)
    mujoco.mj_forward(model, data)
    return data


def play(model: mujoco.MjModel, kind: str) -> mujoco.MjData:
    """The robot after ``PLAYED_S`` under controls of that kind, new ones every
    ``HELD_CONTROL_S``."""
    data, random = started(model), np.random.default_rng(0)
    low, high = model.actuator_ctrlrange.T
    skip = max(1, round(HELD_CONTROL_S / model.opt.timestep))
    for _ in range(round(PLAYED_S / HELD_CONTROL_S)):
        match kind:
            case "zero":
                data.ctrl[:] = np.clip(0, low, high)
            case "random":
                data.ctrl[:] = random.uniform(low, high)
            case "low":
                data.ctrl[:] = low
            case "high":
                data.ctrl[:] = high
            case "extremes":
                data.ctrl[:] = np.where(random.random(model.nu) < 0.5, low, high)
        mujoco.mj_step(model, data, skip)
    return data


def root_body(model: mujoco.MjModel) -> int:
    return int(model.jnt_bodyid[0])


def is_servo(model: mujoco.MjModel) -> np.ndarray:
    """``(nu,)``"""
    return (model.actuator_gainprm[:, 0] > 0) & (
        model.actuator_biasprm[:, 1] == -model.actuator_gainprm[:, 0]
    )


def floats(model: mujoco.MjModel) -> bool:
    return bool(model.jnt_type[0] == mujoco.mjtJoint.mjJNT_FREE)


robots = pytest.mark.parametrize("robot", ROBOTS, ids=lambda path: path.stem)
servo_robots = pytest.mark.parametrize(
    "robot", [path for path in ROBOTS if is_servo(load(path)).any()], ids=lambda path: path.stem
)


@pytest.mark.nightly
@robots
@pytest.mark.parametrize("kind", ["zero", "random", "low", "high", "extremes"])
def test_robot_stays_finite_under_any_action(robot: Path, kind: str) -> None:
    data = play(load(robot), kind)
    assert np.isfinite(data.qpos).all()
    assert np.isfinite(data.qvel).all()
    assert not any(seen.number for seen in data.warning)
    assert abs(data.qvel).max() < 200


@robots
def test_robot_starts_on_the_ground_and_not_in_it(robot: Path) -> None:
    model = load(robot)
    data = started(model)
    assert min((contact.dist for contact in data.contact), default=0.0) > -DEEPEST_M
    if model.opt.gravity[2] < 0 and root_falls(model):
        assert lowest_point(model, data) < 0.02


def root_falls(model: mujoco.MjModel) -> bool:
    """Whether the root is free to move up and down."""
    vertical = (model.jnt_type == mujoco.mjtJoint.mjJNT_SLIDE) & (model.jnt_axis[:, 2] == 1)
    return floats(model) or bool(vertical.any())


def lowest_point(model: mujoco.MjModel, data: mujoco.MjData) -> float:
    """Height over the floor of whatever of the robot may touch it."""
    floor = model.geom("floor").id
    touching = [geom for geom in range(model.ngeom) if geom != floor and model.geom_contype[geom]]
    return min(mujoco.mj_geomDistance(model, data, floor, geom, 1.0, None) for geom in touching)


@robots
def test_every_actuator_has_a_range_of_controls(robot: Path) -> None:
    model = load(robot)
    assert model.nu > 0
    assert model.actuator_ctrllimited.all()
    assert (model.actuator_ctrlrange[:, 0] < model.actuator_ctrlrange[:, 1]).all()


@servo_robots
def test_servo_robot_holds_its_starting_pose(robot: Path) -> None:
    model = load(robot)
    data = started(model)
    before = data.qpos.copy()
    height = data.xpos[root_body(model), 2]
    mujoco.mj_step(model, data, round(HELD_S / model.opt.timestep))
    assert data.xpos[root_body(model), 2] > 0.9 * height
    hinges = model.jnt_qposadr[model.jnt_type == mujoco.mjtJoint.mjJNT_HINGE]
    assert abs(data.qpos - before)[hinges].max() < 0.15
    if floats(model):
        assert data.xmat[root_body(model)].reshape(3, 3)[2, 2] > 0.98


@pytest.mark.parametrize(
    "robot",
    [path for path in ROBOTS if ElementTree.parse(path).find("keyframe")],
    ids=lambda path: path.stem,
)
def test_keyframe_home_is_within_the_ranges_of_joints_and_controls(robot: Path) -> None:
    model = load(robot)
    home = model.key("home")
    for joint in np.flatnonzero(model.jnt_limited):
        low, high = model.jnt_range[joint]
        assert low <= home.qpos[model.jnt_qposadr[joint]] <= high, model.joint(joint).name
    low, high = model.actuator_ctrlrange.T
    assert (low <= home.ctrl).all()
    assert (home.ctrl <= high).all()


@robots
def test_robot_is_seen_and_everything_that_matters_has_a_name(robot: Path) -> None:
    model = load(robot)
    assert model.ncam >= 1
    assert model.nlight >= 1
    for kind, count in (
        ("body", model.nbody),
        ("joint", model.njnt),
        ("geom", model.ngeom),
        ("actuator", model.nu),
    ):
        names = [getattr(model, kind)(number).name for number in range(count)]
        assert all(names), kind
