"""Tasks: what they pay, what they show, and which robots they fit; against unbatched formulas."""

from __future__ import annotations

import math
from pathlib import Path
from types import MappingProxyType

import mujoco
import numpy as np
import pytest

from orchestrator.worker.envs.simulation import Simulation
from orchestrator.worker.tasks import Forward, States, input_names, make_task

MJCF = Path(__file__).parents[3] / "mjcf"

PLANAR = """<mujoco><worldbody><body name="trunk" pos="0 0 1">{joints}<geom size="0.1"/>
<body pos="0.3 0 0"><joint name="limb" axis="0 1 0"/><geom size="0.1"/></body></body></worldbody>
<actuator><motor joint="limb"/></actuator></mujoco>"""


def model_of(robot: str) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_path(str(MJCF / f"{robot}.xml"))


def rolled_out(
    robot: str, task: str, steps: int, **options: object
) -> list[tuple[States, np.ndarray, States, np.ndarray, float]]:
    """``(before, action, after, observation, reward)`` of every step that ends no episode."""
    simulation = Simulation.from_xml(
        MJCF / f"{robot}.xml", task, n_envs=2, seed=4, task_options=options
    )
    simulation.reset()
    rng = np.random.default_rng(0)
    found = []
    for _ in range(steps):
        action = rng.uniform(-1, 1, (2, simulation.model.nu))
        before = States(simulation.states.qpos.copy(), simulation.states.qvel.copy())
        result = simulation.step(action)
        if not result.done.any():
            after = States(simulation.states.qpos.copy(), simulation.states.qvel.copy())
            found.append((before, action, after, result.observations, result.rewards))
    return found


def test_forward_pays_velocity_and_health_and_charges_effort_as_its_docstring_says() -> None:
    steps = rolled_out(
        "hopper", "forward", 30, forward_reward_weight=2.0, ctrl_cost_weight=0.3, healthy_reward=0.7
    )
    assert len(steps) > 10
    for before, action, after, observations, rewards in steps:
        for env in range(2):
            velocity = (after.qpos[env, 0] - before.qpos[env, 0]) / 0.04
            effort = sum(value * value for value in action[env]) / 3
            assert rewards[env] == pytest.approx(2.0 * velocity + 0.7 - 0.3 * effort)
            expected = [
                *after.qpos[env, 1:],
                *(max(-10.0, min(10.0, value)) for value in after.qvel[env]),
            ]
            assert observations[env] == pytest.approx(np.array(expected, np.float32))


def test_forward_shows_a_free_root_without_x_and_y() -> None:
    for _, _, after, observations, _ in rolled_out("quadruped", "forward", 5):
        assert observations[:, : after.qpos.shape[1] - 2] == pytest.approx(
            after.qpos[:, 2:].astype(np.float32)
        )
        assert observations.shape[1] == after.qpos.shape[1] - 2 + after.qvel.shape[1]


def test_balance_pays_one_a_step_and_shows_sine_and_cosine_of_the_pole() -> None:
    for _, _, after, observations, rewards in rolled_out("balancer", "balance", 8):
        x, angle = after.qpos.T
        expected = np.stack([x, np.sin(angle), np.cos(angle), *after.qvel.T], axis=1)
        assert observations == pytest.approx(expected.astype(np.float32))
        assert (rewards == 1).all()


@pytest.mark.parametrize(
    ("robot", "change", "healthy"),
    [
        ("hopper", {}, True),
        ("hopper", {1: -0.41 * 1.08}, False),
        ("hopper", {1: -0.39 * 1.08}, True),
        ("hopper", {2: 1.01}, False),
        ("hopper", {2: -1.01}, False),
        ("hopper", {2: 0.99}, True),
        ("hopper", {0: math.nan}, False),
        ("hopper", {1: math.nan}, False),
        ("quadruped", {2: -0.41 * 0.34}, False),
        ("quadruped", {2: -0.39 * 0.34}, True),
    ],
)
def test_health_follows_from_height_and_tilt_of_the_starting_pose(
    robot: str, change: dict[int, float], healthy: bool
) -> None:
    model = model_of(robot)
    task = make_task("forward", model)
    qpos = np.array(model.qpos0)
    for index, value in change.items():
        qpos[index] += value
    states = States(qpos[None], np.zeros((1, model.nv)))
    _, terminated = task.reward_and_terminated(states, np.zeros((1, model.nu)), states)
    assert terminated.tolist() == [not healthy]


