"""From actions in [-1, 1] to the controls of every kind of actuator, and from a pose to a start."""

from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np
import pytest

from orchestrator.worker.envs.model_loading import load_model
from orchestrator.worker.envs.simulation import Simulation
from orchestrator.worker.mjmodel.actuators import position_servos
from orchestrator.worker.mjmodel.root import find_root
from orchestrator.worker.mjmodel.structure import posed_data
from orchestrator.worker.tasks import input_names, make_task
from orchestrator.worker.tasks.actions import scaled_actions
from orchestrator.worker.tasks.base import Task, find_keyframe

MJCF = Path(__file__).parents[3] / "mjcf"

ROBOT = """<mujoco><compiler autolimits="true" angle="radian"/><worldbody>{ground}<body name="trunk" pos="0 0 {height}">
<freejoint/><geom size="0.1"/><body name="leg" pos="0.3 0 0"><joint name="hip" axis="0 1 0" range="-0.5 1.5"/>
<geom size="0.1"/></body></body></worldbody><actuator>{actuator}</actuator>{keyframe}</mujoco>"""
HOME = (
    '<keyframe><key name="low" qpos="0 0 1 1 0 0 0 0.2"/><key '
    'name="{name}" qpos="0 0 1 1 0 0 0 1"{ctrl}/></keyframe>'
)


def robot(
    actuator: str, keyframe: str = "", ground: str = "", height: float = 1.0
) -> mujoco.MjModel:
    text = ROBOT.format(actuator=actuator, keyframe=keyframe, ground=ground, height=height)
    return mujoco.MjModel.from_xml_string(text)


def home(ctrl: str = ' ctrl="0.8"', name: str = "home") -> str:
    return HOME.format(name=name, ctrl=ctrl)


def controls(model: mujoco.MjModel, action_scale: float | None = None) -> list[float]:
    """What the actions -2, -1, 0, 0.5, 1 and 2 lead to."""
    actions = scaled_actions(model, find_keyframe(model, None), action_scale)
    assert (actions.low.tolist(), actions.high.tolist()) == ([-1.0], [1.0])
    taken = actions.taken(np.array([[-2.0], [-1.0], [0.0], [0.5], [1.0], [2.0]]))
    return [float(value) for value in actions.ctrl(taken)[:, 0]]


@pytest.mark.parametrize(
    ("actuator", "keyframe", "expected"),
    [
        ('<motor joint="hip" ctrlrange="-3 5"/>', "", [-3, -3, 1, 3, 5, 5]),
        ('<motor joint="hip" ctrlrange="-3 5"/>', home(), [-3, -3, 1, 3, 5, 5]),
        ('<motor joint="hip"/>', home(), [-1, -1, 0, 0.5, 1, 1]),
        ('<muscle joint="hip" ctrlrange="0 1"/>', home(), [0, 0, 0.5, 0.75, 1, 1]),
        ('<velocity joint="hip" kv="2" ctrlrange="-4 4"/>', home(), [-4, -4, 0, 2, 4, 4]),
        ('<position joint="hip" kp="9" ctrlrange="-1 2"/>', "", [-1, -1, 0.5, 1.25, 2, 2]),
        (
            '<position joint="hip" kp="9" kv="1" ctrlrange="-1 2"/>',
            home(),
            [0.05, 0.05, 0.8, 1.175, 1.55, 1.55],
        ),
        ('<position joint="hip" kp="9" ctrlrange="-1 1"/>', home(), [0.3, 0.3, 0.8, 1, 1, 1]),
        ('<position joint="hip" kp="9"/>', home(), [0.3, 0.3, 0.8, 1.05, 1.3, 1.3]),
        (
            '<position joint="hip" kp="9" inheritrange="1"/>',
            home(),
            [0.3, 0.3, 0.8, 1.05, 1.3, 1.3],
        ),
        ('<position joint="hip" kp="9" gear="2" ctrlrange="-4 4"/>', home(""), [0, 0, 2, 3, 4, 4]),
        ('<position joint="hip" kp="9" gear="2"/>', home(""), [1, 1, 2, 2.5, 3, 3]),
        ('<position joint="hip" kp="9" gear="-2"/>', home(""), [-3, -3, -2, -1.5, -1, -1]),
    ],
)
def test_actions_reach_what_each_kind_of_actuator_takes(
    actuator: str, keyframe: str, expected: list[float]
) -> None:
    assert controls(robot(actuator, keyframe)) == pytest.approx(expected)


PID = (
    '<pid name="hip" joint="hip" kp="30" kv="2" input="pos vel ff" posrange="-1.2 1.2" '
    'velrange="-3 3" ffrange="-4 4"/>'
)


@pytest.mark.parametrize("ctrl", ["", ' ctrl="1 0 0 1"'])
def test_position_inputs_of_a_pid_are_centred_at_the_keyframe_and_all_have_names(ctrl: str) -> None:
    servo = '<pid name="single" joint="hip" kp="12" gear="-2" input="pos"/>'
    ctrl = ctrl.replace("1 0 0 1", "1 0 0 -2")
    model = robot(f"{PID}{servo}", home(ctrl))
    assert input_names.controls(model).tolist() == ["hip pos", "hip vel", "hip ff", "single pos"]
    actions = scaled_actions(model, find_keyframe(model, None), None)
    assert actions.ctrl(np.zeros((1, 4)))[0] == pytest.approx([1.0, 0.0, 0.0, -2.0])
    assert actions.ctrl(np.ones((1, 4)))[0] == pytest.approx([1.2, 3.0, 4.0, -1.0])
    made = Simulation(model, make_task("forward", model), n_envs=2, seed=0, robot="pid")
    made.reset()
    assert np.isfinite(made.step(np.ones((2, 4))).observations).all()


