"""What of a scene is the robot, which pictures show whole."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import mujoco
import numpy as np
import pytest

from orchestrator.worker.envs.model_loading import load_model
from orchestrator.worker.rendering import camera

MJCF = Path(__file__).parents[3] / "mjcf"
GYMNASIUM = Path(gymnasium.__file__).parent / "envs/mujoco/assets"
UNBOUNDED = (int(mujoco.mjtGeom.mjGEOM_PLANE), int(mujoco.mjtGeom.mjGEOM_HFIELD))

SCENE = """<mujoco><worldbody><geom name="floor" type="plane" size="5 5 0.1"/>
<body name="drone" pos="0 0 1"><freejoint/><geom name="hull" size="0.1"/><site name="thrust"/>{arm}</body>
<body name="door" pos="3 0 0.5"><joint name="hinge" axis="0 0 1"/><geom name="leaf" size="0.4"/></body>
<body name="ball" pos="0 3 0.5"><freejoint/><geom name="ball" size="0.1"/></body></worldbody>
<actuator><motor site="thrust" gear="0 0 1 0 0 0" ctrlrange="0 20"/></actuator></mujoco>"""
ARM = '<body><joint axis="0 1 0"/><geom name="arm" size="0.03" pos="0.1 0 0"/></body>'


def framed(model: mujoco.MjModel) -> list[str]:
    return [model.geom(number).name for number in camera.robot_geoms(model)]


def test_the_camera_shows_a_robot_that_moves_about_and_not_the_mechanism_beside_it() -> None:
    assert framed(mujoco.MjModel.from_xml_string(SCENE.format(arm=""))) == ["hull"]
    assert framed(mujoco.MjModel.from_xml_string(SCENE.format(arm=ARM))) == ["hull", "arm"]


def test_without_actuators_mechanisms_are_shown_or_else_everything_that_moves() -> None:
    undriven = mujoco.MjSpec.from_string(SCENE.format(arm=""))
    undriven.delete(undriven.actuators[0])
    assert framed(undriven.compile()) == ["leaf"]
    undriven.delete(undriven.body("door"))
    assert framed(undriven.compile()) == ["hull", "ball"]


@pytest.mark.parametrize(
    "path",
    [*MJCF.glob("*.xml"), *MJCF.glob("zoo/*.xml"), *GYMNASIUM.glob("*.xml")],
    ids=lambda path: path.stem,
)
def test_whatever_moves_in_a_robots_own_file_is_shown(path: Path) -> None:
    """What it moves, too, such as the object of gymnasium's Pusher, but no ball beside an arm."""
    model = load_model(path)
    roots_of_joints = model.body_rootid[model.jnt_bodyid]
    is_free = model.jnt_type == int(mujoco.mjtJoint.mjJNT_FREE)
    balls = np.setdiff1d(roots_of_joints[is_free], roots_of_joints[~is_free])
    moving = [
        geom
        for geom in range(model.ngeom)
        if model.body_treeid[model.geom_bodyid[geom]] >= 0
        and model.body_rootid[model.geom_bodyid[geom]] not in balls
        and model.geom_type[geom] not in UNBOUNDED
        and model.geom_rgba[geom, 3] > 0
    ]
    assert moving
    assert np.isin(moving, camera.robot_geoms(model)).all()
