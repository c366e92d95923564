"""Task ``reach``: where targets lie, what is paid, what is seen, and what shall reach."""

from __future__ import annotations

import math
from pathlib import Path

import mujoco
import numpy as np
import pytest

from orchestrator.worker.envs.model_loading import load_model
from orchestrator.worker.envs.simulation import Simulation
from orchestrator.worker.tasks import make_task
from orchestrator.worker.tasks.effector import find_effector
from orchestrator.worker.tasks.reach import Reach

ARM = Path(__file__).parents[3] / "mjcf/arm.xml"

TWO_LINKS = """<mujoco><worldbody>{more}<body name="upper" pos="0 0 1"><joint name="shoulder" axis="0 1 0"{upper}/>
<geom type="capsule" fromto="0 0 0 0.5 0 0" size="0.02"/><body name="lower" pos="0.5 0 0">
<joint name="elbow" axis="0 1 0"{lower}/><geom name="lower" type="capsule" fromto="0 0 0 0.5 0 0" size="0.02"/>{sites}
</body></body></worldbody><actuator><motor joint="shoulder"/><motor joint="elbow"/></actuator></mujoco>"""


def two_links(
    sites: str = '<site name="tip" pos="0.5 0 0"/>', more: str = "", **joints: str
) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(
        TWO_LINKS.format(sites=sites, more=more, **{"upper": "", "lower": "", **joints})
    )


def reach(model: mujoco.MjModel, **options: object) -> Reach:
    task = make_task("reach", model, options)
    assert isinstance(task, Reach)
    return task


def targets(task: Reach, count: int = 60) -> np.ndarray:
    rng = np.random.default_rng(5)
    return np.array([task.sample_goal(rng) for _ in range(count)])


def test_every_target_is_where_the_arm_is_in_some_pose_within_its_limits() -> None:
    model = load_model(ARM)
    task = reach(model, target_range=1.0)
    data, joints = mujoco.MjData(model), range(model.njnt)
    low, high = model.jnt_range.T
    for number in range(20):
        target, repeated = (
            task.sample_goal(np.random.default_rng(number)),
            np.random.default_rng(number),
        )
        while True:  # the draws themselves, until the one that was kept
            data.qpos[:] = repeated.uniform(task.workspace.low, task.workspace.high)
            mujoco.mj_kinematics(model, data)
            if np.array_equal(data.site("tip").xpos, target):
                break
        assert all(low[joint] <= data.qpos[joint] <= high[joint] for joint in joints)
        assert target[2] > 0, "not in the floor"
        mujoco.mj_forward(model, data)
        assert data.contact.dist.min(initial=0.0) > -0.002


def test_position_servos_can_be_told_to_hold_every_pose_that_targets_are_drawn_from() -> None:
    model = load_model(ARM)
    task = reach(model, target_range=1.0, action_scale=0.2)
    ends = task.actions.ctrl(np.array([[-1.0] * 5, [1.0] * 5]))
    assert (task.workspace.low >= ends[0] - 1e-12).all()
    assert (task.workspace.high <= ends[1] + 1e-12).all()
    assert (task.workspace.low < task.pose).all()


def test_no_target_is_below_the_floor() -> None:
    plane = '<geom name="floor" type="plane" size="5 5 1" pos="0 0 0.7"/>'
    assert (targets(reach(two_links(), target_range=1.0))[:, 2] < 0.7).any()
    assert (targets(reach(two_links(more=plane), target_range=1.0))[:, 2] >= 0.7).all()


def test_no_target_needs_the_arm_to_be_inside_an_obstacle_or_itself() -> None:
    box = '<geom name="box" type="box" size="0.3 0.3 0.3" pos="-0.6 0 1"/>'
    found = targets(reach(two_links(more=box), target_range=1.0))
    assert not (np.abs(found - [-0.6, 0, 1]) < 0.3).all(axis=1).any()
    assert len(np.unique(found, axis=0)) == len(found)


