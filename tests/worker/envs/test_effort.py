"""Work, mass, cost of transport and torques of episodes: against plain MuJoCo, and against paper and
pencil."""

from __future__ import annotations

import math
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gymnasium
import mujoco
import numpy as np
import pytest

from orchestrator.core.task_names import EFFORT, GYMNASIUM_TASKS, MEASURES, TASKS
from orchestrator.worker.envs.simulation import Simulation
from orchestrator.worker.envs.simulation_factory import make_simulation
from orchestrator.worker.tasks import CommonOptions, Forward, States, Task, find_task
from orchestrator.worker.tasks.base import RewardAndTermination
from orchestrator.worker.tasks.gymnasium_tasks import default_xml

MJCF = Path(__file__).parents[3] / "mjcf"
STEPS = 20

CASES = [
    ("quadruped", "forward"),
    ("walker", "forward"),
    ("dog", "track"),
    ("walker", "track"),
    ("biped", "stand"),
    ("arm", "reach"),
    ("balancer", "balance"),
    *((None, name) for name in GYMNASIUM_TASKS),
]
"""Robot (None: gymnasium's own) and task."""


def path_of(robot: str | None, task: str) -> Path:
    return default_xml(task) if robot is None else MJCF / f"{robot}.xml"


def simulated(
    robot: str | None, task: str, n_envs: int = 2, **settings: Any
) -> tuple[Simulation, np.ndarray]:
    """A simulation whose episodes last :data:`STEPS`, and actions for them."""
    options = {"max_episode_steps": STEPS}
    simulation = Simulation.from_xml(
        path_of(robot, task), task, options, n_envs=n_envs, seed=4, **settings
    )
    low, high = simulation.task.actions.low, simulation.task.actions.high
    actions = np.random.default_rng(2).uniform(low, high, (2 * STEPS, 6, len(low)))
    return simulation, actions[:, :n_envs]


class Episodes:
    """What plain ``mj_step`` gives for the episodes of one environment."""

    def __init__(self, simulation: Simulation, env: int) -> None:
        self.model = simulation.model_of(env)
        self.skip = simulation.task.frame_skip
        self.data = mujoco.MjData(self.model)
        self.energy_j = 0.0
        self.squares: list[float] = []

    def begin(self, state: np.ndarray) -> None:
        mujoco.mj_setState(self.model, self.data, state, mujoco.mjtState.mjSTATE_INTEGRATION)
        self.energy_j = 0.0
        self.squares = []

    def step(self, ctrl: np.ndarray) -> None:
        self.data.ctrl[:] = ctrl
        driven = self.model.jnt_dofadr[self.model.actuator_trnid[:, 0]]
        for _ in range(self.skip):
            velocity = self.data.qvel.copy()
            mujoco.mj_step(self.model, self.data)
            torque = self.data.qfrc_actuator
            self.energy_j += float(np.abs(torque * velocity).sum()) * self.model.opt.timestep
            self.squares += np.square(torque[driven]).tolist()


@pytest.mark.parametrize(("robot", "task"), CASES)
def test_work_and_torques_are_those_of_plain_mujoco_steps(robot: str | None, task: str) -> None:
    simulation, actions = simulated(robot, task, measuring=True)
    simulation.reset()
    alone = [Episodes(simulation, env) for env in range(2)]
    for env, episodes in enumerate(alone):
        episodes.begin(simulation.physics(env))
    ended = 0
    for action in actions:
        ctrl = simulation.task.actions.ctrl(simulation.task.actions.taken(action))
        for env, episodes in enumerate(alone):
            episodes.step(ctrl[env])
        for episode in simulation.step(action).ended:
            ended += 1
            by_hand = alone[episode.env]
            assert episode.measures["energy_j"] == pytest.approx(by_hand.energy_j, rel=1e-9)
            rms = math.sqrt(np.mean(by_hand.squares))
            assert episode.measures["torque_rms"] == pytest.approx(rms, rel=1e-9)
            by_hand.begin(simulation.physics(episode.env))
        if simulation.task.push_period or simulation.task.goal_period:
            for env, episodes in enumerate(alone):
                episodes.data.qvel[:] = simulation.states.qvel[env]
    assert ended >= 2


