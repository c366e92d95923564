"""The batch as Stable-Baselines3 sees it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecNormalize

from orchestrator.worker.envs.vec_env import MujocoVecEnv

MJCF = Path(__file__).parents[3] / "mjcf"


def make(n_envs: int = 4, seed: int = 3, **options: object) -> MujocoVecEnv:
    return MujocoVecEnv(
        MJCF / "hopper.xml", "forward", n_envs=n_envs, seed=seed, task_options=options
    )


def test_ended_episodes_restart_with_terminal_observation_and_statistics() -> None:
    env = make(max_episode_steps=20)
    env.reset()
    rng = np.random.default_rng(0)
    total, length = np.zeros(4), np.zeros(4, int)
    ended = 0
    for _ in range(60):
        observations, rewards, done, infos = env.step(rng.uniform(-1, 1, (4, 3)).astype(np.float32))
        assert (observations.dtype, rewards.dtype, done.dtype) == (np.float32, np.float32, np.bool_)
        total += rewards
        length += 1
        for i, info in enumerate(infos):
            if not done[i]:
                assert info == {}
                continue
            ended += 1
            assert info["TimeLimit.truncated"] == (length[i] == 20)
            assert info["episode"]["r"] == pytest.approx(total[i], rel=1e-4)
            assert info["episode"]["l"] == length[i]
            assert np.abs(info["terminal_observation"]).max() > np.abs(observations[i]).max()
            total[i] = length[i] = 0
    assert ended >= 12


def test_returned_arrays_are_not_overwritten_by_later_steps() -> None:
    env = make()
    first = env.reset()
    kept = first.copy()
    second, rewards, *_ = env.step(np.ones((4, 3), np.float32))
    copies = second.copy(), rewards.copy()
    env.step(-np.ones((4, 3), np.float32))
    assert np.array_equal(first, kept)
    assert np.array_equal(second, copies[0])
    assert np.array_equal(rewards, copies[1])


def test_seeding_like_the_constructor_gives_the_same_episodes() -> None:
    env, other = make(seed=11), make(seed=5)
    other.seed(11)
    assert np.array_equal(env.reset(), other.reset())


def test_shared_attributes_are_given_for_the_environments_asked_for() -> None:
    env = make()
    assert env.get_attr("render_mode", [0, 2]) == [None, None]
    assert env.env_is_wrapped(Monitor) == [True] * 4
    env.set_attr("label", "a")
    assert env.get_attr("label", 1) == ["a"]
    with pytest.raises(AttributeError):
        env.env_method("anything")


def test_stock_ppo_trains_logs_episodes_and_evaluates_without_a_warning() -> None:
    torch.set_num_threads(1)
    env = VecNormalize(make(max_episode_steps=30))
    model = PPO("MlpPolicy", env, n_steps=64, batch_size=64, n_epochs=1, seed=0, device="cpu")
    model.learn(512)
    assert len(model.ep_info_buffer) > 4
    mean, _ = evaluate_policy(model, env, n_eval_episodes=2)
    assert np.isfinite(mean)