@pytest.mark.parametrize(
    ("actuator", "expected"),
    [
        ('<motor joint="hip" ctrlrange="-3 5"/>', [0.2, 0.2, 1, 1.4, 1.8, 1.8]),
        ('<motor joint="hip"/>', [-0.2, -0.2, 0, 0.1, 0.2, 0.2]),
        ('<position joint="hip" kp="9" ctrlrange="-1 2"/>', [0.5, 0.5, 0.8, 0.95, 1.1, 1.1]),
    ],
)
def test_action_scale_is_the_share_that_actions_reach(actuator: str, expected: list[float]) -> None:
    assert controls(robot(actuator, home()), action_scale=0.2) == pytest.approx(expected)


def test_an_action_of_zeros_holds_the_keyframe_of_every_servo_robot_of_ours() -> None:
    found = 0
    for path in MJCF.glob("*.xml"):
        model = load_model(path)
        servos = position_servos(model)
        if not (model.nkey and servos.any()):
            continue
        found += 1
        task = make_task("auto", model)
        data = posed_data(model, task.pose)
        held = task.actions.ctrl(np.zeros((1, model.nu)))[0]
        assert held[servos] == pytest.approx(data.actuator_length[servos], abs=0.02), path.name
    assert found >= 3


def test_which_actuators_are_position_servos() -> None:
    kinds = {
        '<position joint="hip" kp="3"/>': True,
        '<position joint="hip" kp="3" dampratio="1"/>': True,
        '<intvelocity joint="hip" kp="3" actrange="-1 1"/>': False,
        '<general joint="hip" gainprm="5" biastype="affine" biasprm="0 -5 -1"/>': True,
        '<general joint="hip" gainprm="5" biastype="affine" biasprm="0 -2 -1"/>': False,
        '<velocity joint="hip" kv="3"/>': False,
        '<motor joint="hip"/>': False,
        '<muscle joint="hip" ctrlrange="0 1"/>': False,
    }
    assert {kind: bool(position_servos(robot(kind))[0]) for kind in kinds} == kinds


MOTOR = '<motor joint="hip"/>'


@pytest.mark.parametrize(
    ("options", "name", "expected"),
    [
        ({}, "home", 1.0),
        ({}, "stand", 0.2),
        ({"keyframe": "stand"}, "stand", 1.0),
        ({"keyframe": "low"}, "home", 0.2),
    ],
)
def test_episodes_start_from_home_or_the_first_keyframe_or_the_one_asked_for(
    options: dict[str, object], name: str, expected: float
) -> None:
    model = robot(MOTOR, home("", name))
    assert make_task("forward", model, options).pose[7] == expected


def test_an_unknown_keyframe_is_answered_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"Invalid name 'hom'.*Valid names: .*'home', 'low'"):
        make_task("forward", robot(MOTOR, home()), {"keyframe": "hom"})


def starts(task: Task, count: int = 200) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    qpos, qvel = zip(*(task.initial_state(rng) for _ in range(count)), strict=True)
    return np.array(qpos), np.array(qvel)


def test_noise_goes_to_the_limits_of_a_joint_and_no_further_and_never_into_the_ground() -> None:
    task = make_task("forward", robot(MOTOR, home()), {"reset_noise_scale": 0.8})
    qpos, qvel = starts(task)
    assert qpos[:, 7].max() == 1.5
    assert qpos[:, 7].min() == pytest.approx(0.2, abs=0.05), "the whole noise on the other side"
    assert qpos[:, 2].min() == 1.0
    assert np.linalg.norm(qpos[:, 3:7], axis=1) == pytest.approx(1.0)
    assert qvel.std() == pytest.approx(0.8, abs=0.05)


@pytest.mark.parametrize(
    ("ground", "height", "expected"),
    [
        ("", 1.0, 1.0),
        ('<geom type="plane" size="5 5 1" pos="0 0 0.4"/>', 1.0, 0.6),
        ('<geom type="plane" size="5 5 1" pos="0 0 -2"/>', -1.5, 0.5),
        (
            '<geom type="plane" size="5 5 1"/><geom type="box" size="1 1 0.1" pos="0 0 0.2"/>',
            1.0,
            0.7,
        ),
        (
            '<geom type="plane" size="5 5 1"/><geom type="box" size="1 1 0.1" pos="0 9 0.2"/>',
            1.0,
            1.0,
        ),
        ('<geom type="plane" size="5 5 1" pos="0 0 0.4" contype="0" conaffinity="0"/>', 1.0, 1.0),
        ('<body pos="0 0 0.3"><freejoint/><geom size="0.1"/></body>', 1.0, 1.0),
    ],
)
def test_height_is_over_the_ground_below_wherever_that_is(
    ground: str, height: float, expected: float
) -> None:
    model = robot(MOTOR, ground=ground, height=height)
    root = find_root(model, np.array(model.qpos0))
    assert model.body(root.body).name == "trunk"
    assert root.start_height == pytest.approx(expected)
