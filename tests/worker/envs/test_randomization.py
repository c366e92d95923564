"""Domain randomisation: every episode draws its robot from the environment's own stream."""

from __future__ import annotations

import dataclasses
import re
import shutil
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import simulation_helpers
import worker_helpers as helpers

from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.messages import ExaminationRequest
from orchestrator.core.numbers.changing_numbers import END, START, TrainingMoment
from orchestrator.worker.envs.model_loading import for_simulation, load_model
from orchestrator.worker.envs.randomization.randomized_fields import (
    PROPERTIES,
    RandomizeError,
    randomized_keys,
)
from orchestrator.worker.envs.randomization.randomized_simulation import RandomizedSimulation
from orchestrator.worker.envs.simulation_factory import make_simulation
from orchestrator.worker.mjspec.model_comparison import differing_fields
from orchestrator.worker.mjspec.spec_attributes import RENAMED, set_attribute
from orchestrator.worker.mjspec.spec_elements import matching_elements
from orchestrator.worker.robots.preflight_child import check

MJCF = Path(__file__).parents[3] / "mjcf"


QUADRUPED = MJCF / "quadruped.xml"


DISTURBED = {
    "observation.noise": "normal(0, 0.01)",
    "observation.delay": "choice(0, 1, 2)",
    "action.delay": "choice(0, 2)",
    "push.speed": "uniform(0.1, 0.5)",
    "push.period": "uniform(0.2, 0.6)",
}


DRAWN = {
    "body.trunk.mass": "scale(0.7, 1.3)",
    "geom.floor.friction": "uniform(0.4, 1.2)",
    "actuator.*.kp": "scale(0.8, 1.2)",
}


TABLE = {
    **DRAWN,
    "body.*_thigh.mass": "uniform(0.1, 1.2)",
    "body.trunk.diaginertia": "scale(0.5, 2)",
    "body.trunk.ipos[0]": "uniform(0.01, 0.05)",
    "body.*_shin.pos": "scale(0.9, 1.1)",
    "geom.*.friction": "normal(0.8, 0.1)",
    "geom.*_foot.size": "scale(0.8, 1.5)",
    "joint.*.damping": "scale(0.5, 2)",
    "joint.*.armature": "loguniform(0.001, 0.02)",
    "joint.*.stiffness": "uniform(0, 3)",
    "joint.*.frictionloss": "uniform(0, 0.2)",
    "joint.*.actuatorfrcrange": "scale(0.5, 1)",
    "actuator.*.gear": "choice(0.8, 1, 1.1)",
    "actuator.*.gainprm": "scale(0.8, 1.2)",
    "actuator.*.biasprm[2]": "uniform(-2, -1)",
    "actuator.*.kv": "uniform(1, 2)",
    "actuator.*.forcerange": "scale(0.5, 1)",
    "option.gravity": "scale(0.9, 1.1)",
    "option.wind[0]": "uniform(-1, 1)",
    "option.viscosity": "uniform(0, 0.1)",
}


def simulation(
    randomize: dict[str, Any] = DRAWN, robot: Path = QUADRUPED, **changes: Any
) -> RandomizedSimulation:
    settings: Any = {"n_envs": 3, "seed": 7} | changes
    options = {"max_episode_steps": 40}
    return RandomizedSimulation(robot, "auto", options, randomize, **settings)


def drawn_by(batch: RandomizedSimulation) -> np.ndarray:
    """``(n_envs, keys)`` what the running episodes have drawn of their robots."""
    return np.column_stack([batch.draws.values[key.key] for key in batch.keys])


def test_every_property_may_be_drawn() -> None:
    drawn = {
        ".".join((*key.split("[")[0].split(".")[:1], key.split("[")[0].split(".")[-1]))
        for key in TABLE
    }
    assert drawn == PROPERTIES.keys()


