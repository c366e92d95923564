"""What is found in a robot's compiled model: figures, faults as it stands, faults once it moves."""

from __future__ import annotations

import re
import time
from pathlib import Path

import mujoco
import numpy as np
import pytest

from orchestrator.core.messages import ExaminationRequest
from orchestrator.worker.envs.model_loading import load_model
from orchestrator.worker.envs.simulation import Simulation
from orchestrator.worker.mjmodel.root import root_type
from orchestrator.worker.robots import stability_test, start_test
from orchestrator.worker.robots.model_checks import ModelFindings
from orchestrator.worker.robots.model_examination import examine_physics
from orchestrator.worker.robots.preflight_child import check
from orchestrator.worker.tasks import make_task

MJCF = Path(__file__).parents[3] / "mjcf"
ROBOTS = sorted(MJCF.glob("*.xml"))
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
    examine_physics(model, findings, 5.0)
    return findings


@pytest.mark.nightly
@pytest.mark.parametrize("xml", ROBOTS, ids=lambda xml: xml.stem)
def test_our_own_robots_are_sound(xml: Path) -> None:
    findings = found_in(load_model(xml))
    assert (findings.problems, findings.warnings) == ([], [])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"actuator": '<motor name="m" joint="elbow"/>'}, r"1 actuator has no ctrlrange \('m'\)"),
        ({"more": '<worldbody><body name="w"><freejoint/><geom size="1" mass="1e9"/></body></worldbody>'},
         r"implausible mass \(body 'w': 1e\+09 kg\)"),
    ],
)  # fmt: skip
def test_what_speaks_against_a_robot_is_told_with_its_element(
    model: dict[str, str], message: str
) -> None:
    found = found_in(arm(**model)).warnings
    assert any(re.search(message, warning) for warning in found), found