def test_health_is_judged_against_a_start_in_any_attitude() -> None:
    """Here the root's own axes lie on their side at the start, and it has turned about the vertical."""
    text = PLANAR.format(joints="<freejoint/>").replace('pos="0 0 1"', 'pos="0 0 1" euler="90 0 0"')
    model = mujoco.MjModel.from_xml_string(text)
    task = make_task("forward", model)
    for tilt, healthy in ((0.9, True), (1.1, False)):
        turn, tilted, both = np.zeros((3, 4))
        mujoco.mju_axisAngle2Quat(turn, np.array([0.0, 0.0, 1.0]), 2.0)
        mujoco.mju_axisAngle2Quat(tilted, np.array([0.6, 0.8, 0.0]), tilt)
        mujoco.mju_mulQuat(both, tilted, turn)
        qpos = np.array(model.qpos0)
        mujoco.mju_mulQuat(qpos[3:7], both, model.qpos0[3:7])
        states = States(qpos[None], np.zeros((1, model.nv)))
        assert task.reward_and_terminated(states, np.zeros((1, 1)), states)[1] == [not healthy]


def test_a_robot_that_lies_at_the_start_is_not_ended_unless_asked_for() -> None:
    text = PLANAR.format(joints="<freejoint/>").replace('pos="0 0 1"', "")
    model = mujoco.MjModel.from_xml_string(text)
    states = States(np.array(model.qpos0)[None], np.zeros((1, model.nv)))
    for is_asked, ends in ((None, False), (True, True)):
        options = {} if is_asked is None else {"terminate_when_unhealthy": is_asked}
        task = make_task("forward", model, options)
        assert task.reward_and_terminated(states, np.zeros((1, 1)), states)[1] == [ends]
    make_task("forward", model, {"min_height": 1.2})  # of 0, which is no height


def test_control_period_is_worked_out_from_the_time_step_unless_given() -> None:
    model = model_of("hopper")
    assert make_task("forward", model).frame_skip * model.opt.timestep == pytest.approx(0.04)
    assert make_task("forward", model, {"frame_skip": 3}).frame_skip == 3
    model.opt.timestep = 0.5
    assert make_task("forward", model).frame_skip == 1


def test_an_episode_starts_from_the_home_keyframe_where_there_is_one() -> None:
    text = PLANAR.format(joints="<freejoint/>").replace("</mujoco>", "{}</mujoco>")
    home = '<keyframe><key name="home" qpos="0 0 2 0 0 0 2 0.5"/></keyframe>'
    task = make_task(
        "forward", mujoco.MjModel.from_xml_string(text.format(home)), {"reset_noise_scale": 0.0}
    )
    qpos, qvel = task.initial_state(np.random.default_rng(0))
    assert qpos.tolist() == [0, 0, 2, 0, 0, 0, 1, 0.5]
    assert not qvel.any()


def test_starts_are_noisy_with_unit_quaternions() -> None:
    task = make_task("forward", model_of("hexapod"), {"reset_noise_scale": 0.1})
    qpos, _ = task.initial_state(np.random.default_rng(0))
    assert np.linalg.norm(qpos[3:7]) == pytest.approx(1.0)
    assert not np.array_equal(qpos[7:], task.initial_state(np.random.default_rng(1))[0][7:])