def edited(key: str, value: float, factor: bool) -> mujoco.MjModel:
    """The robot with the value written into its MJCF, with masses and inertias that do not follow
    from geoms."""
    spec = mujoco.MjSpec.from_file(str(QUADRUPED))
    model = load_model(QUADRUPED)
    kind, attribute = (
        key.split(".", maxsplit=1)[0],
        key.rsplit(".", maxsplit=1)[-1].split("[", maxsplit=1)[0],
    )
    for body in spec.bodies[1:]:
        number = model.body(body.name).id
        body.explicitinertial = True
        body.mass = model.body_mass[number]
        body.inertia = model.body_inertia[number]
        body.ipos, body.iquat = model.body_ipos[number], model.body_iquat[number]
    for _, element in matching_elements(spec, "randomize", key):
        if kind == "joint" and element.type == mujoco.mjtJoint.mjJNT_FREE:
            continue
        if attribute == "mass":
            scale = value if factor else value / element.mass
            element.mass *= scale
            element.inertia = element.inertia * scale
            continue
        if attribute == "ipos":
            element.ipos = [value, *element.ipos[1:]]
            continue
        written: Any = f"*{value!r}" if factor else value
        if "[" in key:
            place = int(key[-2])
            current = getattr(element, RENAMED.get(attribute, attribute))
            written = [written if number == place else "*1" for number in range(len(current))]
        set_attribute(element, kind, attribute, written)
    return for_simulation(spec.compile())


@pytest.mark.parametrize("key", [key for key in TABLE if not key.endswith("actuatorfrcrange")])
def test_the_drawn_robot_moves_like_the_edited_and_recompiled_one(key: str) -> None:
    batch = simulation({key: TABLE[key]}, n_envs=2, seed=3)
    batch.reset()
    values = drawn_by(batch)[:, 0].tolist()
    recompiled = edited(key, values[1], TABLE[key].startswith("scale"))
    shared = ("stat.", "geom_sameframe", "body_sameframe", "opt.disableflags", "bvh_aabb")
    differing = differing_fields(batch.model_of(1), recompiled)
    assert [name for name in differing if not name.startswith(shared)] == []
    data = mujoco.MjData(recompiled)
    mujoco.mj_setState(recompiled, data, batch.physics(1), mujoco.mjtState.mjSTATE_INTEGRATION)
    rest = np.zeros((2, batch.model.nu))
    for _ in range(3):
        batch.step(rest)
        data.ctrl[:] = batch.task.actions.ctrl(batch.task.actions.taken(rest))[1]
        for _ in range(batch.task.frame_skip):
            mujoco.mj_step(recompiled, data)
    assert batch.states.qpos[1] == pytest.approx(data.qpos, abs=1e-7)


def test_each_episode_of_each_environment_draws_anew_and_other_environments_keep_theirs() -> None:
    batch = simulation()
    batch.reset()
    seen, plan = (
        [drawn_by(batch)],
        np.random.default_rng(1).uniform(-1, 1, (100, 3, batch.model.nu)),
    )
    for action in plan:
        ended = [episode.env for episode in batch.step(action).ended]
        changed = (drawn_by(batch) != seen[-1]).any(axis=1).nonzero()[0].tolist()
        assert changed == ended
        seen.append(drawn_by(batch))
    assert len({tuple(row) for drawn in seen for row in drawn}) >= 6


def test_an_environment_draws_the_same_alone_and_among_neighbours_and_with_threads() -> None:
    plan = np.random.default_rng(1).uniform(-1, 1, (90, 3, simulation().model.nu))
    together, threads = (
        simulation({**DRAWN, **DISTURBED}),
        simulation({**DRAWN, **DISTURBED}, n_threads=2),
    )
    assert np.array_equal(together.reset(), threads.reset())
    results = simulation_helpers.steps(together, plan)
    simulation_helpers.assert_same(results, simulation_helpers.steps(threads, plan))
    alone = simulation({**DRAWN, **DISTURBED}, n_envs=1, first_env=2)
    alone.reset()
    for action, (observations, rewards, *_) in zip(plan, results, strict=True):
        own = alone.step(action[2:])
        assert np.array_equal(own.observations[0], observations[2])
        assert own.rewards[0] == rewards[2]


