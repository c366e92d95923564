"""Gains of a vendor, efforts and the pose at the start, for all joints or by name and pattern."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import mujoco
import pytest
from urdf_helpers import GOOD, examiner, inertial, joint, link, robot

ARM = robot(
    *(link("foot"), link("left", inertial()), link("right", inertial()), link("tip")),
    joint("l_knee", "foot", "left", at="0 0 -0.3"),
    joint("r_knee", "left", "right", at="0 0 -0.3"),
    joint("wrist", "right", "tip", at="0 0 -0.3"),
)
SERVOS = {"actuators": "position"}


def model_of(folder: Path, **urdf: Any) -> mujoco.MjModel:
    answer = examiner(folder)(ARM, **urdf)
    assert answer.problem is None, answer.problem
    return mujoco.MjModel.from_xml_path(str(folder / "staged" / str(answer.xml)))


def gains(model: mujoco.MjModel) -> tuple[list[float], list[float]]:
    return model.actuator_gainprm[:, 0].tolist(), (-model.actuator_biasprm[:, 2]).tolist()


def test_gains_are_of_all_or_by_joint_and_a_name_is_stronger_than_a_pattern(tmp_path: Path) -> None:
    kp, kd = gains(model_of(tmp_path, **SERVOS, kp=40, kd=0))
    assert (kp, kd) == ([40, 40, 40], [0, 0, 0])
    kp, kd = gains(model_of(tmp_path, **SERVOS, kp={"*_knee": 60, "r_knee": 50}, kd={"wrist": 2.5}))
    by_frequency = gains(model_of(tmp_path, **SERVOS))
    assert kp == [60, 50, by_frequency[0][2]]
    assert kd[2] == 2.5


def test_damping_of_a_given_stiffness_is_critical(tmp_path: Path) -> None:
    kp_of_frequency, kd_of_frequency = gains(model_of(tmp_path, **SERVOS))
    _, kd = gains(model_of(tmp_path, **SERVOS, kp=4 * kp_of_frequency[0]))
    assert kd[0] == pytest.approx(2 * kd_of_frequency[0], rel=1e-3)


def test_the_pose_is_that_of_the_start_and_held_by_the_servos(tmp_path: Path) -> None:
    model = model_of(tmp_path, **SERVOS, pose={"*_knee": 0.5, "wrist": -0.25})
    assert model.key_qpos[0].tolist() == model.key_ctrl[0].tolist() == [0.5, 0.5, -0.25]


def test_a_floating_robot_stands_on_the_floor_in_its_pose(tmp_path: Path) -> None:
    straight = model_of(tmp_path, base="floating", **SERVOS)
    bent = model_of(tmp_path, base="floating", **SERVOS, pose={"l_knee": 1.0, "r_knee": 1.0})
    for model in (straight, bent):
        data = mujoco.MjData(model)
        mujoco.mj_resetDataKeyframe(model, data, 0)
        mujoco.mj_forward(model, data)
        assert not any(contact.dist < 0 for contact in data.contact)
    assert straight.key_qpos[0, 2] > bent.key_qpos[0, 2] + 0.1


def test_efforts_by_joint_replace_those_of_the_file_and_a_number_does_not(tmp_path: Path) -> None:
    assert model_of(tmp_path, effort=2.0).actuator_ctrlrange[:, 1].tolist() == [6, 6, 6]
    by_joint = model_of(tmp_path, effort={"*_knee": 2.0})
    assert by_joint.actuator_ctrlrange[:, 1].tolist() == [2, 2, 6]


@pytest.mark.parametrize(
    ("settings", "fragments"),
    [
        ({**SERVOS, "kp": {"l_kne": 1.0}}, ("urdf.kp", "'l_kne'", "did you mean 'l_knee'")),
        ({**SERVOS, "kd": {"*ankle": 1.0}}, ("urdf.kd", "matches '*ankle'", "there are l_knee")),
        (
            {**SERVOS, "kp": {"*_knee": 1.0, "l_*": 2.0}},
            ("'*_knee' and 'l_*' both match the joint 'l_knee'", "name the joint"),
        ),
        ({**SERVOS, "kp": {"wrist": 1.0}, "passive": ["wrist"]}, ("'wrist'", "there are l_knee")),
        ({"pose": {"l_knee": 1.5}}, ("urdf.pose: 1.5 is outside of the limits", "-1 to 1")),
        ({"effort": {"hip": 1.0}}, ("urdf.effort", "'hip'")),
    ],
)
def test_what_does_not_fit_is_told_with_what_would(
    settings: dict[str, Any], fragments: tuple[str, ...], tmp_path: Path
) -> None:
    problem = str(examiner(tmp_path)(ARM, **settings).problem)
    assert [fragment for fragment in fragments if fragment not in problem] == [], problem


def test_a_joint_without_limits_may_start_anywhere(tmp_path: Path) -> None:
    text = GOOD.replace("revolute", "continuous")
    answer = examiner(tmp_path)(text, pose={"shoulder": 2 * math.pi})
    assert answer.problem is None