@pytest.mark.parametrize("task", [*TASKS, *GYMNASIUM_TASKS])
def test_every_built_in_task_has_the_measures_after_its_own(task: str) -> None:
    robot = next(robot for robot, name in CASES if name == task)
    simulation, actions = simulated(robot, task, measuring=True)
    simulation.reset()
    episodes = [episode for action in actions for episode in simulation.step(action).ended]
    own = [*find_task(task).measures]
    assert list(episodes[0].measures) == [*own, *EFFORT]
    travels = {**TASKS, **GYMNASIUM_TASKS}[task].travels
    assert MEASURES[task] == tuple(
        name for name in episodes[0].measures if name != "cost_of_transport" or travels
    )
    for episode in episodes:
        assert episode.measures["energy_j"] > 0
        assert episode.measures["torque_rms"] > 0
        moving = simulation.model.body_treeid >= 0
        mass_kg = simulation.model.body_mass[moving].sum()
        assert episode.measures["mass_kg"] == pytest.approx(mass_kg)
        cost = episode.measures["cost_of_transport"]
        moved = simulation.task.distance_travelled(simulation.states, simulation.states)
        assert (moved is not None) == travels
        assert moved is not None or math.isnan(cost)


def test_the_cost_of_transport_is_work_for_weight_and_way() -> None:
    simulation, actions = simulated("eel", "forward", n_envs=6, measuring=True)
    simulation.reset()
    episodes = [episode for action in actions for episode in simulation.step(action).ended]
    forward = [one.measures for one in episodes if one.measures["distance_m"] > 0]
    back = [one.measures for one in episodes if one.measures["distance_m"] <= 0]
    assert forward
    assert back
    for one in forward:
        weight_n = one["mass_kg"] * 9.81
        cost = one["energy_j"] / (weight_n * one["distance_m"])
        assert one["cost_of_transport"] == pytest.approx(cost)
    assert all(math.isnan(one["cost_of_transport"]) for one in back)


# -- the same in a batch, alone, and without measuring


SHORT = (
    ("biped", "stand"),
    ("walker", "track"),
    ("arm", "reach"),
    ("balancer", "balance"),
    (None, "gymnasium:Humanoid-v5"),
    (None, "gymnasium:Hopper-v5"),
)
"""Cases of each kind of body, base and end of an episode."""


@pytest.mark.parametrize(
    ("robot", "task"),
    [pytest.param(*case, marks=[pytest.mark.nightly] * (case not in SHORT)) for case in CASES],
)
def test_measures_depend_on_no_other_environment_and_change_nothing(
    robot: str | None, task: str
) -> None:
    told = []
    for settings in (
        {"n_envs": 6, "measuring": False},
        {"n_envs": 6, "measuring": True},
        {"n_envs": 6, "measuring": True, "n_threads": 2},
        {"n_envs": 1, "measuring": True},
    ):
        simulation, actions = simulated(robot, task, **settings)  # type: ignore[arg-type]
        results = [simulation.reset()[0]]
        measures = []
        for action in actions:
            result = simulation.step(action)
            results += [result.observations[0].copy(), result.rewards[:1].copy()]
            measures += [one.measures for one in result.ended if one.env == 0]
        fields = [field[0].copy() for field in simulation.states.fields.values()]
        told.append(([*results, simulation.physics(0), *fields], measures))
    unmeasured, batch, threads, alone = told
    for results, measures in (batch, threads, alone):
        assert all(map(np.array_equal, results, unmeasured[0]))
        assert measures == batch[1]
        assert measures
    assert not any(unmeasured[1])