def test_a_saved_state_goes_on_with_the_robots_of_its_episodes() -> None:
    plan = np.random.default_rng(1).uniform(-1, 1, (120, 3, simulation().model.nu))
    whole, copy = (simulation({**DRAWN, **DISTURBED}) for _ in range(2))
    whole.reset()
    *_, (last, *_) = simulation_helpers.steps(whole, plan[:50])
    state = whole.get_state()
    copy.reset()
    assert np.array_equal(copy.set_state(state), last)
    simulation_helpers.assert_same(
        simulation_helpers.steps(whole, plan[50:]), simulation_helpers.steps(copy, plan[50:])
    )


def test_numbers_follow_the_training_and_are_those_of_its_end_elsewhere() -> None:
    growing = {"geom.floor.friction": "uniform(1, linear(1.0001, 3))"}
    batch = simulation(growing, n_envs=32)
    largest = []
    for moment in (START, TrainingMoment(0.5), END):
        batch.moment = moment
        batch.reset()
        largest.append(float(drawn_by(batch).max()))
    assert largest[0] <= 1.0001 < 1.5 < largest[1] <= 2 < largest[2] <= 3
    elsewhere = simulation(growing, n_envs=32)
    elsewhere.reset()
    assert drawn_by(elsewhere).max() > 2


def at_the_same_state(
    randomize: dict[str, str],
) -> tuple[RandomizedSimulation, RandomizedSimulation]:
    """One without and one with disturbances, whose episodes begin with the same robots in the same
    states."""
    plain, disturbed = simulation(), simulation({**DRAWN, **randomize})
    plain.reset()
    disturbed.reset()
    state = plain.get_state()
    arrays = disturbed.get_state()["arrays"] | state["arrays"]
    disturbed.set_state({**state, "arrays": arrays})  # type: ignore[typeddict-item]
    return plain, disturbed


def test_noise_is_added_to_what_the_policy_sees_and_to_nothing_else() -> None:
    plain, disturbed = at_the_same_state({"observation.noise": "normal(0, 0.01)"})
    noise = []
    for action in np.random.default_rng(1).uniform(-0.1, 0.1, (30, 3, plain.model.nu)):
        one, other = plain.step(action), disturbed.step(action)
        assert np.array_equal(one.rewards, other.rewards)
        noise.append(other.observations - one.observations)
    assert np.std(noise) == pytest.approx(0.01, rel=0.1)
    assert np.abs(noise).max() <= 0.03 + 1e-5


def test_noise_may_be_that_of_named_observations() -> None:
    names = list(map(str, simulation().task.observation_terms.names))
    knees = [place for place, name in enumerate(names) if "knee" in name]
    plain, disturbed = at_the_same_state({"observation.noise.*knee*": "uniform(0.1, 0.2)"})
    action = np.zeros((3, plain.model.nu))
    noise = disturbed.step(action).observations - plain.step(action).observations
    assert 0 < len(knees) < len(names)
    assert (noise[:, knees] > 0.099).all()
    assert (noise[:, knees] < 0.201).all()
    assert not np.delete(noise, knees, axis=1).any()


def test_actions_are_late_by_so_many_control_steps_and_were_zeros_before() -> None:
    plain, disturbed = at_the_same_state({"action.delay": "choice(3, 3)"})
    plan = np.random.default_rng(1).uniform(-0.3, 0.3, (20, 3, plain.model.nu))
    late = np.concatenate([np.zeros_like(plan[:3]), plan[:-3]])
    for given, arriving in zip(plan, late, strict=True):
        result, expected = disturbed.step(given), plain.step(arriving)
        assert np.array_equal(result.observations, expected.observations)


def test_rewards_are_of_the_actions_that_the_policy_gives() -> None:
    plain, disturbed = at_the_same_state({"action.delay": "choice(3, 3)"})
    rest, action = np.zeros((3, plain.model.nu)), np.full((3, plain.model.nu), 0.5)
    cost = plain.step(rest).rewards - disturbed.step(action).rewards
    weight = plain.task.options.ctrl_cost_weight
    assert cost == pytest.approx(weight * np.square(action).mean(axis=1))


