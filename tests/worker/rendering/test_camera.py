"""What of a scene is the robot, which pictures show whole."""

from __future__ import annotations

import mujoco

from orchestrator.worker.rendering import camera

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
