"""``task = "auto"``: what is picked for which structure, and what the error says where nothing
fits."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import mujoco
import pytest

from orchestrator.worker.envs.model_loading import load_model
from orchestrator.worker.envs.vec_env import MujocoVecEnv
from orchestrator.worker.tasks import AUTO, choose, find_task, make_task
from orchestrator.worker.tasks.task_choice import TaskChoice

MJCF = Path(__file__).parents[3] / "mjcf"
GYMNASIUM = Path(gymnasium.__file__).parent / "envs/mujoco/assets"

OURS = {"arm": "reach", "balancer": "balance"}
"""Robots of ours that are not made to move forward."""
THEIRS = {
    "ant": "forward",
    "half_cheetah": "forward",
    "hopper": "forward",
    "humanoid": "forward",
    "humanoidstandup": "forward",
    "inverted_double_pendulum": "balance",
    "inverted_pendulum": "balance",
    "point": "forward",
    "pusher_v5": "reach",
    "reacher": "reach",
    "swimmer": "forward",
    "walker2d_v5": "forward",
}

CHAIN = """<mujoco><option {option}/><worldbody><geom name="floor" type="plane" size="5 5 1" pos="0 0 -2"/>{more}
<body name="base" pos="0 0 1">{base}<geom size="0.05" mass="1"/>
<body name="link" pos="0 0 {offset}"><joint name="hinge" axis="0 1 0"/>
<geom size="0.05" pos="0 {aside} {offset}" mass="1"/>
</body></body></worldbody><actuator>{actuator}</actuator></mujoco>"""
RAIL = '<joint name="rail" type="slide" axis="1 0 0" range="-1 1"/>'
ON_RAIL, ON_HINGE = '<motor joint="rail"/>', '<motor joint="hinge"/>'


def picked(**parts: str) -> TaskChoice:
    whole = {
        "option": "",
        "more": "",
        "base": "",
        "offset": "0.5",
        "aside": "0",
        "actuator": ON_HINGE,
        **parts,
    }
    text = CHAIN.format(**whole).replace("<mujoco>", '<mujoco><compiler autolimits="true"/>')
    return choose(mujoco.MjModel.from_xml_string(text))


@pytest.mark.parametrize(
    "path", [*MJCF.glob("*.xml"), *MJCF.glob("zoo/*.xml")], ids=lambda path: path.stem
)
def test_auto_picks_for_every_robot_of_ours_and_the_task_fits(path: Path) -> None:
    model = load_model(path)
    choice = choose(model)
    assert choice.task == OURS.get(path.stem, "forward")
    assert "root '" in choice.reason or "base" in choice.reason
    assert type(make_task(AUTO, model)) is find_task(choice.task)


@pytest.mark.parametrize(("robot", "expected"), THEIRS.items())
def test_auto_picks_for_the_robots_of_gymnasium(robot: str, expected: str) -> None:
    model = load_model(GYMNASIUM / f"{robot}.xml")
    assert choose(model).task == expected
    assert type(make_task(AUTO, model)) is find_task(expected)


def test_a_pole_is_one_only_where_it_stands() -> None:
    assert picked(base=RAIL, actuator=ON_RAIL).task == "balance"
    assert picked(base=RAIL, actuator=ON_RAIL, offset="-0.5").task == "reach", "it hangs"
    weightless = picked(base=RAIL, actuator=ON_RAIL, option='gravity="0 0 0"')
    assert weightless.task == "reach", "nothing pulls"
    aside = picked(base=RAIL, actuator=ON_RAIL, aside="2")
    assert aside.task == "balance", "what is along the axis does not count"


def test_a_ball_that_lies_about_is_not_the_robot() -> None:
    ball = '<body name="ball" pos="1 0 0"><freejoint/><geom size="0.1"/></body>'
    assert picked(more=ball) == TaskChoice(
        task="reach", reason="driven chain on a fixed base ends in body 'link'"
    )


def test_what_fits_nothing_is_told_what_there_is_and_what_to_do() -> None:
    wheel = """<mujoco><worldbody><body><joint name="axle" axis="0 0 1"/><geom size="0.1"/></body></worldbody>
    <actuator><motor joint="axle"/></actuator></mujoco>"""
    with pytest.raises(
        ValueError, match=r"no built-in task suits .*stays where it is.*task = \"my_tasks:MyTask\""
    ):
        choose(mujoco.MjModel.from_xml_string(wheel))
    pushed = """<mujoco><worldbody><body><joint name="spin" type="ball"/><geom size="0.1"/><site name="tip"/></body>
    </worldbody><actuator><motor site="tip" gear="1 0 0 0 1 0"/></actuator></mujoco>"""
    with pytest.raises(ValueError, match=r"\"reach\" needs a chain of hinges"):
        choose(mujoco.MjModel.from_xml_string(pushed))


def test_auto_goes_wherever_a_task_goes() -> None:
    env = MujocoVecEnv(
        MJCF / "quadruped.xml", AUTO, n_envs=2, seed=0, task_options={"ctrl_cost_weight": 0.5}
    )
    assert type(env.simulation.task) is find_task("forward")
    assert env.simulation.task.options.ctrl_cost_weight == 0.5