@pytest.mark.parametrize("task", ["forward", "stand", "track"])
def test_what_lies_about_beside_a_robot_is_neither_seen_nor_paid_for(
    task: str, tmp_path: Path
) -> None:
    alone = (MJCF / "quadruped.xml").read_text()
    ball = '<body pos="3 0 1"><freejoint/><geom type="sphere" size="0.1"/></body></worldbody>'
    results = []
    for name, text in (("alone", alone), ("beside", alone.replace("</worldbody>", ball))):
        (tmp_path / f"{name}.xml").write_text(text)
        options = {"reset_noise_scale": 0.0}
        simulation = Simulation.from_xml(
            tmp_path / f"{name}.xml", task, n_envs=1, seed=0, task_options=options
        )
        simulation.reset()
        simulation.states.goals[:] = 0.1
        results.append([simulation.step(np.zeros((1, simulation.model.nu))) for _ in range(10)])
    for one, other in zip(*results, strict=True):
        assert one.observations == pytest.approx(other.observations, abs=1e-4)
        assert one.rewards == pytest.approx(other.rewards, abs=1e-4)


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        (
            "foward",
            {},
            'unknown task "foward"; did you mean .forward.',
        ),
        ("forward", {"healthy_rewrd": 1.0}, "unknown option .*; did you mean 'healthy_reward'"),
        ("forward", {"colour": "red"}, "there are action_scale, ctrl_cost_weight, forward_reward"),
        ("forward", {"frame_skip": 0}, 'option "frame_skip" is 0: expected a whole number above 0'),
        ("forward", {"frame_skip": 2.5}, "expected a whole number"),
        ("forward", {"terminate_when_unhealthy": 1}, "expected true or false"),
        ("forward", {"healthy_reward": "much"}, "expected a finite number"),
        ("forward", {"healthy_reward": math.inf}, "expected a finite number"),
        ("forward", {"max_tilt": True}, "expected a finite number above 0"),
        ("forward", {"max_tilt": 0.0}, "expected a finite number above 0"),
        ("forward", {"reset_noise_scale": -1}, "expected a finite number, at least 0"),
        ("forward", {"min_height": 1.2}, "min_height = 1.2: expected less than 1"),
        *(
            (
                "gymnasium:Hopper-v5",
                {"healthy_z_range": bounds},
                "two numbers, the smaller one first",
            )
            for bounds in ([2.0, 1.0], [0.7, math.nan])
        ),
    ],
)
def test_wrong_names_and_values_are_answered_with_what_is_right(
    task: str, options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_task(task, model_of("hopper"), options)


@pytest.mark.parametrize(
    ("joints", "message"),
    [
        (
            '<joint name="spin" axis="0 0 1"/>',
            "this robot has there: hinge",
        ),
        ('<joint name="up" type="slide" axis="0 0 1"/>', "there: slide"),
        ('<joint name="hip" type="ball"/>', "there: ball"),
        ("", "there: hinge"),
    ],
)
def test_forward_refuses_a_robot_whose_root_cannot_move_along_x(joints: str, message: str) -> None:
    model = mujoco.MjModel.from_xml_string(PLANAR.format(joints=joints))
    with pytest.raises(
        ValueError,
        match=f'"forward": needs a free joint or a slide joint along x at the root.*{message}',
    ):
        make_task("forward", model)


@pytest.mark.parametrize(
    ("joints", "wrong"),
    [
        ("", "none, but one of the two is missing"),
        ('<joint name="lift" type="slide" axis="0 0 1"/>', "'lift'"),
        ("<freejoint/>", "0 of"),
    ],
)
def test_balance_refuses_a_robot_that_is_not_poles_on_a_driven_base(
    joints: str, wrong: str
) -> None:
    model = mujoco.MjModel.from_xml_string(PLANAR.format(joints=joints))
    with pytest.raises(ValueError, match=f'"balance": needs a base driven .*neither: {wrong}'):
        make_task("balance", model)


def test_a_fallen_pole_ends_the_episode() -> None:
    model = model_of("balancer")
    states = States(
        np.array([[0.0, 0.19], [0.0, 0.21], [0.0, -0.21], [0.0, math.nan]]), np.zeros((4, 2))
    )
    _, terminated = make_task("balance", model).reward_and_terminated(
        states, np.zeros((4, 1)), states
    )
    assert terminated.tolist() == [False, True, True, True]


class Speedy(Forward):
    """Measures a number that is 4 in every control step."""

    measures = MappingProxyType({"sum": "sum", "mean": "mean", "last": "last", "rms": "rms"})

    def measure(self, before: States, action: np.ndarray, after: States) -> np.ndarray:
        return np.full((len(action), 4), 4.0)


def test_a_measure_is_combined_over_the_steps_of_an_episode() -> None:
    model = model_of("hopper")
    task = Speedy(model, Speedy.Options(max_episode_steps=3))
    made = Simulation(model, task, robot="hopper", n_envs=1, seed=0, measuring=True)
    made.reset()
    (episode,) = [made.step(np.zeros((1, 3))) for _ in range(3)][-1].ended
    found = {way: episode.measures[way] for way in ("sum", "mean", "last", "rms")}
    assert found == {"sum": 12.0, "mean": 4.0, "last": 4.0, "rms": 2.0}


MUSCLES = """<mujoco><worldbody><body name="upper" pos="0 0 1"><joint name="shoulder" axis="0 1 0"/>
<geom type="capsule" fromto="0 0 0 0.5 0 0" size="0.02"/><body name="lower" pos="0.5 0 0">
<joint name="elbow" axis="0 1 0" range="-60 60"/>
<geom type="capsule" fromto="0 0 0 0.5 0 0" size="0.02"/><site name="tip" pos="0.5 0 0"/>
</body></body></worldbody><actuator>
<muscle name="flexor" joint="shoulder" ctrlrange="0 1" lengthrange="-1 1"/>
<muscle name="extensor" joint="elbow" ctrlrange="0 1" lengthrange="-1 1"/>
</actuator></mujoco>"""


@pytest.mark.parametrize("name", ["forward", "stand", "track", "reach"])
def test_observations_are_in_the_order_of_their_names_with_activations_last(name: str) -> None:
    """As the docstrings say; exported policies and noise on observations rely on the names."""
    model = mujoco.MjModel.from_xml_string(MUSCLES) if name == "reach" else model_of("frog")
    task = make_task(name, model, {})
    rng = np.random.default_rng(0)
    data = mujoco.MjData(model)
    data.qpos[:] = task.pose
    data.qvel[:] = rng.uniform(-0.5, 0.5, model.nv)
    data.act[:] = rng.uniform(0.1, 0.9, model.na)
    mujoco.mj_forward(model, data)
    fields = {"last_action": np.zeros((1, model.nu))}
    for field in task.all_fields:
        fields.setdefault(field, np.asarray(getattr(data, field, None))[None])
    goal = np.zeros((1, task.goal_size))
    states = States(data.qpos[None], data.qvel[None], goal, fields)
    observed = dict(zip(task.observation_terms.names, task.observe(states)[0], strict=True))

    names = input_names
    activations = dict(zip(names.activations(model).names, data.act, strict=True))
    assert list(observed)[-model.na :] == list(activations)
    joints = dict(zip(names.velocities(model).names, data.qvel, strict=True))
    if name in ("forward", "reach"):
        joints |= dict(zip(names.positions(model).names, data.qpos, strict=True))
    if name == "reach":
        joints |= dict(zip(["end x", "end y", "end z"], data.site("tip").xpos, strict=True))
    expected = {one: value for one, value in joints.items() if one in observed} | activations
    assert len(expected) > model.na
    assert {one: observed[one] for one in expected} == pytest.approx(expected, abs=1e-6)
