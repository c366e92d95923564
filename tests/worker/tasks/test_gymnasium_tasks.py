"""Gymnasium's own environments over the batched simulation: the same numbers as gymnasium's, step
for step."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np
import pytest
import simulation_helpers
from gymnasium.envs.registration import load_env_creator
from gymnasium.utils import seeding
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

from orchestrator.core.task_names import GYMNASIUM_TASKS
from orchestrator.worker.envs.simulation import Simulation
from orchestrator.worker.envs.vec_env import MujocoVecEnv
from orchestrator.worker.tasks import find_task, gymnasium_tasks, make_task

ROOT = Path(__file__).parents[3]
NAMES = list(GYMNASIUM_TASKS)
LONG_WALKS = ("gymnasium:HalfCheetah-v5", "gymnasium:Hopper-v5")
"""One whose episodes end by the step limit alone, and one whose end by a fall: the default tier
walks them far."""
TOLERANCE = 1e-9

EVERY_OPTION_CHANGED: dict[str, dict[str, object]] = {
    "Ant-v5": {
        "frame_skip": 3,
        "forward_reward_weight": 2.0,
        "ctrl_cost_weight": 0.7,
        "contact_cost_weight": 0.02,
        "healthy_reward": 0.3,
        "main_body": "front_left_leg",
        "healthy_z_range": [0.5, 0.8],
        "contact_force_range": [-0.2, 0.4],
        "reset_noise_scale": 0.05,
        "exclude_current_positions_from_observation": False,
        "include_cfrc_ext_in_observation": False,
        "terminate_when_unhealthy": False,
    },
    "HalfCheetah-v5": {
        "frame_skip": 4,
        "forward_reward_weight": 0.5,
        "ctrl_cost_weight": 1.3,
        "reset_noise_scale": 0.3,
        "exclude_current_positions_from_observation": False,
    },
    "Hopper-v5": {
        "frame_skip": 2,
        "forward_reward_weight": 3.0,
        "ctrl_cost_weight": 0.2,
        "healthy_reward": 0.6,
        "terminate_when_unhealthy": False,
        "healthy_state_range": [-2.0, 3.0],
        "healthy_z_range": [0.9, 1.3],
        "healthy_angle_range": [-0.1, 0.4],
        "reset_noise_scale": 0.02,
        "exclude_current_positions_from_observation": False,
    },
    "Humanoid-v5": {
        "frame_skip": 3,
        "forward_reward_weight": 2.0,
        "ctrl_cost_weight": 0.3,
        "contact_cost_weight": 1e-4,
        "contact_cost_range": [0.1, 2.0],
        "healthy_reward": 1.0,
        "terminate_when_unhealthy": False,
        "healthy_z_range": [1.2, 1.5],
        "reset_noise_scale": 0.03,
        "exclude_current_positions_from_observation": False,
        "include_cinert_in_observation": False,
        "include_cvel_in_observation": False,
        "include_qfrc_actuator_in_observation": False,
        "include_cfrc_ext_in_observation": False,
    },
    "InvertedDoublePendulum-v5": {"frame_skip": 3, "healthy_reward": 2.5, "reset_noise_scale": 0.2},
    "InvertedPendulum-v5": {"frame_skip": 3, "reset_noise_scale": 0.05},
    "Swimmer-v5": {
        "frame_skip": 3,
        "forward_reward_weight": 2.0,
        "ctrl_cost_weight": 0.1,
        "reset_noise_scale": 0.4,
        "exclude_current_positions_from_observation": False,
    },
    "Walker2d-v5": {
        "frame_skip": 3,
        "forward_reward_weight": 2.0,
        "ctrl_cost_weight": 0.1,
        "healthy_reward": 0.4,
        "terminate_when_unhealthy": False,
        "healthy_z_range": [1.0, math.inf],
        "healthy_angle_range": [-0.3, 0.2],
        "reset_noise_scale": 0.02,
        "exclude_current_positions_from_observation": False,
    },
}


def same_generators(seeds: Sequence[int]) -> list[np.random.Generator]:
    """In the state in which gymnasium's ``np_random`` is when ``reset(seed=…)`` begins."""
    return [seeding.np_random(seed)[0] for seed in seeds]


def random_actions(space: gymnasium.spaces.Box, steps: int, n_envs: int) -> np.ndarray:
    rng = np.random.default_rng(5)
    return rng.uniform(space.low, space.high, (steps, n_envs, *space.shape)).astype(np.float32)


