"""Tasks ``stand`` and ``track``: what they pay, what they show, how they push and command."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import mujoco
import numpy as np
import pytest

from orchestrator.worker.envs.model_loading import load_model
from orchestrator.worker.envs.simulation import Simulation
from orchestrator.worker.envs.simulation_factory import make_simulation
from orchestrator.worker.tasks import States, Task, make_task
from orchestrator.worker.tasks.motion import brisk_speed
from orchestrator.worker.tasks.stand import Stand
from orchestrator.worker.tasks.track import Track

MJCF = Path(__file__).parents[3] / "mjcf"


def stand(robot: str, **options: object) -> Stand:
    task = make_task("stand", load_model(MJCF / f"{robot}.xml"), options)
    assert isinstance(task, Stand)
    return task


def track(robot: str, **options: object) -> Track:
    task = make_task("track", load_model(MJCF / f"{robot}.xml"), options)
    assert isinstance(task, Track)
    return task


def state(task: Task, goal: tuple[float, ...] = (), **changes: Mapping[int, float]) -> States:
    """The starting pose at rest but for ``qpos`` and ``qvel``."""
    model = task.model
    values = {"qpos": task.pose.copy(), "qvel": np.zeros(model.nv)}
    for name, change in changes.items():
        for index, value in change.items():
            values[name][index] += value
    fields = {"last_action": np.zeros((1, model.nu)), "act": np.zeros((1, model.na))}
    return States(values["qpos"][None], values["qvel"][None], np.array([goal]), fields)


def paid(task: Task, after: States, action: float = 0.0) -> float:
    actions = np.full((1, task.model.nu), action)
    return float(task.reward_and_terminated(state(task), actions, after)[0][0])


def turned(task: Task, axis: tuple[float, float, float], angle: float) -> dict[int, float]:
    """The change of a free root's quaternion that turns it by ``angle`` about a world axis."""
    turn, both = np.zeros(4), np.zeros(4)
    mujoco.mju_axisAngle2Quat(turn, np.array(axis), angle)
    mujoco.mju_mulQuat(both, turn, task.pose[3:7])
    return {3 + index: both[index] - task.pose[3 + index] for index in range(4)}


def test_standing_is_paid_as_its_docstring_says() -> None:
    task = stand("biped")
    height, speed = task.root.start_height, brisk_speed(task.root)
    assert height == pytest.approx(0.482), "over the floor"
    lower = state(task, qpos={2: -0.1 * height})
    assert paid(task, lower) == pytest.approx(math.exp(-0.25))
    assert paid(task, state(task, qpos=turned(task, (0, 1, 0), 0.5))) == pytest.approx(
        math.cos(0.5)
    )
    assert paid(task, state(task, qpos=turned(task, (0, 0, 1), 2.0))) == pytest.approx(1.0), (
        "any way round"
    )
    bent = state(task, qpos={7: 0.3, 9: -0.4})
    assert paid(task, bent) == pytest.approx((1 + math.exp(-(0.3**2 + 0.4**2) / 10 / 0.3**2)) / 2)
    moving = state(task, qvel={0: 0.6 * speed, 1: 0.8 * speed})
    assert paid(task, moving) == pytest.approx((1 + math.exp(-1)) / 2)
    assert task.measure(lower, np.zeros((1, 10)), lower) == pytest.approx(0.9 * height)


@pytest.mark.parametrize(
    ("robot", "change", "fallen"),
    [
        ("biped", {2: -0.25}, True),
        ("biped", {2: -0.15}, False),
        ("hopper", {2: 1.1}, True),
        ("hopper", {2: 0.9}, False),
    ],
)
def test_who_falls_is_out(robot: str, change: dict[int, float], fallen: bool) -> None:
    for task in (stand(robot), track(robot)):
        goal = (0.1,) * task.goal_size
        after = state(task, goal, qpos=change)
        assert task.reward_and_terminated(state(task, goal), np.zeros((1, task.model.nu)), after)[
            1
        ] == [fallen]


