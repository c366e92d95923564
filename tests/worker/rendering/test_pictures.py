"""Pictures of robots: the camera follows them, all of them is seen, and a goal is drawn."""

from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np
import pytest
from command_helpers import REPOSITORY

from orchestrator.worker.envs.poses import Pose, pose_of_data
from orchestrator.worker.policies.task_env import TaskEnv
from orchestrator.worker.rendering import camera, live_view, offscreen, scenery

ROBOTS = sorted(REPOSITORY.glob("mjcf/*.xml"))
GEOM = int(mujoco.mjtObj.mjOBJ_GEOM)

SCENE = """<mujoco><worldbody><geom name="floor" type="plane" size="5 5 0.1"/>
<body name="drone" pos="0 0 1"><freejoint/><geom size="0.1"/><site name="thrust"/></body>
<body name="door" pos="3 0 0.5"><joint axis="0 0 1"/><geom size="0.4"/></body></worldbody>
<actuator><motor site="thrust" gear="0 0 1 0 0 0" ctrlrange="0 20"/></actuator></mujoco>"""


def test_the_camera_follows_what_actuators_move_at_a_distance_by_its_size() -> None:
    model = mujoco.MjModel.from_xml_string(SCENE)
    view = mujoco.MjvCamera()
    camera.follow(model, view)
    assert model.body(view.trackbodyid).name == "drone"
    assert 0.2 < view.distance < 0.5


def random_poses(model: mujoco.MjModel) -> list[Pose]:
    data = mujoco.MjData(model)
    if model.nkey:
        mujoco.mj_resetDataKeyframe(model, data, 0)
    rng = np.random.default_rng(0)
    poses = []
    for until_s in (0.6, 1.2, 1.8):
        poses.append(pose_of_data(model, data))
        while data.time < until_s:
            data.ctrl[:] = rng.uniform(*model.actuator_ctrlrange.T)
            mujoco.mj_step(model, data)
    return poses


@pytest.mark.nightly
@pytest.mark.usefixtures("opengl")
@pytest.mark.parametrize("xml", ROBOTS, ids=lambda xml: xml.stem)
def test_the_whole_robot_is_in_every_picture(xml: Path) -> None:
    model = scenery.add_scenery(xml)
    robot = np.flatnonzero(model.body_weldid[model.geom_bodyid])
    poses = random_poses(model)
    with offscreen.PoseRenderer(model, 320, 240) as renderer:
        renderer.renderer.enable_segmentation_rendering()
        for pose in poses:
            kinds = renderer.picture(pose)
            is_robot = (kinds[:, :, 1] == GEOM) & np.isin(kinds[:, :, 0], robot)
            assert 0.01 < is_robot.mean() < 0.5
            border = np.concatenate([is_robot[[0, -1]].ravel(), is_robot[:, [0, -1]].ravel()])
            assert not border.any()


@pytest.mark.nightly
@pytest.mark.usefixtures("opengl")
def test_a_goal_is_a_green_sphere() -> None:
    model = scenery.add_scenery(REPOSITORY / "mjcf/arm.xml")
    state = random_poses(model)[0].state
    greens = []
    with offscreen.PoseRenderer(model) as renderer:
        for marker in (None, (0.4, -0.2, 0.6)):
            picture = renderer.picture(Pose(state, marker)).astype(int)
            red, green, blue = picture.transpose(2, 0, 1)
            greens.append(int(((green > red + 60) & (green > blue + 60)).sum()))
    assert greens[0] < 15 < 30 < greens[1]


@pytest.mark.nightly
@pytest.mark.usefixtures("opengl")
def test_a_running_environment_gives_pictures_and_says_where_it_has_no_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    xml = REPOSITORY / "mjcf/balancer.xml"
    env = TaskEnv(xml, task="balance", render_mode="rgb_array")
    env.reset()
    picture = env.render()
    assert picture is not None
    assert picture.shape == (480, 640, 3)
    assert np.ptp(picture) > 100
    env.close()
    monkeypatch.setattr(live_view, "display_problem", lambda: "no display here")
    with pytest.warns(RuntimeWarning, match="shows nothing"):
        env = TaskEnv(xml, task="balance", render_mode="human")
    env.reset()
    assert env.render() is None