def test_a_target_stays_for_the_episode() -> None:
    simulation = Simulation.from_xml(
        ARM, "reach", n_envs=2, seed=0, task_options={"max_episode_steps": 10}
    )
    simulation.reset()
    goals = [simulation.states.goals.copy()]
    for _ in range(10):
        simulation.step(np.zeros((2, 5)))
        goals.append(simulation.states.goals.copy())
    changed = [step for step in range(1, 11) if not np.array_equal(goals[step], goals[step - 1])]
    assert changed == [10], "another episode begins"


def test_reward_is_distance_precision_and_effort_as_its_docstring_says() -> None:
    simulation = Simulation.from_xml(
        ARM,
        "reach",
        n_envs=3,
        seed=2,
        measuring=True,
        task_options={"max_episode_steps": 12, "ctrl_cost_weight": 0.3},
    )
    task = simulation.task
    assert isinstance(task, Reach)
    simulation.reset()
    rng = np.random.default_rng(0)
    for step in range(12):
        action = rng.uniform(-1, 1, (3, 5))
        goals = simulation.states.goals.copy()
        result = simulation.step(action)
        for env in range(3 if step < 11 else 0):
            away = simulation.data(env).site("tip").xpos - goals[env]
            share = np.linalg.norm(away) / task.span_m
            expected = math.exp(-((share / 0.1) ** 2)) - share - 0.3 * np.mean(action[env] ** 2)
            assert result.rewards[env] == pytest.approx(expected)
            assert result.observations[env, -3:] == pytest.approx(-away, abs=1e-6)
            assert task.goal_marker(goals[env]) == pytest.approx(tuple(goals[env]))
    assert len(result.ended) == 3
    for episode in result.ended:
        assert episode.truncated
        last = np.linalg.norm(episode.terminal_observation[-3:])
        assert episode.measures["distance_m"] == pytest.approx(last, abs=1e-6)


@pytest.mark.parametrize(
    ("sites", "expected"),
    [
        ('<site name="tip"/><site name="mark"/>', "site 'tip'"),
        ('<site name="left_fingertip"/><site name="right_fingertip"/>', "site 'right_fingertip'"),
        ('<site name="grip_site"/><site name="tip_target"/>', "site 'grip_site'"),
        ('<site name="ee"/><site name="wheel"/>', "site 'ee'"),
        ('<site name="bend"/><site name="sheet"/>', "site 'sheet'"),
        ("<site/>", "site 0"),
        ("", "body 'lower'"),
    ],
)
def test_what_shall_reach_is_found_by_its_name_or_else_at_the_end_of_the_chain(
    sites: str, expected: str
) -> None:
    model = two_links(sites)
    assert find_effector(model, model.qpos0, None).name == expected


def test_of_bodies_behind_the_same_joints_the_one_with_the_most_ancestors_is_the_end() -> None:
    geom = '<geom size="0.02"/>'
    hand = f'<body name="palm" pos="0.5 0 0">{geom}<body name="nail">{geom}</body></body>'
    mount = f'<body name="mount">{geom}</body>'
    model = two_links(hand + mount)
    assert find_effector(model, model.qpos0, None).name == "body 'nail'"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"site": "hand"}, r"Invalid name 'hand'\. Valid names: \['tip'\]"),
        ({"site": 3}, 'option "site" is 3: expected text'),
        ({"target_range": 1.5}, "target_range = 1.5: expected at most 1"),
    ],
)
def test_wrong_options_are_answered_with_what_is_right(
    options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_task("reach", two_links(), options)


def test_robots_that_cannot_reach_are_refused() -> None:
    walker = load_model(ARM.parent / "quadruped.xml")
    with pytest.raises(
        ValueError,
        match=r'task "reach": needs a chain of hinges or slides on a fixed base',
    ):
        make_task("reach", walker)
    ball = '<body><freejoint/><geom size="0.1"/><site name="loose"/></body>'
    with pytest.raises(ValueError, match="no such chain ends in site 'loose'"):
        make_task("reach", two_links(more=ball), {"site": "loose"})
    with pytest.raises(ValueError, match=r"site 'tip' stays where it is"):
        make_task("reach", two_links('<site name="tip"/>', upper=' range="0 1e-6" limited="true"'))