@pytest.mark.parametrize("robot", ["hopper", "quadruped"])
def test_a_push_comes_on_time_and_changes_the_roots_horizontal_velocity_alone(robot: str) -> None:
    options = {"push_period_s": 0.2, "frame_skip": 4, "push_speed": 0.7, "healthy_reward": 0.0}
    pushed, calm = (
        Simulation.from_xml(
            MJCF / f"{robot}.xml", "stand", n_envs=2, seed=0, task_options={**options, **more}
        )
        for more in ({}, {"push_speed": 0.0})
    )
    steps = round(0.2 / pushed.control_period_s)
    assert np.array_equal(pushed.reset(), calm.reset())
    for step in range(1, steps + 1):
        results = [simulation.step(np.zeros((2, pushed.model.nu))) for simulation in (pushed, calm)]
        assert np.array_equal(*(result.observations for result in results)) == (step < steps)
    change = pushed.states.qvel - calm.states.qvel
    flat = 1 if robot == "hopper" else 2
    assert np.linalg.norm(change[:, :flat], axis=1) == pytest.approx([0.7, 0.7])
    assert not change[:, flat:].any()
    assert np.array_equal(pushed.states.qpos, calm.states.qpos)


def test_a_free_root_feels_gravity_and_motion_in_its_own_axes() -> None:
    task = track("dog")
    turn = turned(task, (0, 0, 1), math.pi / 2)
    facing_y = task.observe(
        state(task, (0.5, 0.1, -0.2), qpos=turn, qvel={1: 0.3, 2: 0.1, 5: 0.4})
    )[0]
    assert facing_y[:9] == pytest.approx([0, 0, 1, 0.3, 0, 0.1, 0, 0, 0.4], abs=1e-6)
    assert facing_y[9:33] == pytest.approx(np.zeros(24), abs=1e-6), "joints at home and still"
    assert facing_y[33:36] == pytest.approx([0.5, 0.1, -0.2])
    assert facing_y[36:] == pytest.approx(np.zeros(12)), "the last action"
    on_its_side = task.observe(state(task, (0, 0, 0), qpos=turned(task, (1, 0, 0), math.pi / 2)))[0]
    assert on_its_side[:3] == pytest.approx([0, 1, 0], abs=1e-6)


def test_motion_agrees_with_mujocos_own_velocities_in_any_attitude() -> None:
    task = track("dog")
    rng = np.random.default_rng(0)
    model, data = task.model, mujoco.MjData(task.model)
    for _ in range(10):
        data.qpos[:] = task.pose
        data.qpos[3:7] = rng.standard_normal(4)
        mujoco.mj_normalizeQuat(model, data.qpos)
        data.qvel[:] = rng.standard_normal(model.nv)
        mujoco.mj_forward(model, data)
        own, world = np.zeros(6), np.zeros(6)
        mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_XBODY, task.root.body, own, 1)
        mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_XBODY, task.root.body, world, 0)
        motion = task.root_motion.motion(States(data.qpos[None].copy(), data.qvel[None].copy()))
        assert motion.up[0] == pytest.approx(data.xmat[task.root.body].reshape(3, 3)[2])
        assert motion.velocity[0] == pytest.approx(own[3:])
        assert motion.spin[0] == pytest.approx(own[:3])
        assert motion.yaw_rate[0] == pytest.approx(world[2])
        ahead = data.xmat[task.root.body].reshape(3, 3)[:2, 0]
        ahead /= np.linalg.norm(ahead)
        left = np.array([-ahead[1], ahead[0]])
        assert motion.heading_velocity[0] == pytest.approx(
            [ahead @ world[3:5], left @ world[3:5], world[5]]
        )


def test_tracking_is_paid_as_its_docstring_says() -> None:
    task = track("dog", forward_speed=1.0, ctrl_cost_weight=0.2, smoothness_weight=0.3)
    turn = turned(task, (0, 0, 1), 1.0)
    fast = {
        0: math.cos(1.0) * 0.8 - math.sin(1.0) * 0.1,
        1: math.sin(1.0) * 0.8 + math.cos(1.0) * 0.1,
        5: 0.3,
    }
    goal = (0.8, 0.1, 0.3)
    assert paid(task, state(task, goal, qpos=turn, qvel=fast)) == pytest.approx(1.5 + 0.5)
    slow = state(task, goal)
    expected = (
        math.exp(-0.65 / 0.25) + 0.5 * math.exp(-((0.3 / 0.25) ** 2)) - 0.5 * math.sqrt(0.65) + 0.5
    )
    assert paid(task, slow) == pytest.approx(expected)
    moved = state(task, goal, qpos={0: 0.3, 1: -0.4})
    measured = task.measure(slow, np.zeros((1, 12)), moved)
    assert measured == pytest.approx(np.array([[math.sqrt(0.65), 0.5]]))
    assert paid(task, slow, action=0.5) == pytest.approx(expected - 0.2 * 0.25 - 0.3 * 0.25)
    bouncing = state(task, goal, qvel={2: 0.6, 3: 0.5})
    tip = 0.25 * (task.root.start_height * 0.5) ** 2
    assert paid(task, bouncing) == pytest.approx(expected - 0.05 * (0.36 + tip))