def test_as_many_steps_are_simulated_however_busy_the_machine_is(
    monkeypatch: pytest.MonkeyPatch,
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
        examine_physics(arm(), ModelFindings(), 0.02)
    whole = 2 * round(stability_test.SIMULATED_S / 0.002)
    assert steps[0] == steps[1] == steps[2] < whole


def test_a_robot_that_starts_in_the_ground_or_in_itself_is_told() -> None:
    sunk = '<worldbody><body name="ball" pos="0 2 -0.04"><freejoint/><geom name="ball" size="0.1"/></body></worldbody>'
    assert any(
        "geom 'floor' and geom 'ball': 0.14 m deep" in found
        for found in found_in(arm(more=sunk)).warnings
    )
    twin = sunk.replace('"ball"', '"twin"').replace("0 2 -0.04", "0 2 1")
    both = sunk.replace("0 2 -0.04", "0 2 1.01") + twin
    assert any(
        "geom 'ball' and geom 'twin': 0.19 m deep" in found
        for found in found_in(arm(more=both)).warnings
    )


def test_divergence_under_random_actions_is_an_error_with_its_place() -> None:
    stiff = arm(actuator=f'<position joint="elbow" kp="50" kv="30" {LIMITS}/>')
    findings = found_in(stiff)
    (problem,) = findings.problems
    assert findings.diverges
    assert re.search(
        r"physics diverges .* \(after .* s, \w+ of joint '(elbow|shoulder)'\); shorten the timestep",
        problem,
    )


def test_divergence_under_extreme_actions_alone_is_a_warning() -> None:
    class Gentle:
        """Random actions do nothing, extreme ones are torques of 1e14 N m."""

        low = -np.ones(1, np.float32)
        high = np.ones(1, np.float32)

        def taken(self, actions: np.ndarray) -> np.ndarray:
            return actions

        def ctrl(self, taken: np.ndarray) -> np.ndarray:
            return np.where(np.abs(taken) < 1, 0.0, 1e14 * taken)

    wild = arm(actuator='<motor joint="elbow"/>')
    findings = ModelFindings()
    stability_test.check_stability(wild, wild.qpos0, Gentle(), 5.0, findings)
    assert findings.problems == []
    assert "physics diverges under extreme actions" in "".join(findings.warnings)


def test_what_mujoco_counts_as_warnings_is_told() -> None:
    data = mujoco.MjData(arm())
    assert stability_test.solver_warnings(data) == []
    data.warning[int(mujoco.mjtWarning.mjWARN_CONTACTFULL)].number = 1
    data.warning[int(mujoco.mjtWarning.mjWARN_INERTIA)].number = 2
    memory, inertia = stability_test.solver_warnings(data)
    assert "do not fit into memory" in memory
    assert "close to singular" in inertia


def test_a_keyframe_without_ctrl_is_no_finding_where_0_is_out_of_range() -> None:
    found = found_in(
        arm(
            actuator='<position joint="elbow" kp="5" ctrlrange="0.4 0.6"/>',
            more='<keyframe><key name="home" qpos="0 0.5"/></keyframe>',
        )
    )
    assert found.warnings == []


def start_of(model: mujoco.MjModel, **options: object) -> list[str]:
    """Warnings of the start of an episode."""
    made = make_task("forward", model, options)
    simulation = Simulation(model, made, robot="it", n_envs=1, seed=0, autoreset=False)
    findings = ModelFindings()
    start_test.check_start(simulation, findings, 5.0)
    return findings.warnings


def test_a_robot_that_starts_in_the_air_is_warned_of_with_or_without_servos() -> None:
    for name in ("quadruped", "runner"):
        model = load_model(MJCF / f"{name}.xml")
        assert start_of(model) == []
        model.body_pos[1, 2] += 1.0
        model.qpos0[2] += 1.0 if name == "quadruped" else 0.0
        (warning,) = start_of(model)
        assert re.search(
            r"after 0\.\d+ s \(height below min_height = 0.6\).* in the air; lower its start",
            warning,
        )


def test_a_keyframe_that_commands_another_pose_is_warned_of() -> None:
    model = load_model(MJCF / "dog.xml")
    model.actuator_ctrlrange[:] = -2, 2
    assert start_of(model) == []
    model.key_ctrl[0] = model.key_ctrl[0].reshape(4, 3).T.ravel()  # joint by joint, not leg by leg
    (warning,) = start_of(model)
    assert "the task ends the episode after 0.2 s (tilt beyond max_tilt = 1)" in warning
    assert "in the order of <actuator>" in warning


def test_a_robot_of_motors_is_warned_of_only_if_it_falls_at_once() -> None:
    model = load_model(MJCF / "walker.xml")
    assert start_of(model) == []
    model.opt.gravity[2] *= 20
    (warning,) = start_of(model)
    assert "the task ends the episode" in warning


def test_the_test_of_the_start_ends_where_steps_take_far_longer_than_estimated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = load_model(MJCF / "hopper.xml")
    simulation = Simulation(
        model, make_task("forward", model, {}), robot="it", n_envs=1, seed=0, autoreset=False
    )
    steps: list[int] = []
    step = simulation.step
    monkeypatch.setattr(simulation, "step", lambda actions: (steps.append(1), step(actions))[1])
    clock = iter(range(0, 10**6, 2 * stability_test.MOST_TIMES))
    monkeypatch.setattr(time, "thread_time", lambda: next(clock))
    start_test.check_start(simulation, ModelFindings(), 1.0)
    assert len(steps) == 1


def test_a_step_of_runge_kutta_is_estimated_at_four_evaluations() -> None:
    costs = [
        stability_test.step_cost_s(model, mujoco.MjData(model))
        for model in (arm(), arm(option='integrator="RK4"'))
    ]
    assert costs[1] == pytest.approx(4 * costs[0])


@pytest.mark.parametrize("timestep", [0, -0.002, 1e-9])
def test_a_timestep_with_which_nothing_can_be_simulated_is_a_problem(timestep: float) -> None:
    answer = check(
        ExaminationRequest(
            xml=str(MJCF / "hopper.xml"), task="forward", model_edits={"option.timestep": timestep}
        )
    )
    assert f"hopper.xml: option timestep is {timestep:g} s; robots need" in str(answer.problem)


def test_a_robot_that_does_not_compile_is_told_with_what_it_includes(tmp_path: Path) -> None:
    (tmp_path / "robot.xml").write_text("<mujoco/>")
    scene = tmp_path / "scene.xml"
    scene.write_text('<mujoco><include file="robot.xml"/><worldbody><geom/></worldbody></mujoco>')
    answer = check(ExaminationRequest(xml=str(scene), alone=True))
    assert "MuJoCo cannot compile it" in str(answer.problem)
    assert answer.includes == (str(tmp_path / "robot.xml"),)


@pytest.mark.parametrize(
    ("joints", "root"),
    [
        ("<freejoint/>", "free"),
        (
            '<joint type="slide" axis="1 0 0"/><joint type="slide" axis="0 0 1"/><joint axis="0 1 0"/>',
            "slide slide hinge",
        ),
        ('<joint type="slide" axis="1 0 0"/>', "slide"),
        ('<joint type="ball"/>', "ball"),
        ("<joint/>", "hinge"),
        ("", "hinge"),
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