def run_side_by_side(
    name: str, *, steps: int, xml: Path | None = None, n_envs: int = 2, **options: object
) -> list[bool]:
    """Step both with the same actions and hold every number together.

    :return: for every episode that ended, whether by truncation.
    """
    given = {} if xml is None else {"xml_file": str(xml)}
    originals = [
        gymnasium.make(name.removeprefix("gymnasium:"), **given, **options) for _ in range(n_envs)
    ]
    ours = Simulation.from_xml(
        xml or gymnasium_tasks.default_xml(name), name, n_envs=n_envs, seed=0, task_options=options
    )
    seeds = range(21, 21 + n_envs)
    ours.generators = same_generators(seeds)
    observations = ours.reset()
    assert observations.dtype == originals[0].observation_space.dtype
    for env, original in enumerate(originals):
        assert observations[env] == pytest.approx(
            original.reset(seed=seeds[env])[0], abs=TOLERANCE, rel=0
        )
    truncations = []
    for action in random_actions(originals[0].action_space, steps, n_envs):
        result = ours.step(action)
        ended = {episode.env: episode for episode in result.ended}
        for env, original in enumerate(originals):
            observation, reward, terminated, truncated, _ = original.step(action[env])
            assert abs(result.rewards[env] - reward) <= TOLERANCE
            assert result.done[env] == (terminated or truncated) == (env in ended)
            last = result.observations[env]
            if env in ended:
                assert ended[env].truncated == (truncated and not terminated)
                truncations.append(ended[env].truncated)
                assert np.abs(last - original.reset()[0]).max() <= TOLERANCE
                last = ended[env].terminal_observation
            assert np.abs(last - observation).max() <= TOLERANCE
    return truncations


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.nightly] * (name not in LONG_WALKS)) for name in NAMES],
)
def test_a_thousand_random_steps_give_gymnasiums_numbers_through_ends_and_resets(name: str) -> None:
    truncations = run_side_by_side(name, steps=1005)
    assert len(truncations) >= 2
    if name in ("gymnasium:HalfCheetah-v5", "gymnasium:Swimmer-v5"):
        assert all(truncations), "their episodes end by the step limit alone, at 1000"
    else:
        assert not all(truncations)


@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
def test_changed_options_mean_what_they_mean_to_gymnasium(name: str) -> None:
    options = EVERY_OPTION_CHANGED[name.removeprefix("gymnasium:")]
    kind = find_task(name).Options
    assert options.keys() == {field.name for field in dataclasses.fields(kind)} - {
        "max_episode_steps"
    }
    default = kind()
    assert all(getattr(default, option) != value for option, value in options.items())
    run_side_by_side(name, steps=150, max_episode_steps=60, **options)


@pytest.mark.parametrize("name", NAMES)
def test_options_are_gymnasiums_keyword_arguments_with_its_defaults(name: str) -> None:
    registered = gymnasium.spec(name.removeprefix("gymnasium:"))
    parameters = inspect.signature(load_env_creator(registered.entry_point)).parameters.values()
    elsewhere = {"xml_file", "default_camera_config", "kwargs", "self"}
    theirs = {one.name: one.default for one in parameters if one.name not in elsewhere}
    ours = dataclasses.asdict(find_task(name).Options())
    assert ours == {**theirs, "max_episode_steps": registered.max_episode_steps}


@pytest.mark.parametrize("name", NAMES)
def test_the_robot_is_the_one_that_gymnasium_takes(name: str) -> None:
    env = gymnasium.make(name.removeprefix("gymnasium:"))
    assert Path(env.unwrapped.fullpath) == gymnasium_tasks.default_xml(name)


def test_a_robot_of_ours_under_a_gymnasium_task_gives_what_gymnasium_gives_for_it() -> None:
    options = {"main_body": "trunk", "healthy_z_range": [0.3, 0.5]}
    robot = ROOT / "mjcf/quadruped.xml"
    assert not all(run_side_by_side("gymnasium:Ant-v5", xml=robot, steps=300, **options))


@pytest.fixture(scope="module")
def continued(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[list[Any], list[Any]]]:
    cases = [
        (str(gymnasium_tasks.default_xml(name)), name, {"max_episode_steps": 40}) for name in NAMES
    ]
    pairs = simulation_helpers.continued(cases, tmp_path_factory.mktemp("continued"), 63, 57)
    return dict(zip(NAMES, pairs, strict=True))


