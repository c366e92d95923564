"""Environments in sequence give what ``DummyVecEnv`` gives."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import worker_helpers as helpers
from gymnasium import spaces
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

from orchestrator.worker.envs import env_factory
from orchestrator.worker.envs.sequential import SequentialVecEnv

NUMBERS = spaces.Box(-np.inf, np.inf, (3,), np.float32)
SPACES = {
    "float32": NUMBERS,
    "float64": spaces.Box(-np.inf, np.inf, (2, 3), np.float64),
    "images": spaces.Box(0, 255, (4, 4, 3), np.uint8),
    "discrete": spaces.Discrete(7),
    "dictionary": spaces.Dict(
        {"a": NUMBERS, "b": spaces.Box(0, 255, (4, 4, 1), np.uint8), "c": spaces.Discrete(3)}
    ),
}


class Random(gymnasium.Env[Any, Any]):
    """Episodes of any length and ending; with ``reusing``, its observations and infos are one
    object each."""

    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, space: spaces.Space[Any], seed: int, reusing: bool = False) -> None:
        self.observation_space = copy.deepcopy(space)
        self.observation_space.seed(seed)
        self.rng = np.random.default_rng(seed)
        self.shared: Any = (space.sample(), {}) if reusing else None

    def observation(self) -> Any:
        if self.shared is None:
            return self.observation_space.sample()
        self.shared[0][...] = self.observation_space.sample()
        return self.shared[0]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self.observation(), {"seed": seed, "options": options, "drawn": self.rng.random()}

    def step(self, action: Any) -> Any:
        info = {} if self.shared is None else self.shared[1]
        info["measures"] = {"drawn": self.rng.random(), "list": [np.zeros(2)]}
        terminated, truncated = self.rng.random(2) < 0.2
        return self.observation(), self.rng.normal() + float(action[0]), terminated, truncated, info


def both(make: Any, n_envs: int) -> tuple[SequentialVecEnv, DummyVecEnv]:
    ours, theirs = ([lambda seed=seed: make(seed) for seed in range(n_envs)] for _ in range(2))
    return SequentialVecEnv(ours), DummyVecEnv(theirs)


def same(one: Any, other: Any) -> bool:
    """Whether types and bits are the same; Monitor's wall times aside."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    if isinstance(one, dict):
        return list(one) == list(other) and all(
            key == "t" or same(one[key], other[key]) for key in one
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def assert_same_episodes(ours: SequentialVecEnv, theirs: DummyVecEnv, steps: int) -> int:
    """→ how many episodes have ended."""
    rng = np.random.default_rng(0)
    ended = 0
    for env in (ours, theirs):
        env.seed(3)
        env.set_options({"option": 1})
    assert same(ours.reset(), theirs.reset())
    for _ in range(steps):
        actions = rng.uniform(-1, 1, (ours.num_envs, *ours.action_space.shape)).astype(np.float32)
        result = ours.step(actions)
        assert same(result, theirs.step(actions))
        assert same(ours.reset_infos, theirs.reset_infos)
        ended += int(result[2].sum())
    return ended


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("kind", SPACES)
def test_every_step_and_reset_is_that_of_dummy_vec_env(kind: str, n_envs: int) -> None:
    ours, theirs = both(lambda seed: Monitor(Random(SPACES[kind], seed)), n_envs)
    assert assert_same_episodes(ours, theirs, steps=60) > 5


@pytest.mark.parametrize("name", ["HalfCheetah-v5", "Swimmer-v5", "Pendulum-v1"])
def test_gymnasiums_environments_give_the_same_episodes(name: str) -> None:
    ours, theirs = both(lambda _: Monitor(gymnasium.make(name, max_episode_steps=25)), 2)
    assert assert_same_episodes(ours, theirs, steps=200) == 16


def test_what_a_step_gives_is_not_changed_by_later_steps() -> None:
    env, _ = both(lambda seed: Random(NUMBERS, seed, reusing=True), 2)
    env.reset()
    while True:
        observations, rewards, dones, infos = env.step(np.zeros((2, 1)))
        if dones.any():
            break
    kept = [observations, rewards, dones, infos[dones.argmax()]]
    before = copy.deepcopy(kept)
    for _ in range(50):
        env.step(np.zeros((2, 1)))
    assert same(kept, before)


def test_seeds_stay_below_numpys_limit() -> None:
    makers: list[Any] = [lambda: Random(NUMBERS, 0)] * 3
    venv = SequentialVecEnv(makers, first_env=2)
    assert venv.seed(2**32 - 4) == [2**32 - 2, 2**32 - 1, 0]
    venv.reset()
    assert [info["seed"] for info in venv.reset_infos] == [2**32 - 2, 2**32 - 1, 0]


def test_environments_are_made_with_seeds_below_numpys_limit(tmp_path: Path) -> None:
    spec = helpers.spec(entry_point=f"{__name__}:legacy_env")
    env_factory.make(spec, tmp_path, n_envs=2, seed=2**32 - 1)


def legacy_env(xml: Any, seed: int) -> gymnasium.Env[Any, Any]:
    np.random.RandomState(seed)
    return Random(NUMBERS, seed)


def test_jobs_step_their_environments_with_it(tmp_path: Path) -> None:
    assert type(env_factory.make(helpers.spec(), tmp_path, n_envs=2, seed=0)) is SequentialVecEnv
