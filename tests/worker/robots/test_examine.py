"""What is found in a robot's compiled model: figures, faults as it stands, faults once it moves."""

from __future__ import annotations

import re
import time
from pathlib import Path

import mujoco
import numpy as np
import pytest

from orchestrator.experiment.examination.robot_check import FIGURES
from orchestrator.worker.envs.model_loading import load_model
from orchestrator.worker.mjmodel.actuators import actuator_kind
from orchestrator.worker.mjmodel.root import root_type
from orchestrator.worker.robots import model_checks, stability_test
from orchestrator.worker.robots.model_checks import ModelFindings
from orchestrator.worker.robots.model_examination import examine

ROBOTS = sorted((Path(__file__).parents[3] / "mjcf").glob("*.xml"))
LIMITS = 'ctrlrange="-1 1"'


def arm(
    *,
    option: str = "",
    joint: str = "",
    geom: str = "",
    actuator: str = f'<motor joint="elbow" {LIMITS}/>',
    more: str = "",
) -> mujoco.MjModel:
    """Two links on the world, ``elbow`` between them."""
    return mujoco.MjModel.from_xml_string(f"""<mujoco><compiler angle="radian"/><option {option}/><worldbody>
        <geom name="floor" type="plane" size="5 5 1"/>
        <body name="upper" pos="0 0 1"><joint name="shoulder" axis="0 1 0" damping="0.1"/>
        <geom type="capsule" fromto="0 0 0 0.3 0 0" size="0.03" mass="1"/>
        <body name="lower" pos="0.3 0 0"><joint name="elbow" axis="0 1 0" damping="0.1" {joint}/>
        <geom name="hand" type="capsule" fromto="0.05 0 0 0.3 0 0" size="0.03" mass="1" {geom}/></body></body>
        </worldbody><actuator>{actuator}</actuator>{more}</mujoco>""")


def found_in(model: mujoco.MjModel) -> ModelFindings:
    findings = ModelFindings()
    examine(model, findings, simulate_s=5.0)
    return findings


def test_a_servo_behind_an_actuator_with_several_outputs_is_judged_by_its_own_gear() -> None:
    model = mujoco.MjModel.from_xml_string("""<mujoco><compiler angle="radian"/><worldbody>
        <body><joint name="wrist" type="ball"/><geom size="0.1"/>
        <body pos="0.2 0 0"><joint name="turn" axis="0 1 0" range="-1 1"/>
        <geom size="0.05" mass="0.1"/></body></body></worldbody><actuator>
        <orientation joint="wrist" kp="1"/>
        <position name="servo" joint="turn" kp="1" gear="50" ctrlrange="-50 50"/></actuator></mujoco>""")
    assert model_checks.servo_ranges(model) is None
    assert "joint 'turn'" in "".join(model_checks.timestep(model))


@pytest.mark.parametrize("xml", ROBOTS, ids=lambda xml: xml.stem)
def test_our_own_robots_are_sound(xml: Path) -> None:
    findings = found_in(load_model(xml))
    assert (findings.problems, findings.warnings) == ([], [])


def test_a_simple_arm_is_sound() -> None:
    findings = found_in(arm())
    assert (findings.problems, findings.warnings) == ([], [])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"actuator": '<motor name="m" joint="elbow"/>'}, r"1 actuator has no ctrlrange \('m'\)"),
        ({"more": '<worldbody><body name="w"><freejoint/><geom size="1" mass="1e9"/></body></worldbody>'},
         r"implausible mass \(body 'w': 1e\+09 kg\)"),
        ({"joint": 'range="0.5 1"'}, r"1 joint starts outside the limits \('elbow' at 0, range 0.5 to 1\)"),
        ({"more": '<keyframe><key name="a"/><key name="b" qpos="0 3"/></keyframe>', "joint": 'range="-1 1"'},
         r"1 keyframe has joints outside their limits \('b': 'elbow' at 3, range -1 to 1\)"),
        ({"more": '<keyframe><key name="a" ctrl="4"/></keyframe>'}, r"1 keyframe has ctrl outside ctrlrange \('a'\)"),
        ({"option": 'timestep="0.1"'}, "option timestep is 0.1 s"),
        ({"actuator": f'<position joint="elbow" kp="1e6" {LIMITS}/>'},
         r"too stiff for the inertia .*'elbow'.*; use timestep ="),
    ],
)  # fmt: skip
def test_what_speaks_against_a_robot_is_told_with_its_element(
    model: dict[str, str], message: str
) -> None:
    found = found_in(arm(**model)).warnings
    assert any(re.search(message, warning) for warning in found), found


def test_no_timestep_is_named_where_physics_diverges_with_every_one() -> None:
    pushing = f'<general joint="elbow" gainprm="0" biastype="affine" biasprm="0.1 9 0" {LIMITS}/>'
    found = found_in(arm(actuator=pushing))
    (told,) = [text for text in (*found.problems, *found.warnings) if "diverges" in text]
    assert "even with timestep" in told


