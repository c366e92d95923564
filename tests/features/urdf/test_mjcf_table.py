"""The table ``mjcf`` of a job: actuators, pose and floor of an MJCF that has none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mujoco
import pytest
from command_helpers import invoke, succeed

from orchestrator.core.messages import ExaminationAnswer, ExaminationRequest
from orchestrator.worker.robots.preflight_child import check

LEG = """<body name="{name}_thigh" pos="{x} 0 -0.1"><joint name="{name}_hip" axis="0 1 0" range="-1 1"/>
  <geom type="capsule" fromto="0 0 0 0 0 -0.2" size="0.03" mass="0.5"/>
  <body pos="0 0 -0.2"><joint name="{name}_knee" axis="0 1 0" range="-2 -0.5" {more}/>
  <geom type="capsule" fromto="0 0 0 0 0 -0.2" size="0.03" mass="0.5"/></body></body>"""


def legged(*, root: str = "<freejoint/>", tail: str = "", knee: str = "") -> str:
    legs = "".join(LEG.format(name=name, x=x, more=knee) for name, x in (("f", 0.2), ("h", -0.2)))
    return f"""<mujoco><compiler angle="radian" autolimits="true"/><worldbody><body name="trunk" pos="0 0 2">{root}
      <geom type="box" size="0.3 0.1 0.05" mass="5"/>{legs}</body></worldbody>{tail}</mujoco>"""


def ask(folder: Path, text: str, *, task: str | None = "forward", **mjcf: Any) -> ExaminationAnswer:
    (folder / "r.xml").write_text(text)
    return check(
        ExaminationRequest(
            xml=str(folder / "r.xml"),
            alone=task is None,
            task=task,
            robot_settings=mjcf,
            stage_to=str(folder / "staged"),
            simulate_s=0.02,
        )
    )


def model_of(folder: Path, answer: ExaminationAnswer) -> mujoco.MjModel:
    assert answer.problem is None, answer.problem
    return mujoco.MjModel.from_xml_path(str(folder / "staged" / str(answer.xml)))


def test_servos_and_a_floor_are_added_to_a_free_robot_and_hold_its_pose(tmp_path: Path) -> None:
    answer = ask(tmp_path, legged(), actuators="position", pose={"*_hip": 0.4})
    model = model_of(tmp_path, answer)
    assert [model.actuator(number).name for number in range(model.nu)] == [
        *("f_hip", "f_knee", "h_hip", "h_knee")
    ]
    home = model.key("home")
    assert home.qpos[7:].tolist() == home.ctrl.tolist() == [0.4, -1.25, 0.4, -1.25]
    assert model.geom("floor").type == mujoco.mjtGeom.mjGEOM_PLANE
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, home.id)
    mujoco.mj_forward(model, data)
    assert data.ncon == 0
    data.qpos[2] -= 0.002
    mujoco.mj_forward(model, data)
    assert data.ncon > 0
    assert any("4 position actuators, force without limit" in note for note in answer.notes)


def test_gains_efforts_and_passive_joints_are_by_name_or_pattern(tmp_path: Path) -> None:
    text = legged(knee='actuatorfrcrange="-7 7"')
    settings: dict[str, Any] = {"kp": {"*_hip": 30, "*_knee": 50}, "kd": 1, "effort": 20}
    model = model_of(tmp_path, ask(tmp_path, text, actuators="position", **settings))
    assert model.actuator_gainprm[:, 0].tolist() == [30, 50, 30, 50]
    assert (-model.actuator_biasprm[:, 2]).tolist() == [1] * 4
    assert model.actuator_forcerange[:, 1].tolist() == [20, 7, 20, 7]
    model = model_of(
        tmp_path, ask(tmp_path, text, actuators="motor", effort={"*": 3}, passive=["h_*"])
    )
    assert model.actuator_ctrlrange[:, 1].tolist() == [3, 3]


def test_servos_hold_the_keyframes_of_the_file(tmp_path: Path) -> None:
    numbers = "0 0 1 1 0 0 0 0.1 -1 0.2 -1.5"
    tail = f'<keyframe><key name="crouch" qpos="{numbers}"/></keyframe>'
    model = model_of(tmp_path, ask(tmp_path, legged(tail=tail), actuators="position"))
    assert model.key("crouch").ctrl.tolist() == [0.1, -1, 0.2, -1.5]


def test_a_robot_that_has_actuators_keeps_them(tmp_path: Path) -> None:
    tail = '<actuator><motor joint="f_hip" ctrlrange="-5 5"/></actuator>'
    own = ask(tmp_path, legged(tail=tail))
    answer = ask(tmp_path, legged(tail=tail), actuators="position")
    assert answer.hash == own.hash
    assert any("1 actuator of its own" in note for note in answer.notes)


@pytest.mark.parametrize(("ctrl", "expected"), [("0.15 2", [0.35, 2]), ("0 0", [0, 0])])
def test_servos_of_the_file_follow_a_pose_that_is_given(
    ctrl: str, expected: list[float], tmp_path: Path
) -> None:
    """Controls of zeros stay: tasks then take those that hold the pose."""
    tail = f"""<actuator><position joint="f_hip" kp="50" ctrlrange="-1 1"/>
      <motor joint="h_hip" ctrlrange="-5 5"/></actuator>
      <keyframe><key name="home" qpos="0 0 2 1 0 0 0 0.1 -1 0.2 -1.5" ctrl="{ctrl}"/></keyframe>"""
    text = legged(tail=tail)
    home = model_of(tmp_path, ask(tmp_path, text, floor=True, pose={"f_hip": 0.3})).key("home")
    assert home.qpos[7:].tolist() == [0.3, -1, 0.2, -1.5]
    assert home.ctrl.tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("settings", "fragments"),
    [
        ({}, ("has no actuators", 'mjcf.actuators = "position"')),
        ({"actuators": "motor"}, ("how strong the motors of f_hip", "mjcf.effort")),
        ({"actuators": "position", "kp": {"hip": 1.0}}, ("mjcf.kp", "did you mean 'h_hip'")),
        ({"actuators": "motor", "effort": 1.0, "kd": 1.0}, ("mjcf.kd is for servos",)),
        ({"kp": 1.0}, ("mjcf.kp is for servos, and no actuators are added",)),
        ({"frequency": 3.0}, ("mjcf.frequency is for actuators, and no actuators",)),
        ({"effort": {"arm": 1.0}}, ("mjcf.effort is for actuators", "mjcf.actuators =")),
        ({"passive": ["arm"]}, ("mjcf.passive is for actuators", "or leave it out")),
        ({"actuators": "position", "pose": {"f_hip": 3}}, ("mjcf.pose: 3 is outside", "-1 to 1")),
        ({"actuators": "position", "passive": ["arm*"]}, ("mjcf.passive = 'arm*' matches no",)),
    ],
)
def test_what_does_not_fit_is_told_with_what_would(
    settings: dict[str, Any], fragments: tuple[str, ...], tmp_path: Path
) -> None:
    problem = str(ask(tmp_path, legged(), **settings).problem)
    assert problem.startswith(str(tmp_path / "r.xml"))
    assert [fragment for fragment in fragments if fragment not in problem] == [], problem


@pytest.mark.nightly
def test_init_adds_actuators_to_robots_and_not_to_parts_of_them(tmp_path: Path) -> None:
    (tmp_path / "robot.xml").write_text(legged())
    (tmp_path / "part.xml").write_text("<mujocoinclude/>")
    refused = invoke("init", ".", cwd=tmp_path)
    assert "init --set mjcf.actuators=position" in refused.stderr
    done = succeed("init", ".", "--set", "mjcf.actuators=position", "--json", cwd=tmp_path)
    facts = json.loads(done.stdout)
    assert [Path(robot["path"]).name for robot in facts["robots"]] == ["robot.xml"]
    assert invoke("check", "jobs.toml", cwd=tmp_path).returncode == 0