@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
def test_restored_in_a_fresh_process_in_mid_episode_it_goes_on_bit_identically(
    continued: dict[str, tuple[list[Any], list[Any]]], name: str
) -> None:
    expected, found = continued[name]
    assert sum(len(ended) for *_, ended in expected) >= 3
    simulation_helpers.assert_same(expected, found)


@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
def test_stable_baselines_sees_the_same_as_over_gymnasiums_environments(name: str) -> None:
    limit, n_envs = 25, 2
    theirs = DummyVecEnv(
        [
            lambda: Monitor(
                gymnasium.make(name.removeprefix("gymnasium:"), max_episode_steps=limit)
            )
            for _ in range(n_envs)
        ]
    )
    xml = gymnasium_tasks.default_xml(name)
    ours = MujocoVecEnv(xml, name, n_envs=n_envs, seed=0, task_options={"max_episode_steps": limit})
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    ours.simulation.generators = same_generators([31, 32])
    theirs.seed(31)
    assert np.abs(ours.reset() - theirs.reset()).max() <= TOLERANCE
    ends = 0
    for action in random_actions(theirs.action_space, 60, n_envs):
        mine, original = ours.step(action), theirs.step(action)
        for one, other in zip(mine[:3], original[:3], strict=True):
            assert one.dtype == other.dtype
            assert one == pytest.approx(other, abs=TOLERANCE)
        for info, expected, done in zip(mine[3], original[3], mine[2], strict=True):
            assert ("terminal_observation" in info) == ("terminal_observation" in expected) == done
            if done:
                ends += 1
                assert (
                    np.abs(info["terminal_observation"] - expected["terminal_observation"]).max()
                    <= TOLERANCE
                )
                assert info["TimeLimit.truncated"] == expected["TimeLimit.truncated"]
                assert info["episode"]["l"] == expected["episode"]["l"]
                assert info["episode"]["r"] == pytest.approx(expected["episode"]["r"], abs=1e-6)
    assert ends >= 4


@pytest.mark.parametrize(
    ("name", "robot", "options", "message"),
    [
        ("Ant-v5", "hopper", {}, r"joints begin with free, "),
        (
            "Hopper-v5",
            "quadruped",
            {},
            r"joints begin with slide, slide, hinge, ",
        ),
        (
            "Ant-v5",
            "quadruped",
            {"main_body": "torso"},
            "Invalid name 'torso'.*trunk",
        ),
        (
            "Ant-v5",
            "quadruped",
            {"main_body": 99},
            "Invalid index 99.* 0 to 9",
        ),
        ("Ant-v5", "quadruped", {"main_body": -1}, "Invalid index -1"),
        ("InvertedDoublePendulum-v5", "balancer", {}, "joints begin with slide, hinge, hinge"),
        (
            "Ant-v5",
            "quadruped",
            {"healthy_z_rnge": [0, 1]},
            "did you mean 'healthy_z_range'",
        ),
        ("Ant-v5", "quadruped", {"keyframe": "home"}, r"unknown option 'keyframe'"),
        ("Ant-v5", "quadruped", {"healthy_z_range": [1]}, r"\[1\]: expected a list of two numbers"),
        ("Ant-v5", "quadruped", {"healthy_z_range": "high"}, "expected a list of two numbers"),
        ("Ant-v5", "quadruped", {"main_body": 1.5}, "expected a whole number or text"),
        ("Ant-v5", "quadruped", {"frame_skip": 0}, "expected a whole number above 0"),
        (
            "Ant-v4",
            "quadruped",
            {},
            'unknown task "gymnasium:Ant-v4"; did you mean .gymnasium:Ant-v5.',
        ),
        (
            "Reacher-v5",
            "arm",
            {},
            'unknown task "gymnasium:Reacher-v5"; did you mean',
        ),
    ],
)
def test_what_does_not_fit_is_answered_with_what_would(
    name: str, robot: str, options: dict[str, object], message: str
) -> None:
    model = mujoco.MjModel.from_xml_path(str(ROOT / f"mjcf/{robot}.xml"))
    with pytest.raises(ValueError, match=message):
        make_task(f"gymnasium:{name}", model, options)