def test_observations_are_late_by_so_many_control_steps_and_begin_with_the_first() -> None:
    plain, disturbed = simulation(), simulation({**DRAWN, "observation.delay": "choice(2, 2)"})
    disturbed.reset()
    state = disturbed.get_state()
    of_plain = {name: state["arrays"][name] for name in plain.get_state()["arrays"]}
    plain.set_state({**state, "arrays": of_plain})  # type: ignore[typeddict-item]
    first = state["arrays"]["seen"]
    plan = np.random.default_rng(1).uniform(-0.3, 0.3, (20, 3, plain.model.nu))
    at_once = [first, first, *(row[0] for row in simulation_helpers.steps(plain, plan))]
    seen = [first, *(row[0] for row in simulation_helpers.steps(disturbed, plan))]
    assert all(np.array_equal(late, early) for late, early in zip(seen[1:], at_once, strict=False))


def test_pushes_come_at_their_period_in_any_horizontal_direction() -> None:
    plain, disturbed = at_the_same_state(
        {"push.speed": "uniform(1, 1.001)", "push.period": "uniform(0.4, 0.4)"}
    )
    period = round(0.4 / plain.control_period_s)
    rest = np.zeros((3, plain.model.nu))
    for _ in range(period):
        assert np.array_equal(plain.step(rest).observations, disturbed.step(rest).observations)
    plain.step(rest)
    disturbed.step(rest)
    gained = (disturbed.states.qvel - plain.states.qvel)[:, :2]
    assert np.linalg.norm(gained, axis=1) == pytest.approx(1, abs=0.5)
    assert len({tuple(np.sign(row)) for row in gained}) > 1


