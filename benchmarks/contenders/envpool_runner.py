"""Trains Stable-Baselines3's PPO over EnvPool, as EnvPool's example for Stable-Baselines3 does: four
environments in a batch, of which each is reset when its episode ends."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import numpy as np
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecEnv, VecMonitor

from benchmarks.contenders import sb3_runner, stopwatch
from benchmarks.contenders.stopwatch import Asked

N_ENVS = 4


class EnvPoolVecEnv(VecEnv):
    """EnvPool's batch of environments with the methods of Stable-Baselines3's."""

    def __init__(self, robot: str, seed: int, threads: int) -> None:
        self._pool: Any = importlib.import_module("envpool").make(
            robot, env_type="gymnasium", num_envs=N_ENVS, num_threads=threads, seed=seed
        )
        self._actions = np.zeros((N_ENVS, *self._pool.action_space.shape))
        super().__init__(N_ENVS, self._pool.observation_space, self._pool.action_space)

    def reset(self) -> Any:
        return self._pool.reset()[0]

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = actions.astype(self._pool.action_space.dtype)

    def step_wait(self) -> Any:
        observations, rewards, terminated, truncated, _ = self._pool.step(self._actions)
        ended = terminated | truncated
        infos: list[dict[str, Any]] = [{} for _ in range(N_ENVS)]
        if ended.any():
            rows = np.flatnonzero(ended)
            for row in rows:
                infos[row]["terminal_observation"] = observations[row].copy()
                infos[row]["TimeLimit.truncated"] = bool(truncated[row] and not terminated[row])
            observations = observations.copy()
            observations[rows] = self._pool.reset(rows)[0]
        return observations, rewards, ended, infos

    def close(self) -> None:
        self._pool.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self, attr_name, None)] * N_ENVS

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError(f"EnvPool's environments have no attribute {attr_name}")

    def env_method(
        self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any
    ) -> list[Any]:
        raise NotImplementedError(f"EnvPool's environments have no method {method_name}")

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * N_ENVS


def model_of(asked: Asked) -> PPO:
    venv = VecMonitor(EnvPoolVecEnv(asked.robot, asked.seed, asked.threads))
    settings: dict[str, Any] = {
        **sb3_runner.HYPERPARAMETERS,
        "n_steps": stopwatch.N_STEPS // N_ENVS,
    }
    return PPO(
        "MlpPolicy",
        venv,
        policy_kwargs=sb3_runner.NETWORKS,
        seed=asked.seed,
        device="cpu",
        **settings,
    )


if __name__ == "__main__":
    stopwatch.run(
        partial(sb3_runner.train, make_model=model_of),
        {"envpool": (stopwatch.TORCH, "envpool.mujoco.gym")},
    )