@pytest.mark.parametrize("integrator", ["Euler", "RK4"])
def test_as_many_steps_are_simulated_however_busy_the_machine_is(
    integrator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    step = mujoco.mj_step

    def counted(model: mujoco.MjModel, data: mujoco.MjData, nstep: int) -> None:
        steps[-1] += nstep
        step(model, data, nstep=nstep)

    monkeypatch.setattr(mujoco, "mj_step", counted)
    clock = time.thread_time
    for slower in (0.2, 1.0, 2.0):
        steps.append(0)
        monkeypatch.setattr(time, "thread_time", lambda slower=slower: slower * clock())
        examine(arm(option=f'integrator="{integrator}"'), ModelFindings(), simulate_s=0.02)
    whole = 4 * round(stability_test.SIMULATED_S / 0.002)
    assert steps[0] == steps[1] == steps[2] < whole


def test_a_ctrlrange_in_degrees_is_named_as_the_cause_and_the_timestep_is_not() -> None:
    servo = '<position name="servo" joint="elbow" kp="40" ctrlrange="-50 50"/>'
    found = found_in(arm(joint='limited="true" range="-0.87 0.87"', actuator=servo))
    (told,) = [text for text in (*found.problems, *found.warnings) if "from degrees" in text]
    assert "'servo' from -50 to 50, joint 'elbow' from -0.87 to 0.87" in told
    assert not any("shorten the timestep" in text for text in (*found.problems, *found.warnings))
    narrow = servo.replace("50", "1.5")
    assert not found_in(arm(joint='limited="true" range="-0.87 0.87"', actuator=narrow)).warnings


def test_an_inertia_wider_than_the_robot_is_absurd() -> None:
    model = arm()
    model.body_inertia[model.body("lower").id] = 1e4
    (found,) = model_checks.masses(model)
    assert found.startswith(
        "implausible inertia (body 'lower': 1 kg with 1e+04 kg·m² is as wide as 100 m)"
    )


def test_masses_are_compared_within_a_robot_only() -> None:
    light = '<worldbody><body name="dust" pos="0 0 3"><freejoint/><geom size="0.01" mass="1e-9" /></body></worldbody>'
    assert list(model_checks.masses(arm(more=light))) == []
    model = arm()
    model.body_subtreemass[model.body("lower").id] = 1e-9
    assert (
        "masses differ by a factor of 1e+09 (body 'upper' 1 kg, the limb from body 'lower'"
        in "".join(model_checks.masses(model))
    )


def test_a_robot_that_starts_in_the_ground_or_in_itself_is_told() -> None:
    sunk = '<worldbody><body name="ball" pos="0 2 0.01"><freejoint/><geom name="ball" size="0.1"/></body></worldbody>'
    assert any(
        "geom 'floor' and geom 'ball': 0.09 m deep" in found
        for found in found_in(arm(more=sunk)).warnings
    )
    twin = sunk.replace('"ball"', '"twin"').replace("0 2 0.01", "0 2 1")
    both = sunk.replace("0 2 0.01", "0 2 1.02") + twin
    assert any(
        "starts with its own parts inside each other" in found
        for found in found_in(arm(more=both)).warnings
    )


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("body_pos", "pos of body 'upper'"),
        ("actuator_gear", "gear of actuator '0'"),
        ("dof_damping", r"dof_damping\[1\]"),
    ],
)
def test_a_number_that_is_none_is_placed(field: str, message: str) -> None:
    model = arm()
    getattr(model, field)[1 if field != "actuator_gear" else 0] = np.inf
    (found,) = model_checks.numbers(model)
    assert re.match(f"{message}: not a finite number", found)


@pytest.mark.parametrize("step", [0.0, -1.0, float("nan")])
def test_no_robot_moves_without_a_timestep(step: float) -> None:
    model = arm()
    model.opt.timestep = step
    assert "option timestep is" in "".join(model_checks.numbers(model))


def test_divergence_under_random_actions_is_an_error_with_a_cure_where_there_is_one() -> None:
    stiff = arm(actuator=f'<position joint="elbow" kp="50" kv="30" {LIMITS}/>')
    (problem,) = found_in(stiff).problems
    assert re.search(
        r"physics diverges .* \(after .* s, \w+ of joint '(elbow|shoulder)'\); with timestep = 0\.00",
        problem,
    )
    assert stiff.opt.timestep == 0.002
    (problem,) = found_in(arm(actuator=f'<motor joint="elbow" gear="1e11" {LIMITS}/>')).problems
    assert "physics diverges under random actions" in problem
    assert "even with timestep" in problem


def test_divergence_under_extreme_actions_alone_is_a_warning() -> None:
    held = '<keyframe><key name="home" qpos="0 0" ctrl="0"/></keyframe>'
    wild = arm(actuator='<position joint="elbow" kp="1" ctrlrange="-1e14 1e14"/>', more=held)
    middle = model_checks.ModelFindings()

    class Gentle:
        low = high = np.zeros(1, np.float32)

        def taken(self, actions: np.ndarray) -> np.ndarray:
            return actions

        def ctrl(self, taken: np.ndarray) -> np.ndarray:
            return 0 * taken

    data = mujoco.MjData(wild)
    stability_test.check_stability(wild, data, wild.qpos0, np.zeros(1), Gentle(), 5.0, middle)
    assert middle.problems == []
    assert "physics diverges under extreme actions" in "".join(middle.warnings)


