"""From the same noise the fast learner collects the rollout that Stable-Baselines3 collects, to
float32's rounding."""

from __future__ import annotations

from typing import Any

import fast_helpers as fast
import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from stable_baselines3 import PPO
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from torch import nn

from orchestrator.worker.training.fast import rollout
from orchestrator.worker.training.fast.ppo import FastPPO

ARRAYS = ("observations", "actions", "rewards", "values", "log_probs", "advantages", "returns")


def pair(venvs: tuple[VecEnv, VecEnv], **options: Any) -> tuple[Any, Any]:
    """Fast and stock learner with the same weights."""
    ours, stocks = (
        fast.make(kind, venv, **options) for kind, venv in zip((FastPPO, PPO), venvs, strict=True)
    )
    for model in (ours, stocks):
        fast.loud(model)
    return ours, stocks


def two(*, normalize: bool = False, n_envs: int = 1, **options: Any) -> tuple[VecEnv, VecEnv]:
    venvs = (fast.smooth_envs(n_envs, **options), fast.smooth_envs(n_envs, **options))
    return tuple(VecNormalize(venv) for venv in venvs) if normalize else venvs  # type: ignore[return-value]


def collect_both(ours: FastPPO, stocks: PPO, callbacks: tuple[Any, Any], seed: int) -> None:
    torch.manual_seed(seed)
    assert fast.collect(ours, callbacks[0])
    torch.manual_seed(seed)
    with fast.drawn_at_once(stocks):
        assert fast.collect(stocks, callbacks[1])


def assert_same_rollout(ours: FastPPO, stocks: PPO) -> None:
    mine, theirs = ours.rollout_buffer, stocks.rollout_buffer
    for name in ARRAYS:
        other = getattr(theirs, name)
        one = getattr(mine, name).reshape(other.shape)
        np.testing.assert_allclose(
            one, other, rtol=1e-5, atol=2e-5 * max(1.0, np.abs(other).max()), err_msg=name
        )
    np.testing.assert_array_equal(mine.episode_starts, theirs.episode_starts)
    np.testing.assert_allclose(ours._last_obs, stocks._last_obs, rtol=1e-5, atol=1e-5)
    assert ours._last_obs.dtype == stocks._last_obs.dtype
    np.testing.assert_array_equal(ours._last_episode_starts, stocks._last_episode_starts)
    assert ours.num_timesteps == stocks.num_timesteps
    episodes = [
        [(each["l"], each["r"]) for each in model.ep_info_buffer] for model in (ours, stocks)
    ]
    assert [length for length, _ in episodes[0]] == [length for length, _ in episodes[1]]
    np.testing.assert_allclose(
        [r for _, r in episodes[0]], [r for _, r in episodes[1]], rtol=1e-5, atol=1e-4
    )


