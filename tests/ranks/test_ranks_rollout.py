"""Rollouts that ask the critic at the end hold what Stable-Baselines3's own hold, to rounding."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv

from orchestrator.worker.ranks import batched_rollout

pytestmark = pytest.mark.nightly

N_ENVS, N_STEPS = 3, 40
ROWS_AT_ONCE = 32
"""Of 120: the last ones are fewer."""
ARRAYS = (
    "observations",
    "actions",
    "rewards",
    "episode_starts",
    "values",
    "log_probs",
    "advantages",
    "returns",
)


class Parts(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Observations in two parts."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        box = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.observation_space = spaces.Dict({"first": box, "rest": box})

    def _parts(self, observation: Any) -> dict[str, Any]:
        return {"first": observation[:2], "rest": observation[2:]}

    def reset(self, **arguments: Any) -> Any:
        observation, info = self.env.reset(**arguments)
        return self._parts(observation), info

    def step(self, action: Any) -> Any:
        observation, *rest = self.env.step(action)
        return self._parts(observation), *rest


def cut_off(name: str) -> gymnasium.Env[Any, Any]:
    """Episodes end by the time limit, in the midst of a rollout."""
    return gymnasium.make(name, max_episode_steps=15)


CASES = {
    "continuous actions": ("MlpPolicy", lambda: cut_off("Pendulum-v1")),
    "discrete actions": ("MlpPolicy", lambda: cut_off("CartPole-v1")),
    "discrete observations": ("MlpPolicy", lambda: cut_off("CliffWalking-v1")),
    "observations of parts": ("MultiInputPolicy", lambda: Parts(cut_off("CartPole-v1"))),
}


def collected(case: str, *, stock: bool) -> tuple[PPO, dict[str, Any]]:
    policy, make = CASES[case]
    model = PPO(
        policy, DummyVecEnv([make] * N_ENVS), n_steps=N_STEPS, batch_size=N_ENVS * N_STEPS, seed=1
    )
    _, callback = model._setup_learn(1000, None)
    torch.manual_seed(2)
    for _ in range(2):  # the second begins in the midst of episodes
        if stock:
            assert model.collect_rollouts(model.env, callback, model.rollout_buffer, N_STEPS)
        else:
            batched_rollout.collect(model, model.env, ROWS_AT_ONCE)
    return model, {name: getattr(model.rollout_buffer, name) for name in ARRAYS}


@pytest.mark.parametrize("case", CASES)
def test_a_rollout_is_the_same_to_rounding(case: str) -> None:
    ours, actual = collected(case, stock=False)
    stock, expected = collected(case, stock=True)
    for name in ARRAYS:
        if isinstance(expected[name], dict):
            for part in expected[name]:
                np.testing.assert_allclose(
                    actual[name][part], expected[name][part], rtol=1e-5, atol=1e-5
                )
        else:
            np.testing.assert_allclose(
                actual[name], expected[name], rtol=1e-4, atol=1e-4, err_msg=name
            )
    assert ours.num_timesteps == stock.num_timesteps
    assert ours.rollout_buffer.full
    assert np.array_equal(ours._last_episode_starts, stock._last_episode_starts)
