"""Domain randomisation: every episode draws its robot from the environment's own stream."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np
import pytest
import simulation_helpers
import worker_helpers as helpers

from orchestrator.core.errors import UsageError
from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.messages import ExaminationRequest
from orchestrator.core.numbers.changing_numbers import END, START, TrainingMoment
from orchestrator.core.numbers.distributions import by_number
from orchestrator.core.numbers.evaluation_grid import EvaluationGrid
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.worker.envs.divergence import PhysicsDiverged
from orchestrator.worker.envs.episode_conditions import GridPlaces
from orchestrator.worker.envs.model_loading import for_simulation, load_model
from orchestrator.worker.envs.randomization import randomized_fields
from orchestrator.worker.envs.randomization.disturbances import Disturbances
from orchestrator.worker.envs.randomization.randomized_fields import RandomizeError, randomized_keys
from orchestrator.worker.envs.randomization.randomized_simulation import RandomizedSimulation
from orchestrator.worker.envs.simulation import Simulation
from orchestrator.worker.envs.simulation_factory import make_simulation
from orchestrator.worker.mjspec.model_comparison import differing_fields
from orchestrator.worker.mjspec.spec_attributes import attribute_names, set_attribute
from orchestrator.worker.mjspec.spec_elements import matching_elements
from orchestrator.worker.policies.task_env import TaskEnv
from orchestrator.worker.robots.preflight_child import check
from orchestrator.worker.robots.robot_preparation import RecentRobot
from orchestrator.worker.tasks import TASKS
from orchestrator.worker.tasks.gymnasium_tasks import default_xml

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
FIELDS = {
    **DRAWN,
    "body.*_thigh.mass": "uniform(0.1, 1.2)",
    "body.*_shin.pos": "scale(0.9, 1.1)",
    "geom.*.density": "scale(0.9, 1.2)",
    "geom.*.friction": "normal(0.8, 0.1)",
    "geom.*.solref": "scale(1, 2)",
    "joint.*.damping": "scale(0.5, 2)",
    "joint.*.armature": "loguniform(0.001, 0.02)",
    "joint.*.frictionloss": "uniform(0, 0.2)",
    "joint.*.stiffness": "uniform(0, 3)",
    "joint.*.range": "scale(0.9, 1)",
    "actuator.*.gear": "choice(0.8, 1, 1.1)",
    "actuator.*.forcerange": "scale(0.5, 1)",
    "option.gravity": "scale(0.9, 1.1)",
    "option.viscosity": "uniform(0, 0.1)",
}


def simulation(
    randomize: dict[str, Any] = DRAWN, robot: Path = QUADRUPED, **changes: Any
) -> RandomizedSimulation:
    settings: Any = {"n_envs": 3, "seed": 7} | changes
    options = {"max_episode_steps": 40}
    return RandomizedSimulation(robot, "auto", options, randomize, **settings)


def edited(key: str, value: float, factor: bool) -> mujoco.MjModel:
    """The robot with the value written into its MJCF."""
    spec = mujoco.MjSpec.from_file(str(QUADRUPED))
    mass = {
        body.name: mass
        for body, mass in zip(spec.bodies, load_model(QUADRUPED).body_mass, strict=True)
    }
    for _, element in matching_elements(spec, "randomize", key):
        if key.startswith("joint.*") and element.type == mujoco.mjtJoint.mjJNT_FREE:
            continue
        if key.endswith(".mass"):
            for geom in element.geoms:
                geom.density *= value if factor else value / mass[element.name]
        else:
            set_attribute(
                element,
                key.split(".", maxsplit=1)[0],
                key.rsplit(".", maxsplit=1)[-1],
                f"*{value!r}" if factor else value,
            )
    return spec.compile()


@pytest.mark.parametrize("key", FIELDS)
def test_the_drawn_robot_is_the_edited_and_recompiled_one_and_moves_like_it(key: str) -> None:
    """But for statistics of the whole robot, which scale the tolerance of the solver."""
    batch = simulation({key: FIELDS[key]}, seed=3)
    batch.reset()
    values = batch.drawn[:, 0].tolist()
    assert len(set(values)) > 1
    for env, value in enumerate(values):
        recompiled = edited(key, value, FIELDS[key].startswith("scale"))
        recompiled.opt.enableflags, recompiled.opt.disableflags = (
            batch.model.opt.enableflags,
            batch.model.opt.disableflags,
        )
        assert [
            name
            for name in differing_fields(batch.model_of(env), recompiled)
            if name[:5] != "stat."
        ] == []
    last = len(values) - 1
    data = mujoco.MjData(recompiled)
    mujoco.mj_setState(recompiled, data, batch.physics(last), mujoco.mjtState.mjSTATE_INTEGRATION)
    rest = np.zeros((3, batch.model.nu))
    batch.step(rest)
    data.ctrl[:] = batch.task.actions.ctrl(batch.task.actions.taken(rest))[last]
    for _ in range(batch.task.frame_skip):
        mujoco.mj_step(recompiled, data)
    assert batch.states.qpos[last] == pytest.approx(data.qpos, abs=1e-9)


USUAL = {
    "body.*.mass",
    "body.*.pos",
    "joint.*.armature",
    "geom.*.friction",
    "actuator.*.kp",
}
"""Attributes that are drawn often."""


def test_whatever_attribute_can_be_drawn_gives_the_edited_and_recompiled_robot() -> None:
    every = 6
    """One attribute in so many is tried, beside the usual ones."""
    model, spec = load_model(QUADRUPED), mujoco.MjSpec.from_file(str(QUADRUPED))
    elements = {
        "body": spec.bodies,
        "joint": spec.joints,
        "geom": spec.geoms,
        "actuator": spec.actuators,
    }
    keys = [
        f"{kind}.*.{name}"
        for kind, (*_, last) in elements.items()
        for name in attribute_names(last, kind)
    ] + [f"option.{name}" for name in attribute_names(spec.option, "option")]
    keys = [key for number, key in enumerate(keys) if key in USUAL or number % every == 0]
    accepted: dict[str, str] = {}
    for key, text in itertools.product(keys, ("scale(0.9, 1.1)", "uniform(0.01, 0.02)")):
        with contextlib.suppress(RandomizeError):
            randomized_keys(QUADRUPED, model, {key: text})
            accepted.setdefault(key, text)
    assert len(accepted) > len(USUAL) + 30 // every
    assert accepted.keys() >= USUAL
    for key, text in accepted.items():
        batch = simulation({key: text}, n_envs=1)
        batch.reset()
        recompiled = for_simulation(edited(key, float(batch.drawn[0, 0]), text.startswith("scale")))
        differing = differing_fields(batch.model_of(0), recompiled)
        assert [name for name in differing if name[:5] != "stat."] == [], key


def test_each_episode_of_each_environment_draws_anew_and_other_environments_keep_theirs() -> None:
    batch = simulation()
    batch.reset()
    seen, plan = (
        [batch.drawn.copy()],
        np.random.default_rng(1).uniform(-1, 1, (100, 3, batch.model.nu)),
    )
    for action in plan:
        ended = [episode.env for episode in batch.step(action).ended]
        changed = (batch.drawn != seen[-1]).any(axis=1).nonzero()[0].tolist()
        assert changed == ended
        seen.append(batch.drawn.copy())
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
        largest.append(float(batch.drawn.max()))
    assert largest[0] <= 1.0001 < 1.5 < largest[1] <= 2 < largest[2] <= 3
    elsewhere = simulation(growing, n_envs=32)
    elsewhere.reset()
    assert elsewhere.drawn.max() > 2


def at_the_same_state(
    randomize: dict[str, str],
) -> tuple[RandomizedSimulation, RandomizedSimulation]:
    """One without and one with disturbances, whose episodes begin with the same robots in the same
    states."""
    plain, disturbed = simulation(), simulation({**DRAWN, **randomize})
    plain.reset()
    disturbed.reset()
    disturbed.set_state(
        {**plain.get_state(), "disturbances": disturbed.get_state()["disturbances"]}
    )
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
    names = list(map(str, simulation().task.observation_names() or ()))
    knees = [place for place, name in enumerate(names) if "knee" in name]
    plain, disturbed = at_the_same_state({"observation.noise.*knee*": "uniform(0.1, 0.2)"})
    action = np.zeros((3, plain.model.nu))
    noise = disturbed.step(action).observations - plain.step(action).observations
    assert 0 < len(knees) < len(names)
    assert (noise[:, knees] > 0.099).all()
    assert (noise[:, knees] < 0.201).all()
    assert not np.delete(noise, knees, axis=1).any()


def test_noise_by_name_does_not_take_names_of_a_built_in_task_for_those_of_a_users() -> None:
    model = load_model(QUADRUPED)
    observes = {"observe": lambda self, states: states.qvel.copy(), "__module__": "users"}
    seen = np.zeros((2, model.nv), np.float32)
    key = "observation.noise.*knee*"
    users = type("Users", (TASKS["forward"],), dict(observes))
    with pytest.raises(RandomizeError, match="observations of this task have no names"):
        Disturbances({key: "uniform(0.1, 0.2)"}, users(model, users.Options()), seen)
    names = {"observation_names": lambda self: [*"abcdefghijklm", "left knee"]}
    named = type("Named", (TASKS["forward"],), {**observes, **names})
    disturbances = Disturbances({key: "uniform(0.1, 0.2)"}, named(model, named.Options()), seen)
    generators = [np.random.default_rng(number) for number in range(2)]
    noisy = disturbances.disturbed_observations(seen.copy(), generators, END)
    assert (noisy[:, -1] > 0.099).all()
    assert not noisy[:, :-1].any()


def test_actions_are_late_by_so_many_control_steps_and_were_zeros_before() -> None:
    plain, disturbed = at_the_same_state({"action.delay": "choice(3, 3)"})
    plan = np.random.default_rng(1).uniform(-0.3, 0.3, (20, 3, plain.model.nu))
    late = np.concatenate([np.zeros_like(plan[:3]), plan[:-3]])
    simulation_helpers.assert_same(
        simulation_helpers.steps(plain, late), simulation_helpers.steps(disturbed, plan)
    )


def test_observations_are_late_by_so_many_control_steps_and_begin_with_the_first() -> None:
    plain, disturbed = simulation(), simulation({**DRAWN, "observation.delay": "choice(2, 2)"})
    disturbed.reset()
    state = disturbed.get_state()
    plain.set_state({**state, "disturbances": plain.get_state()["disturbances"]})
    first = state["disturbances"]["seen"]
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
            "randomize.observation.noise.antenna: no observation of the task matches 'antenna'; there are ",
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


def test_contact_forces_are_computed_with_the_drawn_robot() -> None:
    """Gymnasium's Ant observes ``cfrc_ext``, which is computed outside of the batch, with a model
    for each robot."""
    ant = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets" / "ant.xml"
    batch = RandomizedSimulation(
        ant, "gymnasium:Ant-v5", {}, {"body.torso.mass": "scale(2, 30)"}, n_envs=2, seed=0
    )
    batch.reset()
    simulation_helpers.steps(batch, np.zeros((60, 2, batch.model.nu)))
    for env, factor in enumerate(batch.drawn[:, 0]):
        model = batch.model_of(env)
        assert model is batch.model_of(env)
        assert model.body("torso").mass[0] == pytest.approx(
            batch.model.body("torso").mass[0] * factor
        )
        lifted = batch.states.fields["cfrc_ext"][env, :, 5].sum()
        assert lifted == pytest.approx(model.body_mass.sum() * 9.81, rel=0.2), (
            "it lies on the floor"
        )


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("body.trunk.mass", "uniform(-1, 1)", "may be -1, and mass is never below 0"),
        ("body.trunk.mass", "uniform(stages(1, -1, 2), 3)", "may be -1, and mass is never below 0"),
        (
            "body.trunk.mass",
            "uniform(0, 1)",
            "may draw a mass that is not above 0 for the body 'trunk'",
        ),
        ("geom.*.friction", "normal(1, 1)", "may be -2, and friction is never below 0"),
        ("joint.*.damping", "scale(-1, 1)", "may be -1, and damping is never below 0"),
        ("geom.trunk.size", "scale(-1, 1)", "MuJoCo refuses the value *-1.0"),
        (
            "body.nobody.mass",
            "scale(1, 2)",
            "no body of the robot is called 'nobody'; there are world, trunk",
        ),
        ("body.world.mass", "uniform(1, 2)", "'world' has no mass of its own"),
        ("body.trunk.weight", "scale(1, 2)", "body has no attribute 'weight' to edit"),
        ("body.trunk.geoms", "uniform(1, 2)", "body has no attribute 'geoms' to edit"),
        ("body.trunk.add_geom", "uniform(1, 2)", "body has no attribute 'add_geom' to edit"),
        (
            "geom.trunk.size",
            "scale(0.9, 1.1)",
            "cannot be drawn for each episode; vary it with a matrix of model.geom",
        ),
        (
            "body.trunk.gravcomp",
            "uniform(0, 1)",
            "which MuJoCo cannot vary between environments; vary it with a matrix",
        ),
        (
            "option.timestep",
            "scale(0.5, 1)",
            "the number of physics steps in a control period depends on it",
        ),
        ("joint.*.damping", "uniform(1, 1)", "always draws 1; write model.joint.*.damping instead"),
        ("option.gravity", "uniform(-11, -9)", "gravity takes 3 values, found 1"),
        (
            "option.gravity[3]",
            "uniform(-11, -9)",
            "there is no gravity[3]: gravity has 3 numbers, counted from 0",
        ),
        ("joint.*.armature[0]", "uniform(0, 1)", "armature is no attribute of several numbers"),
        ("geom.*.friction[1]", "uniform(-1, 1)", "may be -1, and friction is never below 0"),
    ],
)
def test_what_cannot_be_drawn_is_refused_by_its_key(key: str, text: str, message: str) -> None:
    with pytest.raises(RandomizeError) as error:
        randomized_keys(QUADRUPED, load_model(QUADRUPED), {key: text})
    assert str(error.value).startswith(f"randomize.{key}: ")
    assert message in str(error.value)


def test_one_number_of_an_attribute_may_be_drawn() -> None:
    batch = simulation(
        {"option.wind[0]": "uniform(-3, 3)", "geom.*.friction[1]": "uniform(0.01, 0.1)"}
    )
    batch.reset()
    for env, (rolling, wind) in enumerate(batch.drawn):
        assert batch.model_of(env).opt.wind == pytest.approx([wind, 0, 0])
        assert batch.model_of(env).geom("floor").friction == pytest.approx([1, rolling, 0.01])


def test_a_list_draws_some_numbers_of_an_attribute_and_sets_others() -> None:
    wind = {"option.wind": ["uniform(-3, 3)", 0.5], "option.wind[2]": "uniform(0, 1)"}
    batch = simulation({"geom.floor.friction": ["uniform(0.4, 1.2)", 0.02, 0.0001], **wind})
    drawn = ["geom.floor.friction[0]", "option.wind[0]", "option.wind[2]"]
    assert [key.key for key in batch.keys] == drawn, "what is not drawn is no value of an episode"
    for _ in range(2):
        batch.reset()
        for env, (sliding, along, up) in enumerate(batch.drawn):
            spec = mujoco.MjSpec.from_file(str(QUADRUPED))
            spec.geom("floor").friction, spec.option.wind = (
                [sliding, 0.02, 0.0001],
                [along, 0.5, up],
            )
            differing = differing_fields(batch.model_of(env), for_simulation(spec.compile()))
            assert [name for name in differing if name[:5] != "stat."] == []
    assert len(set(batch.drawn[:, 0])) == 3


def test_what_mujoco_derives_follows_a_list_that_only_sets() -> None:
    batch = simulation({"body.front_left_thigh.pos": [0.3, 0.2, 0.0]})
    assert batch.keys == []
    spec = mujoco.MjSpec.from_file(str(QUADRUPED))
    spec.body("front_left_thigh").pos = [0.3, 0.2, 0.0]
    expected = for_simulation(spec.compile())
    assert "dof_invweight0" in differing_fields(load_model(QUADRUPED), expected)
    batch.reset()
    for env in range(3):
        differing = differing_fields(batch.model_of(env), expected)
        assert [name for name in differing if name[:5] != "stat."] == []


@pytest.mark.parametrize(
    ("randomize", "message"),
    [
        (
            {"geom.*.friction": ["uniform(0.4, 1.2)", -0.1]},
            "randomize.geom.*.friction[1]: is -0.1, and friction is never below 0; expected at least 0",
        ),
        (
            {"geom.*.friction": ["uniform(0, 1)", 0.1, 0.1, 0.1]},
            "randomize.geom.*.friction[3]: there is no friction[3]: friction has 3 numbers, counted from 0",
        ),
        (
            {"geom.*.friction": ["uniform(0, 1)", 0.1], "geom.*.friction[1]": "uniform(0, 1)"},
            "randomize.geom.*.friction[1] is there twice: in a list, and by a key of its own",
        ),
        (
            {"geom.*.friction": ["uniform(0, 1)", 0.1], "geom.floor.friction[1]": "uniform(0, 1)"},
            "randomize.geom.floor.friction[1]: randomize.geom.*.friction[1] sets or draws the same value",
        ),
        (
            {"geom.*.friction": ["uniform(0, 1)", 0.05], "geom.floor.friction[1]": "uniform(0, 1)"},
            "randomize.geom.floor.friction[1]: randomize.geom.*.friction[1] sets or draws the same value",
        ),
    ],
)
def test_a_list_that_does_not_fit_is_refused_by_the_place_in_it(
    randomize: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        simulation(randomize)


def test_two_keys_for_one_value_are_refused() -> None:
    both = {"geom.*.friction": "uniform(0.5, 1)", "geom.floor.friction": "uniform(0.5, 2)"}
    with pytest.raises(
        RandomizeError,
        match=r"randomize.geom.floor.friction: randomize.geom.\*.friction sets or draws the same",
    ):
        randomized_keys(QUADRUPED, load_model(QUADRUPED), both)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("body.trnk*.mass", "each scale(0.8, 1.2)", r"body\.trnk\*"),
        ("body", {"trunk.mass": "scale(0.8, 1.2)"}, r"randomize\.body: expected a distribution"),
        ("body.trunk.mass", None, r"randomize\.body\.trunk\.mass: expected .* found None"),
    ],
)
def test_what_matches_nothing_or_is_no_distribution_is_refused_with_its_key(
    key: str, value: Any, message: str
) -> None:
    with pytest.raises(RandomizeError, match=message):
        randomized_keys(QUADRUPED, load_model(QUADRUPED), {key: value})


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
    drawn = dict(zip(names, made.drawn[0].tolist(), strict=True))
    expected = [drawn[f"body.{name}.mass"] for name in bodies]
    np.testing.assert_allclose(shares, expected)
    again = simulation(
        {"body.*.mass": "each scale(0.5, 2)", "joint.*.damping": "each scale(0.5, 2)"}
    )
    again.reset()
    assert made.drawn.tobytes() == again.drawn.tobytes()


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


HUMANOID = default_xml("gymnasium:Humanoid-v5")


@pytest.mark.parametrize(
    ("robot", "key", "distribution", "are_together"),
    [
        (QUADRUPED, "body.*.mass", "each scale(0.5, 2)", True),
        (QUADRUPED, "joint.*.damping", "each uniform(0.1, 2)", True),
        (QUADRUPED, "geom.*.friction", "each loguniform(0.5, 1.5)", True),
        pytest.param(
            *(HUMANOID, "actuator.*.gear", "each scale(0.8, 1.2)", True), marks=pytest.mark.nightly
        ),
        # By rounding, MuJoCo may name the principal axes of a body otherwise at one of the values.
        pytest.param(
            *(HUMANOID, "body.*.mass", "each scale(0.5, 2)", False), marks=pytest.mark.nightly
        ),
    ],
)
def test_elements_examined_together_are_what_they_are_one_by_one(
    robot: Path, key: str, distribution: str, are_together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    xml = Path(robot)
    drawn = {key: distribution}
    compiled = []
    compile_with = randomized_fields._compile_with

    def counted(*arguments: Any) -> mujoco.MjModel:
        compiled.append(arguments)
        return compile_with(*arguments)

    monkeypatch.setattr(randomized_fields, "_compile_with", counted)
    model = load_model(xml)
    randomized_fields._EXAMINED.clear()
    together = randomized_keys(xml, model, by_number(drawn))
    several = len(compiled)
    monkeypatch.setattr(randomized_fields, "_examine_together", lambda *_: [])
    randomized_fields._EXAMINED.clear()
    one_by_one = randomized_keys(xml, model, by_number(drawn))
    one_each = len(compiled) - several
    assert one_each == 3 * len(together)
    assert several == 3 or not are_together
    assert [key.key for key in together] == [key.key for key in one_by_one]
    for one, other in zip(together, one_by_one, strict=True):
        assert one.places == other.places
        for first, second in zip(one.changes, other.changes, strict=True):
            assert first.name == second.name
            for field in ("entries", "at_zero", "slope"):
                assert np.array_equal(getattr(first, field), getattr(second, field)), one.key


@pytest.mark.parametrize("count", [3, 5])
@pytest.mark.parametrize("attribute", ["mass", "density"])
def test_elements_on_which_the_same_value_depends_are_not_taken_for_one(
    attribute: str, count: int, tmp_path: Path
) -> None:
    xml = tmp_path / "ball.xml"
    spheres = "".join(
        f'<geom name="g{number}" size="0.1" {attribute}="1"/>' for number in range(count)
    )
    xml.write_text(
        f'<mujoco><worldbody><body name="ball"><freejoint/>{spheres}</body></worldbody></mujoco>'
    )
    drawn = by_number({f"geom.g*.{attribute}": "each scale(0.5, 1.5)"})
    with pytest.raises(RandomizeError, match="sets or draws the same value of body_inertia"):
        randomized_keys(xml, load_model(xml), drawn)


def test_masses_of_each_body_are_those_that_it_can_have() -> None:
    made = simulation({"body.*.mass": "each uniform(1, 2)"})
    made.reset()
    masses = made.model_of(0).body_mass[1:]
    assert ((masses >= 1) & (masses <= 2)).all()
    assert len(np.unique(masses)) == len(masses)


def test_the_nominal_robot_is_at_no_point_of_a_grid() -> None:
    grid = EvaluationGrid.parse({"geom.floor.friction": [0.5, 1.0]})
    assert grid is not None
    places = GridPlaces(grid, grid.points, 1)
    with pytest.raises(ValueError, match="at no point of a grid"):
        make_simulation(QUADRUPED, "auto", {}, DRAWN, places, nominal=True, n_envs=1, seed=0)


def test_the_critic_sees_what_each_element_has_drawn() -> None:
    made = simulation({"body.*.mass": "each scale(0.5, 2)"}, asymmetric=True)
    assert made.privileged_names == tuple(key.key for key in made.keys)
    observed = made.reset()
    shown = observed[:, -len(made.keys) :]
    np.testing.assert_allclose(shown, made.drawn.astype(np.float32))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "body.trunk.mass",
            "each scale(0.9, 1.1)",
            'randomize.body.trunk.mass: "each" draws a value for each element of a pattern such as "body.*.mass"',
        ),
        (
            "option.wind[0]",
            "each uniform(0, 1)",
            'randomize.option.wind[0]: "each" draws a value for each element of a pattern',
        ),
        (
            "action.delay",
            "each choice(0, 1)",
            'randomize.action.delay: "each" is for elements of the robot; leave it out',
        ),
    ],
)
def test_each_is_refused_where_there_is_one_element(key: str, value: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        simulation({key: value})


def test_each_is_refused_for_elements_without_a_name(tmp_path: Path) -> None:
    xml = tmp_path / "parts.xml"
    xml.write_text(PARTS.format(compiler="", inertial=""))
    with pytest.raises(RandomizeError, match="a geom that it matches has no name of its own"):
        randomized_keys(xml, load_model(xml), {"geom.*.friction": "each scale(0.9, 1.1)"})


@pytest.mark.parametrize("each", ["", "each "])
def test_a_pattern_leaves_the_free_joint_of_the_base_out(each: str) -> None:
    made = simulation({"joint.*.damping": f"{each}uniform(3, 4)"})
    made.reset()
    damping = made.model_of(0).dof_damping
    assert damping[:6].tolist() == made.model.dof_damping[:6].tolist() == [0.0] * 6
    assert (damping[6:] >= 3).all()
    named = made.model.joint(0).name or "root"
    named_alone = simulation({f"joint.{named}.damping": "uniform(3, 4)"})
    named_alone.reset()
    assert (named_alone.model_of(0).dof_damping[:6] >= 3).all()


def test_an_episode_tells_the_delays_and_the_period_that_it_drew() -> None:
    delays = {"action.delay": "choice(1, 2)", "observation.delay": "choice(3, 4)"}
    made = simulation(
        {**delays, "push.speed": "uniform(0, 0.1)", "push.period": "choice(0.4, 0.8)"},
        measuring=True,
    )
    made.reset()
    ended: Any = []
    while not ended:
        ended = made.step(np.zeros((3, made.model.nu))).ended
    drawn = ended[0].drawn
    assert drawn["action.delay"] in (1.0, 2.0)
    assert drawn["observation.delay"] in (3.0, 4.0)
    assert drawn["push.period"] == pytest.approx(0.4) or drawn["push.period"] == pytest.approx(0.8)


PARTS = """<mujoco><compiler {compiler}/><worldbody><geom type="plane" size="5 5 1"/>
    <body name="given" pos="0 0 1"><freejoint/>{inertial}<geom name="a" size="0.1"/>
    <body name="weighed" pos="0.5 0 0"><joint name="j" axis="0 1 0"/><geom name="b" size="0.1" mass="2"/>
    <body name="fused" pos="0.5 0 0"><geom name="c" size="0.1"/></body></body></body></worldbody>
    <actuator><motor joint="j" ctrlrange="-1 1"/></actuator></mujoco>"""
GIVEN = '<inertial pos="0 0 0.01" mass="3" diaginertia="0.1 0.2 0.15"/>'


@pytest.mark.parametrize("name", ["given", "weighed"])
def test_given_masses_and_inertias_are_scaled_together(tmp_path: Path, name: str) -> None:
    xml = tmp_path / "parts.xml"
    xml.write_text(PARTS.format(compiler="", inertial=GIVEN))
    model = load_model(xml)
    [key] = randomized_keys(xml, model, {f"body.{name}.mass": "scale(0.5, 2)"})
    assert sorted(change.name for change in key.changes) == ["body_inertia", "body_mass"]
    for change in key.changes:
        own = getattr(model, change.name).reshape(-1)[change.entries]
        assert change.at_zero + 1.7 * change.slope == pytest.approx(1.7 * own)


def test_a_body_that_is_part_of_its_parent_has_no_mass_to_draw(tmp_path: Path) -> None:
    xml = tmp_path / "parts.xml"
    xml.write_text(PARTS.format(compiler='fusestatic="true"', inertial=""))
    model = load_model(xml)
    with pytest.raises(
        RandomizeError, match=r"the body 'fused' is part of its parent in the compiled robot"
    ):
        randomized_keys(xml, model, {"body.fused.mass": "uniform(1, 2)"})
    [key] = randomized_keys(xml, model, {"body.given.mass": "uniform(1, 2)"})
    assert key.changes


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


def test_a_new_seed_in_the_middle_of_episodes_keeps_their_late_actions_and_observations() -> None:
    plan = np.random.default_rng(1).uniform(-0.3, 0.3, (20, 3, 8))
    late = {"action.delay": "choice(3, 3)", "observation.delay": "choice(2, 2)"}
    whole, seeded = simulation({**DRAWN, **late}), simulation({**DRAWN, **late})
    whole.reset()
    seeded.reset()
    simulation_helpers.steps(whole, plan[:7])
    simulation_helpers.steps(seeded, plan[:7])
    seeded.seed(5)
    simulation_helpers.assert_same(
        simulation_helpers.steps(whole, plan[7:]), simulation_helpers.steps(seeded, plan[7:])
    )


def test_one_environment_of_gymnasium_draws_as_the_batch_does() -> None:
    env = TaskEnv(QUADRUPED, task="auto", randomize={**DRAWN, **DISTURBED}, max_episode_steps=40)
    batch = simulation({**DRAWN, **DISTURBED}, n_envs=1, seed=3)
    observation, _ = env.reset(seed=3)
    assert np.array_equal(batch.reset()[0], observation)
    for action in np.random.default_rng(1).uniform(-1, 1, (20, 8)).astype(np.float32):
        observation, reward, *_ = env.step(action)
        result = batch.step(action[None])
        assert (result.rewards[0], result.done[0]) == (reward, False)
        assert np.array_equal(result.observations[0], observation)


def test_divergence_names_what_the_episode_had_drawn() -> None:
    randomize = {"geom.floor.friction": "uniform(0.5, 1)", "action.delay": "choice(3, 4)"}
    batch = simulation(randomize, n_envs=1)
    batch.reset()
    batch.states.qvel[0] = np.nan
    said = r"the episode had drawn geom.floor.friction = 0\.\d+, action.delay = [34]"
    with pytest.raises(PhysicsDiverged, match=said):
        batch.step(np.zeros((1, 8)))


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
            "randomize.body.trunk.weight: body has no attribute",
        ),
    ],
)
def test_the_examination_before_the_launch_finds_what_cannot_be_drawn(
    robot: str, randomize: dict[str, str], problem: str | None
) -> None:
    request = ExaminationRequest(
        xml=str(MJCF / f"{robot}.xml"), task="auto", randomize=randomize, simulate_s=0.02
    )
    with RecentRobot() as recent:
        answer = check(request, recent)
    assert (answer.problem is None) == (problem is None), answer.problem
    assert str(problem or "None") in str(answer.problem)


def test_a_simulation_without_randomisation_is_not_touched() -> None:
    plain = Simulation.from_xml(QUADRUPED, "auto", n_envs=1, seed=0)
    assert type(plain).__name__ == "Simulation"
    assert "drawn" not in plain.get_state()


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


def test_fingerprints_of_jobs_without_randomisation_are_as_before() -> None:
    plain = helpers.spec()
    assert plain.fingerprint() != dataclasses.replace(plain, randomize=DRAWN).fingerprint()
    as_before = {
        key: value for key, value in json.loads(plain.to_json()).items() if key != "randomize"
    }
    assert WorkerSpec.from_json(json.dumps(as_before)).fingerprint() == plain.fingerprint()


@pytest.mark.parametrize(
    ("key", "written", "message"),
    [
        ("observation.noise", "choice(0, 1)", "choice does not fit here; expected normal"),
        ("observation.noise.height", "loguniform(0.1, 1)", "loguniform does not fit here"),
        ("action.delay", "uniform(-3, -1)", "may draw -3; expected at least 0"),
        ("observation.delay", "uniform(0, 1e9)", "may draw 1e+09; expected at most 100"),
        ("push.speed", "scale(0, 1)", "scale does not fit here"),
        ("start.height", "uniform(-1, 0)", "may draw -1; expected at least 0"),
        ("start.joints", "wide", "'wide' is no distribution"),
        ("action.delay", 2, 'expected a distribution such as "uniform(0, 0.1)", found 2'),
    ],
)
def test_disturbances_that_a_program_gives_are_checked_as_those_of_a_job_file(
    key: str, written: Any, message: str
) -> None:
    expected = re.escape(f"randomize.{key}: {message}")
    with pytest.raises(UsageError, match=expected):
        TaskEnv(QUADRUPED, task="stand", randomize={key: written})
    with pytest.raises(UsageError, match=expected):
        gymnasium.make(
            "orchestrator.envs:orchestrator/stand-v0",
            xml=str(QUADRUPED),
            randomize={key: written},
        )


@pytest.mark.parametrize("assets", ["", "parts"])
@pytest.mark.parametrize(
    "randomize", [{"body.leg.mass": "scale(0.5, 2)"}, {"terrain": "rough(0.05)"}]
)
def test_a_relative_path_finds_the_assets_of_included_files_as_without_randomisation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, randomize: dict[str, str], assets: str
) -> None:
    (tmp_path / "robot/parts").mkdir(parents=True)
    (tmp_path / "robot/robot.xml").write_text("""<mujoco><include file="parts/part.xml"/>
    <worldbody><geom name="floor" type="plane" size="5 5 0.1"/><body pos="0 0 0.3"><freejoint/>
    <geom type="mesh" mesh="solid" mass="2"/><body name="leg"><joint name="hip" axis="0 1 0"/>
    <geom type="capsule" fromto="0 0 0 0 0 -0.28" size="0.02" mass="0.1"/></body></body></worldbody>
    <actuator><motor joint="hip" ctrlrange="-1 1"/></actuator></mujoco>""")
    (tmp_path / "robot/parts/part.xml").write_text(
        '<mujoco><asset><mesh name="solid" file="solid.obj"/></asset></mujoco>'
    )
    corners = "v 0 0 0\nv 0.1 0 0\nv 0 0.1 0\nv 0 0 0.1\n"
    faces = "f 1 3 2\nf 1 2 4\nf 2 3 4\nf 1 4 3\n"
    (tmp_path / "robot" / assets / "solid.obj").write_text(corners + faces)
    monkeypatch.chdir(tmp_path)
    env = TaskEnv("robot/robot.xml", task="forward", randomize=randomize)
    assert np.isfinite(env.reset(seed=0)[0]).all()


def test_what_an_episode_has_drawn_of_its_start_is_told_and_survives_a_checkpoint() -> None:
    starts = {
        "start.joints": "uniform(0.01, 0.02)",
        "start.height": "uniform(0.1, 0.2)",
        "start.turn": "uniform(1, 2)",
        "start.speed": "uniform(0.3, 0.4)",
        "terrain": "rough(0.02)",
    }
    settings: dict[str, Any] = {"n_envs": 2, "seed": 0, "measuring": True}
    options = {"max_episode_steps": 3, "reset_noise_scale": 0}
    made = make_simulation(QUADRUPED, "stand", options, starts, **settings)
    made.reset()
    before = made.states.qpos.copy()
    speeds = made.states.qvel.copy()
    resumed = make_simulation(QUADRUPED, "stand", options, starts, **settings)
    resumed.set_state(made.get_state())
    ended = []
    for simulation in (made, resumed):
        for _ in range(3):
            result = simulation.step(np.zeros((2, 8)))
        ended.append(result.ended)
    for of_made, of_resumed in zip(*ended, strict=True):
        assert of_made.drawn == of_resumed.drawn
    model = load_model(QUADRUPED)
    pose = made.task.pose
    for episode in ended[0]:
        drawn = episode.drawn
        joints = [name for name in drawn if name.startswith("start.joints.")]
        assert len(joints) == 8
        for name in joints:
            address = int(model.joint(name.removeprefix("start.joints.")).qposadr[0])
            moved = before[episode.env, address] - pose[address]
            assert moved == pytest.approx(drawn[name])
        assert 0.1 <= drawn["start.height"] <= 0.2
        assert 1 <= drawn["start.turn"] <= 2
        assert 0.3 <= drawn["start.speed"] <= 0.4
        way = drawn["start.speed.direction"]
        speed = drawn["start.speed"] * np.array([math.cos(way), math.sin(way)])
        np.testing.assert_allclose(speeds[episode.env, :2], speed)
        assert {"terrain.x", "terrain.y"} <= drawn.keys()


def test_the_direction_of_a_start_in_a_plane_is_along_x_or_against_it() -> None:
    settings: dict[str, Any] = {"n_envs": 8, "seed": 0, "measuring": True}
    starts = {"start.speed": "uniform(0.3, 0.4)"}
    options = {"max_episode_steps": 1, "reset_noise_scale": 0}
    made = make_simulation(MJCF / "hopper.xml", "forward", options, starts, **settings)
    made.reset()
    speeds = made.states.qvel[:, 0].copy()
    ended = made.step(np.zeros((8, 3))).ended
    ways = [episode.drawn["start.speed.direction"] for episode in ended]
    assert set(ways) == {0.0, math.pi}
    np.testing.assert_array_equal(np.cos(ways), np.sign(speeds))
