"""``observe`` and ``history``: what a policy observes in place of what its task gives."""

from __future__ import annotations

import dataclasses
import re
import shutil
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import worker_helpers as helpers
from numpy.typing import NDArray

from orchestrator.core.exit_codes import ExitCode
from orchestrator.worker.envs.simulation import Simulation
from orchestrator.worker.envs.simulation_factory import make_simulation
from orchestrator.worker.tasks import Forward, Term, make_task

MJCF = Path(__file__).parents[3] / "mjcf"
QUADRUPED = MJCF / "quadruped.xml"
SIDES = ("front_left", "front_right", "hind_left", "hind_right")
LEGS = [f"{side}_{joint}" for side in SIDES for joint in ("hip", "knee")]
OF_QUADRUPED = [
    *(f"{quantity} {axis}" for quantity in ("angular velocity", "gravity") for axis in "xyz"),
    *(f"offset of {joint} position" for joint in LEGS),
    *(f"{joint} velocity" for joint in LEGS),
    *(f"last action {joint}" for joint in LEGS),
]


def simulation(task: str = "track", robot: Path = QUADRUPED, **changes: Any) -> Simulation:
    options = {"observe": "proprioception", "max_episode_steps": 20, **changes.pop("options", {})}
    settings: dict[str, Any] = {"n_envs": 2, "seed": 3, **changes}
    randomize = settings.pop("randomize", {})
    return make_simulation(robot, task, options, randomize, **settings)


def column(observed: NDArray[Any], made: Simulation, name: str) -> NDArray[Any]:
    names = made.observation_names()
    assert names is not None
    found: NDArray[Any] = observed[:, names.index(name)]
    return found


def actions(made: Simulation, steps: int) -> NDArray[Any]:
    chance = np.random.default_rng(0)
    return chance.uniform(-1, 1, (steps, made.n_envs, made.model.nu)).astype(np.float32)


# -- what a robot measures


@pytest.mark.parametrize(
    ("task", "robot", "goal"),
    [
        ("forward", "quadruped", []),
        ("stand", "quadruped", []),
        ("track", "quadruped", [f"command {way}" for way in ("forward", "left", "turn")]),
    ],
)
def test_a_robot_that_moves_has_gyroscope_encoders_and_what_its_controller_knows(
    task: str, robot: str, goal: list[str]
) -> None:
    assert simulation(task, MJCF / f"{robot}.xml").observation_names() == [*OF_QUADRUPED, *goal]


def test_values_are_those_of_mujocos_sensors() -> None:
    """A gyroscope, and gravity in the axes of the body, of the robot in whatever pose."""
    made = simulation("forward")
    made.reset()
    for action in actions(made, 12):
        observed = made.step(action).observations
    data = made.data(1)
    body = made.model.body("trunk").id
    turning = np.zeros(6)
    mujoco.mj_objectVelocity(made.model, data, mujoco.mjtObj.mjOBJ_XBODY, body, turning, 1)
    down = data.xmat[body].reshape(3, 3).T @ [0.0, 0.0, -1.0]
    assert np.abs(down[:2]).max() > 0.01, "it is tilted"
    for axis, spin, gravity in zip("xyz", turning[:3], down, strict=True):
        assert column(observed, made, f"angular velocity {axis}")[1] == pytest.approx(
            spin, abs=1e-5
        )
        assert column(observed, made, f"gravity {axis}")[1] == pytest.approx(gravity, abs=1e-5)
    start = made.model.qpos0
    for joint in LEGS:
        offset = data.joint(joint).qpos[0] - start[made.model.joint(joint).qposadr[0]]
        position = column(observed, made, f"offset of {joint} position")
        assert position[1] == pytest.approx(offset, abs=1e-5)
        velocity = np.clip(data.joint(joint).qvel[0], -10, 10)
        assert column(observed, made, f"{joint} velocity")[1] == pytest.approx(velocity, abs=1e-4)


# -- the latest observations together


def test_history_has_the_newest_first_and_the_first_one_alone_at_the_start() -> None:
    alone, together = simulation(), simulation(options={"history": 3})
    size = alone.observation_size
    names = together.observation_names()
    assert names is not None
    assert names[size : 2 * size] == [f"{name} 1 step ago" for name in names[:size]]
    assert names[2 * size :] == [f"{name} 2 steps ago" for name in names[:size]]
    earlier = [alone.reset()] * 3
    assert np.array_equal(together.reset(), np.concatenate(earlier, axis=1))
    for action in actions(alone, 45):
        newest, result = alone.step(action), together.step(action)
        before = [newest.observations, *earlier[:2]]
        for one in newest.ended:
            terminal = [one.terminal_observation, *(part[one.env] for part in earlier[:2])]
            (same,) = [other for other in result.ended if other.env == one.env]
            assert np.array_equal(same.terminal_observation, np.concatenate(terminal))
            for part in before:
                part[one.env] = newest.observations[one.env]
        earlier = [part.copy() for part in before]
        assert np.array_equal(result.observations, np.concatenate(earlier, axis=1))