@pytest.mark.parametrize(
    ("robot", "randomize", "message"),
    [
        ("arm", {"push.speed": "uniform(0, 1)"}, "randomize.push.speed: "),
        (
            "hopper",
            {"observation.noise.antenna": "uniform(0, 1)"},
            "randomize.observation.noise.antenna: no observation of the task has a name like 'antenna'; there are ",
        ),
        (
            "hopper",
            {"push.period": "uniform(1, 2)"},
            "randomize.push.period: there are no pushes; set push.speed",
        ),
    ],
)
def test_pushes_that_cannot_be_are_refused(
    robot: str, randomize: dict[str, str], message: str
) -> None:
    with pytest.raises(RandomizeError, match=re.escape(message)):
        simulation(randomize, MJCF / f"{robot}.xml")


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("body.trunk.mass", "uniform(-1, 1)", "may be -1; expected above 0"),
        ("body.trunk.mass", "uniform(stages(1, -1, 2), 3)", "may be -1; expected above 0"),
        ("body.trunk.mass", "uniform(0, 1)", "may be 0; expected above 0"),
        ("geom.*.friction", "normal(1, 1)", "may be -2; expected at least 0"),
        ("joint.*.damping", "scale(-1, 1)", "may be -1; expected at least 0"),
        (
            "body.nobody.mass",
            "scale(1, 2)",
            "no body with mass to draw is called 'nobody'; there are ",
        ),
        ("body.world.mass", "uniform(1, 2)", "no body with mass to draw is called 'world'"),
        ("body.trunk.pos[0]", "uniform(1, 2)", "no body with pos to draw is called 'trunk'"),
        ("joint.*.actuatorfrcrange", "scale(1, 2)", "its value is 0, which no factor changes"),
        ("actuator.*.forcerange[1]", "scale(1, 2)", "expected factors of all of its numbers"),
        ("geom.floor.size", "scale(1, 2)", "no geom with size to draw is called 'floor'"),
        ("geom.*_foot.size", "uniform(1, 2)", "expected factors"),
        ("joint.*.stiffness", "scale(0.5, 2)", "its value is 0, which no factor changes"),
        ("option.gravity", "uniform(-11, -9)", "name one by its index, such as option.gravity[0]"),
        ("option.gravity[3]", "uniform(-11, -9)", "has 3 numbers"),
        ("joint.*.armature[1]", "uniform(0, 1)", "has 1 numbers"),
        ("geom.*.friction[1]", "uniform(-1, 1)", "may be -1; expected at least 0"),
        *(
            (key, "scale(1, 2)", "expected one of body.NAME.mass, body.NAME.diaginertia, ")
            for key in ("body.trunk.weight", "geom.trunk.density", "option.timestep", "compiler")
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused_by_its_key(key: str, text: str, message: str) -> None:
    with pytest.raises(RandomizeError) as error:
        randomized_keys(load_model(QUADRUPED), {key: text})
    assert str(error.value).startswith(f"randomize.{key}: ")
    assert message in str(error.value)


def test_of_two_keys_for_a_value_the_name_counts_and_not_the_pattern() -> None:
    batch = simulation({"geom.floor.friction": "uniform(8, 9)", "geom.*.friction": "uniform(1, 2)"})
    batch.reset()
    assert (batch.model_of(0).geom("floor").friction[0] > 8) is np.True_
    assert batch.model_of(0).geom("trunk").friction[0] < 2


def test_a_name_replaces_the_key_of_its_element_from_a_pattern_with_each() -> None:
    model = load_model(QUADRUPED)
    declared = {"body.trunk.mass": "uniform(8, 9)", "body.*.mass": "each uniform(1, 2)"}
    keys = randomized_keys(model, declared)
    lowest = {key.key: key.distribution.extremes[0] for key in keys}
    assert len(lowest) == len(keys) == model.nbody - 1
    assert lowest.pop("body.trunk.mass") == 8
    assert set(lowest.values()) == {1}


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("body.*.diaginertia", "body.*.mass"),
        ("actuator.*.gainprm[0]", "actuator.*.kp"),
    ],
)
def test_attributes_that_change_the_same_numbers_are_refused(earlier: str, later: str) -> None:
    model = load_model(QUADRUPED)
    both = dict.fromkeys((later, earlier), "scale(1, 2)")
    message = re.escape(f"randomize.{later}: changes ") + ".*" + re.escape(f"as {earlier} does")
    with pytest.raises(RandomizeError, match=message):
        randomized_keys(model, both)
    apart = {"body.trunk.mass": "scale(1, 2)", "body.*_shin.diaginertia": "scale(1, 2)"}
    assert len(randomized_keys(model, apart)) == 2


def test_the_gear_of_a_muscle_cannot_be_drawn() -> None:
    slider = '<body><joint name="slide" type="slide"/><geom size=".1"/></body>'
    muscle = '<muscle name="flexor" joint="slide" lengthrange="0 1"/>'
    model = mujoco.MjModel.from_xml_string(
        f"<mujoco><worldbody>{slider}</worldbody><actuator>{muscle}</actuator></mujoco>"
    )
    with pytest.raises(RandomizeError, match="no actuator with gear to draw is called"):
        randomized_keys(model, {"actuator.*.gear": "scale(1, 2)"})


def test_each_element_of_a_pattern_draws_its_own_value() -> None:
    made = simulation(
        {"body.*.mass": "each scale(0.5, 2)", "joint.*.damping": "each scale(0.5, 2)"}
    )
    names = [key.key for key in made.keys]
    bodies = [made.model.body(number).name for number in range(1, made.model.nbody)]
    assert {name for name in names if name.startswith("body")} == {
        f"body.{name}.mass" for name in bodies
    }
    made.reset()
    shares = made.model_of(0).body_mass[1:] / made.model.body_mass[1:]
    assert len(np.unique(shares.round(6))) == len(shares)
    drawn = dict(zip(names, drawn_by(made)[0].tolist(), strict=True))
    expected = [drawn[f"body.{name}.mass"] for name in bodies]
    np.testing.assert_allclose(shares, expected)
    again = simulation(
        {"body.*.mass": "each scale(0.5, 2)", "joint.*.damping": "each scale(0.5, 2)"}
    )
    again.reset()
    assert drawn_by(made).tobytes() == drawn_by(again).tobytes()