def test_the_environment_of_gymnasium_has_the_same_measures() -> None:
    env = gymnasium.make(
        "orchestrator.envs:orchestrator/forward-v0",
        xml=str(MJCF / "quadruped.xml"),
        task_options={"max_episode_steps": STEPS},
    )
    simulation, actions = simulated("quadruped", "forward", n_envs=1, measuring=True)
    simulation.seed(4)
    simulation.reset()
    env.reset(seed=4)
    ended = []
    for action in actions[:STEPS]:
        info = env.step(action[0])[4]
        ended += simulation.step(action).ended
    assert info["measures"] == ended[0].measures


# -- paper and pencil

ARM = """
<mujoco><option timestep="0.001" gravity="0 0 0"/><worldbody>
  <body name="arm"><joint name="hinge" axis="0 1 0" {joint}/>
    <inertial pos="0 0 0" mass="3" diaginertia="0.5 0.5 0.5"/></body>
  <body name="loose" pos="3 0 0"><freejoint/><geom size="0.1" mass="7"/></body>
  <body name="table" pos="6 0 0"><geom size="0.1" mass="11"/></body>
</worldbody><actuator>{actuators}</actuator></mujoco>
"""
MOTOR = '<motor joint="hinge" gear="{gear}" ctrlrange="-1 1"/>'


