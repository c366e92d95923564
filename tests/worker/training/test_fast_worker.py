"""Workers with the fast learner: where they have it, what becomes of numbers that are none, and of
the same seed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import worker_helpers as helpers
from mujoco.batch import Batch
from stable_baselines3 import PPO

from orchestrator.core.exit_codes import ExitCode
from orchestrator.worker.envs import env_factory
from orchestrator.worker.training import checkpoint, learners

MJCF = Path(__file__).parents[3] / "mjcf"
OWN = """
import gymnasium
import numpy as np
from gymnasium import spaces

NUMBERS, MOTOR = spaces.Box(-1, 1, (3,), np.float32), spaces.Box(-1, 1, (1,), np.float32)
PIXELS = spaces.Box(0, 255, (36, 36, 3), np.uint8)
STEPS = 304  # in the third of its iterations; the second of two environments


class Own(gymnasium.Env):
    render_mode = None

    def __init__(self, observation_space=NUMBERS, action_space=MOTOR, trouble=None):
        self.observation_space, self.action_space, self.trouble, self.age = observation_space, action_space, trouble, 0

    def observe(self):
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return self.observation_space.sample()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.age = 0
        return self.observe(), {}

    def step(self, action):
        global STEPS
        STEPS -= 1
        self.age += 1
        observation, reward = self.observe(), float(np.sum(action))
        if STEPS <= 0 and self.trouble is not None:
            observation, reward = self.trouble(observation, reward)
        return observation, reward, False, self.age == 10, {}


def numbers(xml, seed):
    return Own()


def parts(xml, seed):
    return Own(spaces.Dict({"arm": NUMBERS, "leg": NUMBERS}))


def pixels(xml, seed):
    return Own(PIXELS)


def whole(xml, seed):
    return Own(NUMBERS, spaces.Box(-3, 3, (1,), np.int64))


def huge_reward(xml, seed):
    return Own(trouble=lambda observation, reward: (observation, 1e25))


def huge_observation(xml, seed):
    return Own(trouble=lambda observation, reward: (np.full(3, 1e25, np.float32), reward))
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path


# -- which learner


def test_a_robot_trains_with_the_fast_learner(tmp_path: Path) -> None:
    robot = {"task": "forward", "xml": str(MJCF / "hopper.xml"), "normalize": True}
    record, log = helpers.train_here(helpers.job(tmp_path, helpers.spec(**robot)))
    assert (record.code, record.learner) == (ExitCode.SUCCEEDED, "fast"), log
    assert record.learner_reason == "auto: it suits policy and environment"
    assert "learner fast (auto: it suits policy and environment)" in log


CANNOT: dict[str, tuple[dict[str, Any], str]] = {
    "discrete actions": ({"env": "CartPole-v1"}, "its actions are no one-dimensional Box"),
    "dictionary": (
        {"entry_point": "own:parts", "policy": "MultiInputPolicy"},
        "policy is MultiInputPolicy",
    ),
    "images": ({"entry_point": "own:pixels", "policy": "CnnPolicy"}, "policy is CnnPolicy"),
    "images, flattened": (
        {"entry_point": "own:pixels"},
        "its observations are no Box of numbers, or an image",
    ),
    "whole numbers": ({"entry_point": "own:whole"}, "its actions are no one-dimensional Box"),
    "gSDE": (
        {"entry_point": "own:numbers", "hyperparameters": {**helpers.SMALL_PPO, "use_sde": True}},
        "ppo.use_sde is on",
    ),
    "gelu": (
        {"entry_point": "own:numbers", "policy_kwargs": {"activation_fn": "gelu"}},
        "policy_kwargs.activation_fn is gelu",
    ),
}


