"""In whose axes observations are."""

from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np
import pytest

from orchestrator.worker.tasks import input_names, make_task

MJCF = Path(__file__).parents[3] / "mjcf"
MODELS = {
    name: mujoco.MjModel.from_xml_path(str(MJCF / f"{name}.xml"))
    for name in ("quadruped", "hopper", "arm", "balancer")
}
OF_ROOT = [f"{quantity} {axis}" for quantity in ("up", "velocity", "spin") for axis in "xyz"]
ON_A_BALL = """<mujoco><worldbody><geom type="plane" size="5 5 1"/>
    <body name="trunk" pos="0 0 1"><freejoint/><geom size="0.2"/>
    <body name="leg" pos="0 0 -0.3"><joint name="hip" type="ball"/><geom size="0.05"/>
    <body name="foot" pos="0 0 -0.2"><joint name="ankle" axis="0 1 0"/><geom size="0.05"/></body></body>
    </body></worldbody><actuator><motor joint="ankle"/></actuator></mujoco>"""


def frames_of(task: str, model: mujoco.MjModel) -> dict[str, str]:
    """Of each observation of a built-in task."""
    terms = make_task(task, model, {}).observation_terms
    return dict(zip(terms.names, terms.frames, strict=True))


@pytest.mark.parametrize(
    ("robot", "task", "expected"),
    [
        ("quadruped", "stand", dict.fromkeys(OF_ROOT, "trunk")),
        ("quadruped", "track", dict.fromkeys(OF_ROOT, "trunk")),
        ("hopper", "stand", dict.fromkeys(OF_ROOT, "trunk")),
        ("hopper", "forward", {}),
        ("arm", "reach", {}),
        ("balancer", "balance", {}),
    ],
)
def test_what_is_observed_of_the_root_is_in_its_axes(
    robot: str, task: str, expected: dict[str, str]
) -> None:
    frames = frames_of(task, MODELS[robot])
    assert {name: frame for name, frame in frames.items() if frame} == expected


def test_the_turning_of_a_free_joint_is_in_the_axes_of_its_body_and_its_way_is_not() -> None:
    model = MODELS["quadruped"]
    frames = frames_of("forward", model)
    velocities = input_names.velocities(model).names
    assert [frames[name] for name in velocities[:6]] == [*[""] * 3, *["trunk"] * 3]
    assert {frame for name, frame in frames.items() if name not in velocities[:6]} == {""}


def test_the_turning_of_a_ball_is_in_the_axes_of_its_body() -> None:
    """As MuJoCo measures it there."""
    model = mujoco.MjModel.from_xml_string(ON_A_BALL)
    assert input_names.velocities(model).frames[6:] == ["leg", "leg", "leg", ""]
    data = mujoco.MjData(model)
    data.joint("hip").qpos = [0.8, 0.36, 0.48, 0.0]
    data.joint("hip").qvel = [0.3, -0.5, 0.7]
    mujoco.mj_forward(model, data)
    measured = np.zeros(6)
    body = model.body("leg").id
    mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_XBODY, body, measured, 1)
    assert measured[:3] == pytest.approx(data.joint("hip").qvel)