def test_energy_from_nothing_is_told() -> None:
    falling = '<worldbody><body pos="0 3 9"><freejoint/><geom size="0.1"/></body></worldbody>'
    assert found_in(arm(more=falling)).warnings == []
    model = arm()
    model.dof_damping[:] = -0.5  # as an unstable integration would, it feeds energy in
    model.opt.integrator = int(mujoco.mjtIntegrator.mjINT_IMPLICITFAST)
    found = found_in(model)
    assert any(
        "energy grows" in text or "diverges with the actuators disabled" in text
        for text in found.warnings + found.problems
    )


def test_what_mujoco_counts_as_warnings_is_told() -> None:
    data, findings = mujoco.MjData(arm()), ModelFindings()
    assert not stability_test.add_solver_warnings(data, findings)
    data.warning[int(mujoco.mjtWarning.mjWARN_CONTACTFULL)].number = 1
    data.warning[int(mujoco.mjtWarning.mjWARN_INERTIA)].number = 2
    assert stability_test.add_solver_warnings(data, findings)
    memory, inertia = findings.warnings
    assert "do not fit into memory" in memory
    assert "close to singular" in inertia


def test_the_figures_are_those_that_check_tells() -> None:
    known = examine(
        arm(more='<keyframe><key name="home"/></keyframe>'), ModelFindings(), simulate_s=1.0
    )
    assert set(known) == set(FIGURES)
    assert (known["nq"], known["nu"], known["root"], known["actuators"]) == (
        2,
        1,
        "fixed",
        {"motor": 1},
    )
    assert (known["keyframes"], known["timestep_s"], known["integrator"]) == (
        ["home"],
        0.002,
        "euler",
    )
    assert known["mass_kg"] == pytest.approx(2.0)
    assert known["steps_per_s"] > 0


@pytest.mark.parametrize(
    ("actuator", "kind"),
    [
        ('<motor joint="j"/>', "motor"),
        ('<position joint="j" kp="3" kv="1"/>', "position"),
        ('<position joint="j" kp="3" timeconst="0.1"/>', "position"),
        ('<velocity joint="j" kv="2"/>', "velocity"),
        ('<intvelocity joint="j" kp="3" actrange="-1 1"/>', "intvelocity"),
        ('<damper joint="j" kv="3" ctrlrange="0 1"/>', "damper"),
        ('<cylinder joint="j" timeconst="1" area="2"/>', "cylinder"),
        ('<muscle joint="j" lengthrange="0 1"/>', "muscle"),
        ('<adhesion body="b" ctrlrange="0 1"/>', "adhesion"),
        ('<pid joint="j" kp="1"/>', "pid"),
        ('<general joint="j" gaintype="affine" gainprm="1 2 3"/>', "general"),
    ],
)
def test_actuators_are_told_by_the_element_that_makes_them(actuator: str, kind: str) -> None:
    model = mujoco.MjModel.from_xml_string(
        f'<mujoco><worldbody><body name="b"><joint name="j"/><geom size="0.1"/></body></worldbody>'
        f"<actuator>{actuator}</actuator></mujoco>"
    )
    assert actuator_kind(model, 0) == kind


@pytest.mark.parametrize(
    ("joints", "root"),
    [
        ("<freejoint/>", "free"),
        (
            '<joint type="slide" axis="1 0 0"/><joint type="slide" axis="0 0 1"/><joint axis="0 1 0"/>',
            "planar",
        ),
        ('<joint type="slide" axis="1 0 0"/>', "slide"),
        ('<joint type="ball"/>', "ball"),
        ("<joint/>", "fixed"),
        ("", "fixed"),
    ],
)
def test_the_root_is_told_by_its_joints(joints: str, root: str) -> None:
    body = f'<body>{joints}<geom size="0.1"/><body pos="0.5 0 0"><joint/><geom size="0.1"/></body></body>'
    worlds = [body]
    if root != "free":  # MuJoCo allows a free joint only directly below the world
        worlds.append(f'<body pos="0 0 1"><geom size="0.01"/>{body}</body>')
    for world in worlds:
        text = f"<mujoco><worldbody>{world}</worldbody></mujoco>"
        assert root_type(mujoco.MjModel.from_xml_string(text)) == root


def test_the_root_is_that_of_the_robot_and_not_of_a_larger_thing_beside_it() -> None:
    robot = '<body><joint name="j"/><geom size="0.1"/></body>'
    ball = '<body pos="2 0 0"><freejoint/><geom size="0.1"/></body>'
    for actuators, root in (('<motor joint="j"/>', "fixed"), ("", "free")):
        text = (
            f"<mujoco><worldbody>{robot}{ball}</worldbody><actuator>{actuators}</actuator></mujoco>"
        )
        assert root_type(mujoco.MjModel.from_xml_string(text)) == root
