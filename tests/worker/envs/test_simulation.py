"""The batched environment: same numbers alone or in a batch, and after any restore."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import simulation_helpers

from orchestrator.worker.envs.divergence import PhysicsDiverged
from orchestrator.worker.envs.model_loading import load_model
from orchestrator.worker.envs.simulation import Simulation
from orchestrator.worker.tasks import States
from orchestrator.worker.tasks.stand import Stand

MJCF = Path(__file__).parents[3] / "mjcf"
ROBOTS = sorted([*MJCF.glob("*.xml"), *MJCF.glob("zoo/*.xml")])


MID_EPISODE = {"max_episode_steps": 30}
TASKS = [
    ("hopper", "forward", MID_EPISODE),
    ("quadruped", "forward", MID_EPISODE),
    ("frog", "forward", MID_EPISODE),
    ("balancer", "balance", MID_EPISODE),
    ("arm", "reach", MID_EPISODE),
    ("biped", "stand", {**MID_EPISODE, "push_period_s": 0.3}),
    ("dog", "track", {**MID_EPISODE, "command_period_s": 0.3}),
    ("walker", "track", {**MID_EPISODE, "command_period_s": 0.3}),
]
"""Robot, task and options with which episodes, goals and pushes come and go within 160 steps."""


def make(
    robot: str = "hopper",
    n_envs: int = 3,
    seed: int = 7,
    *,
    task: str = "auto",
    n_threads: int = 1,
    **options: object,
) -> Simulation:
    xml = MJCF / f"{robot}.xml"
    return Simulation.from_xml(
        xml, task, n_envs=n_envs, seed=seed, n_threads=n_threads, task_options=options
    )


def actions(simulation: Simulation, steps: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).uniform(
        -1.2, 1.2, (steps, simulation.n_envs, simulation.model.nu)
    )


@pytest.mark.parametrize("robot", ROBOTS, ids=lambda path: path.stem)
def test_every_robot_of_ours_stands_and_steps(robot: Path) -> None:
    simulation = Simulation.from_xml(robot, "auto", n_envs=2, seed=0)
    observations = simulation.reset()
    assert observations.dtype == np.float32
    assert observations.shape == (2, simulation.observation_size)
    for _ in range(10):
        result = simulation.step(np.zeros((2, simulation.model.nu)))
        assert not result.done.any()


@pytest.mark.parametrize("robot", ["hopper", "quadruped", "balancer"])
def test_batch_equals_one_mj_step_loop_per_environment(robot: str) -> None:
    simulation = make(robot)
    simulation.reset()
    model, skip = simulation.model, simulation.task.frame_skip
    alone = [mujoco.MjData(model) for _ in range(3)]
    for env, data in enumerate(alone):
        data.qpos[:], data.qvel[:] = simulation.states.qpos[env], simulation.states.qvel[env]
    for action in actions(simulation, 4):
        result = simulation.step(action)
        assert not result.done.any()
        for env, data in enumerate(alone):
            low, high = model.actuator_ctrlrange.T
            data.ctrl[:] = np.clip(action[env], -1, 1) * ((high - low) / 2) + (high + low) / 2
            mujoco.mj_step(model, data, nstep=skip)
            assert np.array_equal(data.qpos, simulation.states.qpos[env])
            assert np.array_equal(data.qvel, simulation.states.qvel[env])


DEAR = (("frog", "forward"), ("dog", "track"), ("walker", "forward"))
"""Robots of other bodies and tasks show the same for less."""


@pytest.mark.parametrize(
    ("robot", "task", "options"),
    [
        pytest.param(*one, marks=[pytest.mark.nightly] * (one[:2] in DEAR))
        for one in (*TASKS, ("walker", "forward", {}), ("hexapod", "forward", {}))
    ],
)
def test_an_environment_alone_gives_what_it_gives_in_a_batch_of_eight(
    robot: str, task: str, options: dict[str, object]
) -> None:
    batch, single = (make(robot, n_envs=n_envs, task=task, **options) for n_envs in (8, 1))
    single.generators = [make(robot, n_envs=8).generators[5]]
    assert np.array_equal(batch.reset()[5], single.reset()[0])
    for action in actions(batch, 120):
        together, alone = batch.step(action), single.step(action[5:6])
        assert np.array_equal(together.observations[5], alone.observations[0])
        assert together.rewards[5] == alone.rewards[0]
        assert together.done[5] == alone.done[0]


def test_environments_and_seeds_start_differently() -> None:
    first, other = make(seed=1).reset(), make(seed=2).reset()
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(first, other)
    assert np.array_equal(first, make(seed=1).reset())


@pytest.fixture(scope="module")
def continued(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[list[Any], list[Any]]]:
    cases = [(str(MJCF / f"{robot}.xml"), task, options) for robot, task, options in TASKS]
    return simulation_helpers.continued(cases, tmp_path_factory.mktemp("continued"), 80, 80)


@pytest.mark.parametrize(
    "number", range(len(TASKS)), ids=[f"{robot}-{task}" for robot, task, _ in TASKS]
)
def test_state_restored_in_a_fresh_process_continues_bit_identically(
    continued: list[tuple[list[Any], list[Any]]], number: int
) -> None:
    expected, found = continued[number]
    assert sum(len(ended) for *_, ended in expected) > 3
    simulation_helpers.assert_same(expected, found)


@pytest.mark.parametrize(("robot", "task", "options"), TASKS)
def test_restoring_gives_the_current_observations(
    robot: str, task: str, options: dict[str, object]
) -> None:
    simulation = make(robot, task=task, **options)
    simulation.reset()
    last = simulation.step(actions(simulation, 1)[0]).observations
    assert np.array_equal(
        make(robot, seed=0, task=task, **options).set_state(simulation.get_state()), last
    )


class Felt(Stand):
    """Shows derived fields, of which contact forces need the most care."""

    fields = ("cvel", "cfrc_ext", "sensordata")

    def __init__(self, model: mujoco.MjModel, options: Any) -> None:
        super().__init__(model, options)
        self.fields = type(self).fields

    def observe(self, states: States) -> np.ndarray:
        return np.concatenate(
            [states.fields[name].reshape(len(states.qpos), -1) for name in self.fields], axis=1
        )


def felt(
    tmp_path: Path, kind: type[Felt], n_envs: int, seed: int = 0, n_threads: int = 1
) -> Simulation:
    spec = mujoco.MjSpec.from_file(str(MJCF / "quadruped.xml"))
    spec.bodies[1].add_site(name="felt here")
    for sensor in (mujoco.mjtSensor.mjSENS_ACCELEROMETER, mujoco.mjtSensor.mjSENS_GYRO):
        spec.add_sensor(type=sensor, objtype=mujoco.mjtObj.mjOBJ_SITE, objname="felt here")
    spec.compile()
    (tmp_path / "felt.xml").write_text(spec.to_xml())
    model = load_model(tmp_path / "felt.xml")
    task = kind(model, kind.Options(push_period_s=0.2, max_episode_steps=30))
    return Simulation(model, task, n_envs=n_envs, seed=seed, n_threads=n_threads, robot="felt")


def test_fields_are_current_at_the_start_after_steps_and_after_pushes(tmp_path: Path) -> None:
    simulation = felt(tmp_path, Felt, 2)
    seen, forces = simulation.reset(), 0.0
    for action in actions(simulation, 40):
        for env in range(2):
            data = simulation.data(env)
            mujoco.mj_rnePostConstraint(simulation.model, data)
            split = 12 * simulation.model.nbody
            assert seen[env, :split] == pytest.approx(
                np.concatenate((data.cvel.ravel(), data.cfrc_ext.ravel())), 1e-4, 1e-4
            )
            assert seen[env, -3:] == pytest.approx(data.sensordata[-3:])
            forces = max(forces, np.abs(data.cfrc_ext).max())
        seen = simulation.step(action).observations
    assert forces > 1.0, "there were contacts"


def steps_with_threads(simulations: Iterable[Simulation], steps: int = 100) -> list[list[Any]]:
    """The first observations, then everything that each step gives."""
    return [
        [
            [simulation.reset(), []],
            *simulation_helpers.steps(simulation, actions(simulation, steps)),
        ]
        for simulation in simulations
    ]


@pytest.mark.parametrize(("robot", "task", "options"), TASKS[1::2])
def test_the_number_of_threads_changes_no_bit(
    robot: str, task: str, options: dict[str, object]
) -> None:
    simulations = (
        make(robot, n_envs=5, task=task, n_threads=n_threads, **options) for n_threads in (1, 3)
    )
    one, three = steps_with_threads(simulations)
    assert sum(len(ended) for *_, ended in one) > 5
    simulation_helpers.assert_same(one, three)


def test_state_of_another_robot_is_refused() -> None:
    with pytest.raises(ValueError, match=r"hopper\.xml: the saved state has physics"):
        make("hopper").set_state(make("walker").get_state())


def test_a_saved_array_of_another_shape_is_not_broadcast() -> None:
    simulation = make("arm")
    state = simulation.get_state()
    state["arrays"]["goals"] = state["arrays"]["goals"][:, :1]
    with pytest.raises(ValueError, match=r"goals of shape \(3, 1\), expected \(3, 3\)"):
        simulation.set_state(state)


def test_episode_statistics_add_up_and_truncation_is_told_from_termination() -> None:
    simulation = make("hopper", max_episode_steps=12)
    simulation.reset()
    totals, lengths, kinds = np.zeros(3), np.zeros(3, int), set()
    for action in actions(simulation, 200):
        result = simulation.step(action)
        totals += result.rewards
        lengths += 1
        assert [episode.env for episode in result.ended] == result.done.nonzero()[0].tolist()
        for episode in result.ended:
            assert episode.total_reward == pytest.approx(totals[episode.env])
            assert episode.length == lengths[episode.env]
            assert episode.length == 12 or not episode.truncated
            assert not np.array_equal(
                episode.terminal_observation, result.observations[episode.env]
            )
            totals[episode.env] = lengths[episode.env] = 0
            kinds.add(episode.truncated)
    assert kinds == {True, False}


@pytest.mark.parametrize(
    ("component", "index", "value", "message"),
    [
        ("qvel", 4, np.nan, r"velocity of joint 'knee'"),
        ("qpos", 1, 1e12, r"position of joint 'root_z'"),
    ],
)
def test_divergence_names_robot_environment_time_and_joint(
    component: str, index: int, value: float, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    simulation = make()
    simulation.reset()
    simulation.step(np.zeros((3, 3)))
    getattr(simulation.states, component)[1, index] = value
    with pytest.raises(
        PhysicsDiverged,
        match=rf"hopper\.xml: environment 1 at simulation time 0\.040 s .*{message}",
    ):
        simulation.step(np.zeros((3, 3)))
    assert "unstable" in capfd.readouterr().err


def step_five_times(simulation: Simulation) -> None:
    for _ in range(5):
        simulation.step(np.ones((3, 3)))


def test_motors_too_strong_for_the_time_step_diverge_and_leave_no_log_file_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    xml = tmp_path / "mighty.xml"
    xml.write_text((MJCF / "hopper.xml").read_text().replace('gear="110"', 'gear="1e16"'))
    simulation = Simulation.from_xml(xml, "forward", n_envs=3, seed=0)
    simulation.reset()
    with pytest.raises(
        PhysicsDiverged, match=r"mighty\.xml: .* of joint '(hip|knee|ankle|root_\w+)'"
    ):
        step_five_times(simulation)
    assert [path.name for path in tmp_path.iterdir()] == ["mighty.xml"]


def test_an_action_that_is_not_a_number_is_a_divergence() -> None:
    simulation = make()
    simulation.reset()
    action = np.zeros((3, 3))
    action[2, 1] = np.nan
    with pytest.raises(PhysicsDiverged, match=r"environment 2 .* control of actuator 'knee'"):
        simulation.step(action)


def test_sleeping_is_switched_off_since_its_state_cannot_be_saved(tmp_path: Path) -> None:
    xml = tmp_path / "sleepy.xml"
    option = '<option timestep="0.005" integrator="implicitfast"'
    xml.write_text(
        (MJCF / "hopper.xml")
        .read_text()
        .replace(f"{option}/>", f'{option}><flag sleep="enable"/></option>')
    )
    assert not load_model(xml).opt.enableflags & int(mujoco.mjtEnableBit.mjENBL_SLEEP)


def test_infinite_limits_of_a_model_mean_none(tmp_path: Path) -> None:
    joint = '<joint name="{}" range="{}" actuatorfrcrange="-inf inf"/>'
    (tmp_path / "r.xml").write_text(
        f"<mujoco><worldbody><body>{joint.format('a', '-inf inf')}{joint.format('b', '-inf 90')}"
        '<geom size=".1"/></body></worldbody><actuator><motor joint="a" ctrlrange="-inf inf" '
        'forcerange="-1e300 inf"/></actuator></mujoco>'
    )
    model = load_model(tmp_path / "r.xml")
    assert model.jnt_limited.tolist() == [0, 1]
    assert model.jnt_range[1].tolist() == [-mujoco.mjMAXVAL, pytest.approx(np.pi / 2)]
    for limited in (
        model.jnt_actfrclimited,
        model.actuator_ctrllimited,
        model.actuator_forcelimited,
    ):
        assert not limited.any()
    assert np.isfinite(model.actuator_ctrlrange).all()