@pytest.mark.parametrize("asymmetric", [False, True])
def test_nothing_is_drawn_for_the_nominal_robot(asymmetric: bool) -> None:
    randomize = {
        **DRAWN,
        **DISTURBED,
        "terrain": "rough(0.05)",
        "start.height": "uniform(0.1, 0.2)",
    }
    settings: dict[str, Any] = {"n_envs": 3, "seed": 7, "asymmetric": asymmetric}
    options = {"max_episode_steps": 40}
    drawn = make_simulation(QUADRUPED, "auto", options, randomize, **settings)
    nominal = make_simulation(QUADRUPED, "auto", options, randomize, nominal=True, **settings)
    plain = make_simulation(QUADRUPED, "auto", options, {}, **{**settings, "asymmetric": False})
    assert nominal.observation_size == drawn.observation_size
    assert nominal.observation_names() == drawn.observation_names()
    size = plain.observation_size
    chance = np.random.default_rng(0)
    observed, expected = nominal.reset(), plain.reset()
    for _ in range(60):
        np.testing.assert_array_equal(observed[:, :size], expected)
        assert not observed[:, size:].any()
        actions = chance.uniform(-1, 1, (3, plain.model.nu))
        observed, expected = (made.step(actions).observations for made in (nominal, plain))


def test_the_critic_sees_what_each_element_has_drawn() -> None:
    made = simulation({"body.*.mass": "each scale(0.5, 2)"}, asymmetric=True)
    assert made.privileged_names == tuple(key.key for key in made.keys)
    observed = made.reset()
    shown = observed[:, -len(made.keys) :]
    np.testing.assert_allclose(shown, drawn_by(made).astype(np.float32))


def test_after_a_seed_everything_is_drawn_as_the_first_time() -> None:
    batch, plan = (
        simulation({**DRAWN, **DISTURBED}),
        np.random.default_rng(1).uniform(-1, 1, (50, 3, 8)),
    )
    results = []
    for _ in range(2):
        batch.seed(5)
        batch.reset()
        results.append(simulation_helpers.steps(batch, plan[: len(plan) - 5 * len(results)]))
        simulation_helpers.steps(batch, plan[:5])
    simulation_helpers.assert_same(results[0][: len(results[1])], results[1])


@pytest.mark.parametrize(
    ("robot", "randomize", "problem"),
    [
        ("quadruped", {**DRAWN, **DISTURBED}, None),
        ("arm", {"push.speed": "uniform(0, 1)"}, "randomize.push.speed: "),
        (
            "quadruped",
            {"push.period": "uniform(1, 2)"},
            "randomize.push.period: there are no pushes",
        ),
        (
            "quadruped",
            {"body.trunk.weight": "scale(1, 2)"},
            "randomize.body.trunk.weight: cannot be drawn",
        ),
    ],
)
def test_the_examination_before_the_launch_finds_what_cannot_be_drawn(
    robot: str, randomize: dict[str, str], problem: str | None
) -> None:
    request = ExaminationRequest(
        xml=str(MJCF / f"{robot}.xml"), task="auto", randomize=randomize, simulate_s=0.02
    )
    answer = check(request)
    assert (answer.problem is None) == (problem is None), answer.problem
    assert str(problem or "None") in str(answer.problem)


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
    growing = {**DRAWN, **DISTURBED, "joint.*.damping": "scale(linear(1, 0.5), linear(1.001, 2))"}
    given: dict[str, Any] = {
        "task": "forward",
        "xml": "robot/quadruped.xml",
        "randomize": growing,
        "learner": learner,
    }
    spec = helpers.algorithm(algo, **given, eval_episodes=2, task_options={"max_episode_steps": 40})
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
    assert (resumed.code, resumed.resumed_from) == (
        ExitCode.SUCCEEDED,
        640 if algo == "ppo" else 1024,
    ), log
    assert resumed.weights_sha256 == record.weights_sha256
    assert parts.eval.read_bytes() == whole.eval.read_bytes()