class Turning(Task):
    """Nothing is wanted. Episodes begin at rest, or as fast as ``speed`` says."""

    speed = 0.0

    def initial_state(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        velocities = np.zeros(self.model.nv)
        velocities[0] = self.speed
        return self.model.qpos0.copy(), velocities

    def observe(self, states: States) -> np.ndarray:
        return states.qpos.astype(np.float32)

    def reward_and_terminated(
        self, before: States, action: np.ndarray, after: States
    ) -> RewardAndTermination:
        return np.zeros(len(action)), np.zeros(len(action), bool)


def turned(
    actuators: str,
    action: float,
    *,
    joint: str = "",
    speed: float = 0.0,
    kind: type[Task] = Turning,
) -> dict[str, float]:
    """The measures of an arm that a constant action turns for a second."""
    model = mujoco.MjModel.from_xml_string(ARM.format(joint=joint, actuators=actuators))
    options = CommonOptions(max_episode_steps=25, reset_noise_scale=0.0)
    task = kind(model, options)
    vars(task)["speed"] = speed
    simulation = Simulation(model, task, robot="arm", n_envs=1, seed=0, measuring=True)
    simulation.reset()
    ended = []
    for _ in range(25):
        ended += simulation.step(np.full((1, model.nu), action)).ended
    [episode] = ended
    return dict(episode.measures)


def test_a_constant_torque_does_the_work_that_becomes_kinetic_energy() -> None:
    """τ = 2 N·m on I = 0.5 kg·m² for 1 s: ω = 4 rad/s, E = ½ I ω² = 4 J.

    The power of a physics step is that at its beginning, so that 1 of 1,000 steps is missing.
    """
    told = turned(MOTOR.format(gear=2), 1.0)
    assert told["energy_j"] == pytest.approx(4.0 * (1 - 1 / 1000), rel=1e-9)
    assert told["torque_rms"] == pytest.approx(2.0)
    assert told["mass_kg"] == pytest.approx(3.0)
    assert math.isnan(told["cost_of_transport"])


def test_braking_costs_what_driving_costs() -> None:
    """From 2 rad/s a torque of -2 N·m brings it to -2 rad/s within a second: 1 J, and 1 J again."""
    told = turned(MOTOR.format(gear=-2), 1.0, speed=2.0)
    assert told["energy_j"] == pytest.approx(2.0, rel=2e-3)
    assert told["torque_rms"] == pytest.approx(2.0)


class Measured(Turning):
    measures = MappingProxyType({"turned_rad": "last"})

    def measure(self, before: States, action: np.ndarray, after: States) -> np.ndarray:
        return np.repeat(after.qpos[:, :1], len(self.measures), axis=1)


class MeasuredTwice(Measured):
    measures = MappingProxyType({**Measured.measures, "sum_rad": "sum"})


def test_measures_that_a_checkpoint_does_not_have_are_unknown() -> None:
    def made(kind: type[Task], measuring: bool) -> Simulation:
        model = mujoco.MjModel.from_xml_string(ARM.format(joint="", actuators=MOTOR.format(gear=2)))
        task = kind(model, CommonOptions(max_episode_steps=3))
        return Simulation(model, task, robot="arm", n_envs=2, seed=0, measuring=measuring)

    for earlier, measuring in ((Measured, True), (MeasuredTwice, False)):
        old = made(earlier, measuring)
        old.reset()
        old.step(np.ones((2, 1)))
        new = made(MeasuredTwice, True)
        new.set_state(old.get_state())
        new.step(np.ones((2, 1)))
        for episode in new.step(np.ones((2, 1))).ended:
            assert math.isnan(episode.measures["sum_rad"])
            assert math.isnan(episode.measures["energy_j"])
        again = [new.step(np.ones((2, 1))).ended for _ in range(3)][-1]
        assert not math.isnan(again[0].measures["sum_rad"])
        new.set_state(new.get_state() | {"sums": {}})
        first = [new.step(np.ones((2, 1))).ended for _ in range(3)][-1]
        assert not math.isnan(first[0].measures["energy_j"]), "the episode had not begun"


# -- robots that differ, and physics that fails


def test_the_mass_is_that_of_the_robot_that_the_episode_has_drawn() -> None:
    drawn = {"body.trunk.mass": "uniform(0.5, 2)", "actuator.*.gear[0]": "uniform(0.5, 1)"}
    simulation = make_simulation(
        MJCF / "hopper.xml",
        "forward",
        {"max_episode_steps": 5},
        drawn,
        n_envs=3,
        seed=0,
        measuring=True,
    )
    simulation.reset()
    masses = set()
    for _ in range(10):
        weights = [simulation.model_of(env).body_mass[1:].sum() for env in range(3)]
        gears = [abs(simulation.model_of(env).actuator_gear[0, 0]) for env in range(3)]
        for episode in simulation.step(np.ones((3, 3))).ended:
            assert episode.measures["mass_kg"] == pytest.approx(weights[episode.env])
            assert episode.measures["torque_rms"] == pytest.approx(gears[episode.env], rel=1e-6)
            masses.add(episode.measures["mass_kg"])
    assert len(masses) == 6


class Sensing(Forward):
    """Observes what MuJoCo computes with accelerations."""

    fields = ("sensordata",)

    def observe(self, states: States) -> Any:
        return states.fields["sensordata"].astype(np.float32)


def test_measuring_changes_no_accelerometer_of_any_environment(tmp_path: Path) -> None:
    robot = tmp_path / "hopper.xml"
    spec = mujoco.MjSpec.from_file(str(MJCF / "hopper.xml"))
    body = spec.worldbody.first_body()
    body.add_site(name="imu")
    accelerometer = mujoco.mjtSensor.mjSENS_ACCELEROMETER
    spec.add_sensor(type=accelerometer, objtype=mujoco.mjtObj.mjOBJ_SITE, objname="imu")
    robot.write_text(spec.to_xml())
    observed = []
    for measuring in (False, True):
        model = mujoco.MjModel.from_xml_path(str(robot))
        task = Sensing(model, find_task("forward").Options())
        simulation = Simulation(
            model, task, robot="hopper", n_envs=3, seed=4, n_threads=1, measuring=measuring
        )
        simulation.reset()
        actions = np.random.default_rng(2).uniform(-1, 1, (5, 3, model.nu))
        observed.append([simulation.step(action).observations for action in actions])
    assert np.array_equal(*observed)