def test_noise_is_on_each_observation_once() -> None:
    made = simulation(
        options={"history": 2}, randomize={"observation.noise.gravity *": "normal(0, 0.1)"}
    )
    before = made.reset()
    size = made.observation_size // 2
    for action in actions(made, 10):
        now = made.step(action).observations
        assert np.array_equal(now[:, size:], before[:, :size])
        before = now


@pytest.mark.parametrize(
    "randomize", [{}, {"body.trunk.mass": "scale(0.8, 1.2)", "observation.delay": "choice(1, 2)"}]
)
def test_a_restored_state_goes_on_as_it_was(randomize: dict[str, str]) -> None:
    options = {"history": 3}
    whole = simulation(options=options, randomize=randomize, asymmetric=True)
    whole.reset()
    for action in actions(whole, 15):
        observed = whole.step(action).observations
    parts = simulation(options=options, randomize=randomize, asymmetric=True)
    parts.reset()
    assert np.array_equal(parts.set_state(whole.get_state()), observed)
    for action in actions(whole, 30):
        assert np.array_equal(whole.step(action).observations, parts.step(action).observations)


# -- what the critic alone sees


@pytest.mark.parametrize("randomize", [{}, {"body.trunk.mass": "scale(0.8, 1.2)"}])
def test_the_critic_sees_what_is_left_out(randomize: dict[str, str]) -> None:
    made = simulation(randomize=randomize, asymmetric=True, options={"history": 2})
    full = make_task("track", made.model, {}).observation_terms.names
    left_out = [name for name in full if name not in OF_QUADRUPED and "command" not in name]
    assert "velocity x" in left_out
    assert made.privileged_names == (*left_out, *randomize)
    made.reset()
    for action in actions(made, 5):
        observed = made.step(action).observations
    whole = made.task.observe(made.states)
    for name in left_out:
        assert np.array_equal(column(observed, made, name), whole[:, full.index(name)])


@pytest.mark.parametrize(
    ("algo", "learner"),
    [
        ("ppo", "fast"),
        *(
            pytest.param(*other, marks=pytest.mark.nightly)
            for other in (("sac", "auto"), ("ppo", "sb3"))
        ),
    ],
)
def test_a_resumed_training_has_the_same_weights(tmp_path: Path, algo: str, learner: str) -> None:
    spec = helpers.algorithm(
        algo,
        task="track",
        xml="robot/quadruped.xml",
        asymmetric=True,
        learner=learner,
        eval_episodes=2,
        task_options={"observe": "proprioception", "history": 3, "max_episode_steps": 40},
    )
    whole, parts = (helpers.job(tmp_path / name, spec) for name in ("whole", "parts"))
    for paths in (whole, parts):
        paths.robot.mkdir()
        shutil.copy(QUADRUPED, paths.robot)
    record, log = helpers.train_here(whole)
    assert record.code == ExitCode.SUCCEEDED, log
    parts.spec.write_text(dataclasses.replace(spec, pause_at=600).to_json())
    assert helpers.train_here(parts)[0].code == ExitCode.PAUSED
    parts.spec.write_text(spec.to_json())
    resumed, log = helpers.train_here(parts, 1)
    assert resumed.code == ExitCode.SUCCEEDED, log
    assert resumed.weights_sha256 == record.weights_sha256
    assert parts.eval.read_bytes() == whole.eval.read_bytes()


# -- sensors of the robot


class WithImu(Forward):
    """Observes a sensor of the robot, too."""

    def make_observation_terms(self) -> list[Term]:
        return [*super().make_observation_terms(), self.sensor_term("imu_gyro")]


def test_a_task_of_ones_own_has_sensors_of_the_robot(tmp_path: Path) -> None:
    text = QUADRUPED.read_text()
    found = re.search(r'<body name="trunk"[^>]*>', text)
    assert found is not None
    site = f'{found[0]}<site name="imu" euler="0 0 30"/>'
    sensor = '<sensor><gyro name="imu_gyro" site="imu"/></sensor></mujoco>'
    with_imu = tmp_path / "with_imu.xml"
    with_imu.write_text(text.replace(found[0], site).replace("</mujoco>", sensor))
    task = f"{__name__}:WithImu"
    made = make_simulation(with_imu, task, {}, {}, n_envs=1, seed=0)
    terms = made.task.observation_terms
    assert terms.names[-3:] == [f"imu_gyro {axis}" for axis in "xyz"]
    assert terms.units[-3:] == ["rad/s"] * 3
    made.reset()
    for action in actions(made, 5):
        observed = made.step(action).observations
    assert np.allclose(observed[0, -3:], made.data(0).sensor("imu_gyro").data, atol=1e-5)
    with pytest.raises(ValueError, match="Invalid name 'imu_gyro'"):
        make_simulation(QUADRUPED, task, {}, {}, n_envs=1, seed=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"history": 0}, 'option "history" is 0: expected a whole number above 0'),
        ({"observe": "proprio"}, "'proprio': expected Literal['full', 'proprioception']"),
    ],
)
def test_what_cannot_be_observed_is_said(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        simulation("forward", options=options)