@settings(max_examples=6, deadline=None, derandomize=True)
@given(
    n_envs=st.integers(1, 4),
    n_steps=st.integers(2, 40),
    life=st.integers(1, 15) | st.just(10**9),
    limit=st.none() | st.integers(1, 15),
    normalize=st.booleans(),
    observation=st.sampled_from([(1,), (4,), (2, 3)]),
    observation_type=st.sampled_from([np.float32, np.float64]),
    action_type=st.sampled_from([np.float32, np.float64]),
    bound=st.sampled_from([0.01, 1.0, 100.0]),
    net_arch=st.sampled_from([[], [8], {"pi": [8, 8], "vf": [16]}, {"pi": [], "vf": [4]}]),
    activation=st.sampled_from([nn.Tanh, nn.ReLU, nn.ELU]),
    gamma=st.sampled_from([0.0, 0.9, 0.999, 1.0]),
    gae_lambda=st.sampled_from([0.0, 0.95, 1.0]),
)
# The last step of a rollout ends episodes: by the time limit, or by themselves.
@example(3, 10, 10**9, 5, False, (4,), np.float32, np.float32, 1.0, [8], nn.Tanh, 0.99, 0.95)
@example(3, 10, 10, None, True, (4,), np.float32, np.float32, 1.0, [8], nn.Tanh, 0.99, 0.95)
@example(1, 250, 10**9, 100, True, (4,), np.float64, np.float32, 1.0, [64, 64], nn.Tanh, 0.99, 0.95)
def test_a_rollout_is_stable_baselines3s_from_the_same_noise(
    n_envs: int,
    n_steps: int,
    life: int,
    limit: int | None,
    normalize: bool,
    observation: tuple[int, ...],
    observation_type: Any,
    action_type: Any,
    bound: float,
    net_arch: Any,
    activation: type[nn.Module],
    gamma: float,
    gae_lambda: float,
) -> None:
    kinds = {
        "observation": observation,
        "observation_type": observation_type,
        "action_type": action_type,
    }
    venvs = two(normalize=normalize, n_envs=n_envs, life=life, limit=limit, bound=bound, **kinds)
    policy_kwargs = {"net_arch": net_arch, "activation_fn": activation}
    options = {
        "n_steps": n_steps,
        "gamma": gamma,
        "gae_lambda": gae_lambda,
        "policy_kwargs": policy_kwargs,
    }
    ours, stocks = pair(venvs, batch_size=n_steps * n_envs, **options)
    callbacks = fast.begin(ours), fast.begin(stocks)
    for seed in range(3):
        collect_both(ours, stocks, callbacks, seed)
        assert_same_rollout(ours, stocks)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    steps=st.integers(1, 30),
    n_envs=st.integers(1, 5),
    gamma=st.sampled_from([0.0, 0.9, 0.99, 1.0]),
    gae_lambda=st.sampled_from([0.0, 0.95, 1.0]),
    ends=st.sampled_from([0.0, 0.1, 1.0]),
    seed=st.integers(0, 2**20),
)
def test_advantages_and_returns_are_stable_baselines3s_to_the_bit(
    steps: int, n_envs: int, gamma: float, gae_lambda: float, ends: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    box = gymnasium.spaces.Box(-1, 1, (1,))
    stocks = RolloutBuffer(steps, box, box, "cpu", gae_lambda, gamma, n_envs)
    x = np.ones((steps + 1, n_envs, 2), np.float32)
    ours = rollout.Rollout(x, np.zeros((steps, n_envs, 1), np.float32))
    for name in ("rewards", "values"):
        array = rng.normal(size=(steps, n_envs)).astype(np.float32)
        getattr(ours, name)[...] = array
        setattr(stocks, name, array.copy())
    ours.episode_starts[...] = stocks.episode_starts[...] = rng.random((steps, n_envs)) < ends
    last_values, dones = rng.normal(size=n_envs).astype(np.float32), rng.random(n_envs) < ends
    rollout._estimate_advantages(ours, last_values, dones, gamma, gae_lambda)
    stocks.compute_returns_and_advantage(torch.from_numpy(last_values), dones)
    for name in ("advantages", "returns"):
        mine, theirs = getattr(ours, name), getattr(stocks, name)
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="plain", marks=pytest.mark.nightly),
        pytest.param({"clip_range_vf": 0.2, "target_kl": 10.0}, id="with more to log"),
    ],
)
def test_learn_logs_what_it_logs_in_stable_baselines3(options: dict[str, Any]) -> None:
    logs = []
    for model in pair(two(n_envs=2, limit=5), **options):
        noted = fast.Noted()
        model.set_logger(Logger(None, [noted]))
        model.learn(64)
        logs.append(noted)
    ours, stocks = logs
    assert [list(row) for row in ours.rows] == [list(row) for row in stocks.rows]
    assert ours.excluded == stocks.excluded
    assert len(ours.rows) == 4
    assert [row.get("train/n_updates") for row in ours.rows[:2]] == [None, 10]
    for row in ours.rows:
        assert all(isinstance(value, int | float) for value in row.values())