@pytest.mark.parametrize(("changes", "why"), CANNOT.values(), ids=CANNOT.keys())
def test_where_it_cannot_stock_is_taken_and_asked_for_it_is_refused(
    changes: dict[str, Any], why: str, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(own)
    monkeypatch.delitem(sys.modules, "own", raising=False)
    venv = env_factory.make(helpers.spec(**changes), own, n_envs=1, seed=0)
    learner = learners.build(helpers.spec(**changes), venv)
    assert (type(learner.model), learner.name) == (PPO, "sb3")
    assert learner.reason.startswith(f"auto: {why}")
    with pytest.raises(
        ValueError, match=f'learner = "fast" is not possible: {why}.*; set learner = "auto"'
    ):
        learners.build(helpers.spec(**changes, learner="fast"), venv)


def test_a_worker_tells_the_reason_for_stock_in_log_and_record(own: Path) -> None:
    changes, why = CANNOT["dictionary"]
    record, log = helpers.train_here(
        helpers.job(own / "job", helpers.spec(**changes, search_path=str(own)))
    )
    assert (record.code, record.learner) == (ExitCode.SUCCEEDED, "sb3"), log
    assert record.learner_reason == f"auto: {why}, and the fast learner supports only MlpPolicy"
    assert f"learner sb3 ({record.learner_reason})" in log


# -- numbers that are none


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("huge_reward", r"train/value_loss is not finite: inf"),
        ("huge_observation", "the gradient of the policy is not finite"),
    ],
)
def test_losses_and_gradients_that_are_no_numbers_end_as_diverged_with_the_last_good_checkpoint(
    kind: str, message: str, own: Path
) -> None:
    policy_kwargs = {"net_arch": []}  # a tanh would stop a huge observation
    given = helpers.spec(
        entry_point=f"own:{kind}", search_path=str(own), learner="fast", policy_kwargs=policy_kwargs
    )
    paths = helpers.job(own / "job", given)
    record, log = helpers.train_here(paths)
    assert record.code == ExitCode.DIVERGED, log
    assert re.fullmatch(rf"iteration 3 \(env_steps \d+\): {message}", record.message), (
        record.message
    )
    state = checkpoint.load(max(paths.checkpoints.glob("*.pt")).read_bytes())
    assert state["counters"]["num_timesteps"] == 256
    assert all(torch.isfinite(tensor).all() for tensor in state["policy"].values())
    assert not paths.model.exists()


# -- the same bits


@pytest.fixture
def one_cpu() -> Iterator[int]:
    """For everything that is started, until the end of the test."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield min(before)
    os.sched_setaffinity(0, before)


@pytest.mark.nightly
def test_beside_a_neighbour_that_takes_all_the_cpu_it_can_get_the_bits_are_the_same(
    tmp_path: Path, one_cpu: int
) -> None:
    given = helpers.spec(env="Hopper-v5", normalize=True, learner="fast")
    alone, beside = (helpers.job(tmp_path / name, given) for name in ("alone", "beside"))
    helpers.train_here(alone)
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as neighbour:
        record, log = helpers.train_here(beside)
        assert neighbour.poll() is None
        neighbour.kill()
    assert record.code == ExitCode.SUCCEEDED, log
    assert helpers.same_bits(helpers.parameters(alone.model), helpers.parameters(beside.model))
    assert helpers.normalization(alone.vecnormalize) == helpers.normalization(beside.vecnormalize)


@pytest.mark.parametrize("learner", ["fast", pytest.param("sb3", marks=pytest.mark.nightly)])
def test_the_simulation_uses_every_core_and_weights_and_evaluation_are_those_of_one(
    learner: str, tmp_path: Path, batches: list[Batch]
) -> None:
    robot = {
        "task": "forward",
        "xml": str(MJCF / "quadruped.xml"),
        "n_envs": 4,
        "normalize": True,
        "eval_episodes": 2,
    }
    trained = []
    for cores in (1, 2):
        given = helpers.spec(
            **robot, learner=learner, cores=cores, task_options={"max_episode_steps": 60}
        )
        paths = helpers.job(tmp_path / str(cores), given)
        record, log = helpers.train_here(paths)
        assert (record.code, record.learner) == (ExitCode.SUCCEEDED, learner), log
        trained.append((given.fingerprint(), record.weights_sha256, paths.eval.read_bytes()))
    assert [batch.nthread for batch in batches] == [1, 1, 2, 2]
    assert trained[0] == trained[1]
    resumed = helpers.job(tmp_path / "1", given)
    checkpoints = resumed.checkpoints_by_steps()
    checkpoints[max(checkpoints)].unlink()
    record, log = helpers.train_here(resumed, 1)
    assert (record.resumed_from, record.weights_sha256) == (min(checkpoints), trained[0][1]), log