@pytest.mark.parametrize(
    ("robot", "low", "high"),
    [
        ("dog", [0, -0.3, -0.5], [0.6, 0.3, 0.5]),
        ("quadruped", [0, 0, -0.5], [0.6, 0, 0.5]),
        ("walker", [0], [0.6]),
    ],
)
def test_commands_suit_what_the_legs_can_do(
    robot: str, low: list[float], high: list[float]
) -> None:
    task = track(robot, forward_speed=0.6)
    rng = np.random.default_rng(0)
    goals = np.array([task.sample_goal(rng) for _ in range(2000)])
    assert goals.min(axis=0) == pytest.approx(np.array(low), abs=0.01)
    assert goals.max(axis=0) == pytest.approx(np.array(high), abs=0.01)


def test_a_command_stays_for_its_period_and_another_environment_has_its_own() -> None:
    simulation = Simulation.from_xml(
        MJCF / "quadruped.xml",
        "track",
        n_envs=2,
        seed=3,
        task_options={"command_period_s": 0.4, "frame_skip": 4},
    )
    simulation.reset()
    seen = []
    for _ in range(25):
        seen.append(simulation.states.goals.copy())
        shown = simulation.step(np.zeros((2, 8))).observations
        assert np.array_equal(shown[:, -11:-8], simulation.states.goals.astype(np.float32))
    changes = [step for step in range(1, 25) if not np.array_equal(seen[step], seen[step - 1])]
    assert changes == [10, 20]
    assert not np.array_equal(seen[0][0], seen[0][1])


CLIPPED_SERVO = """<mujoco><compiler autolimits="true"/><worldbody><body pos="0 0 1"><freejoint/>
<geom size="0.1"/><body><joint name="hip" axis="0 1 0" range="-60 60"/><geom size="0.05" pos="0.2 0 0"/>
</body></body></worldbody><actuator><position joint="hip" kp="9" ctrlrange="-1 1"/></actuator>
<keyframe><key qpos="0 0 1 1 0 0 0 0.8"/></keyframe></mujoco>"""
"""An action of 1 asks for a position beyond the range of its control; the keyframe has no ctrl."""


@pytest.mark.parametrize("delay", [0, 2])
@pytest.mark.parametrize("observe", ["full", "proprioception"])
def test_the_last_action_is_the_policys_own_and_0_at_the_start(
    tmp_path: Path, observe: str, delay: int
) -> None:
    """And it is what the penalty on changes of actions compares with."""
    robot = tmp_path / "servo.xml"
    robot.write_text(CLIPPED_SERVO)
    costly, free = (
        make_simulation(
            robot,
            "track",
            {"observe": observe, "smoothness_weight": weight},
            {"action.delay": f"choice({delay}, {delay})"},
            n_envs=1,
            seed=0,
        )
        for weight in (1.0, 0.0)
    )
    names = costly.observation_names()
    assert names is not None
    column = names.index("last action actuator of hip")
    last = 0.0
    assert costly.reset()[0, column] == free.reset()[0, column] == 0
    for action in (1.0, -0.3, 0.2):
        with_penalty, without = costly.step([[action]]), free.step([[action]])
        assert with_penalty.observations[0, column] == pytest.approx(action)
        assert without.rewards - with_penalty.rewards == pytest.approx((action - last) ** 2)
        last = action
    late = {"action.delay": f"choice({delay}, {delay})"}
    resumed = make_simulation(robot, "track", {"observe": observe}, late, n_envs=1, seed=0)
    assert resumed.set_state(costly.get_state())[0, column] == pytest.approx(last)


def test_a_robot_is_paid_for_what_the_policy_gave_though_it_takes_effect_late() -> None:
    robot = MJCF / "quadruped.xml"
    options = {"forward_reward_weight": 0.0, "healthy_reward": 0.0, "ctrl_cost_weight": 1.0}
    late = {"action.delay": "choice(2, 2)"}
    made = make_simulation(robot, "forward", options, late, n_envs=1, seed=0)
    made.reset()
    for action in (1.0, 0.5, 0.0):
        result = made.step(np.full((1, 8), action))
        assert result.rewards == pytest.approx([-(action**2)])
        assert not made.data(0).ctrl.any() or action == 0.0


@pytest.mark.parametrize("task", ["stand", "track"])
def test_an_arm_is_refused(task: str) -> None:
    with pytest.raises(
        ValueError, match=f'task "{task}": needs a free joint or a slide joint along x at the root'
    ):
        make_task(task, load_model(MJCF / "arm.xml"))
