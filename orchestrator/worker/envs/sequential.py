"""Environments of gymnasium or the user's own, stepped one after another in this process."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
from stable_baselines3.common.vec_env import DummyVecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn
from stable_baselines3.common.vec_env.util import dict_to_obs


class SequentialVecEnv(DummyVecEnv):
    """``DummyVecEnv`` without deep copies at every step, which cost a small robot a third of its physics.

    Every step gives the same values, in arrays and infos of its own. One thing differs: where no episode ended, values
    *within* an info (arrays, dictionaries) are the environment's own objects rather than copies of them. An
    environment that changes them later changes what it gave: what is to be kept must be copied.
    """

    def __init__(self, env_fns: list[Callable[[], gymnasium.Env[Any, Any]]], first_env: int = 0) -> None:
        """:param first_env: number of the first one among those of all ranks: seeds go by these numbers."""
        super().__init__(env_fns)
        self._first_env = first_env

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        return super().seed(seed if seed is None else seed + self._first_env)

    def step_wait(self) -> VecEnvStepReturn:
        rewards, dones, infos = np.empty(self.num_envs, np.float32), np.empty(self.num_envs, np.bool_), self.buf_infos
        buffers: dict[Any, Any] = self.buf_obs
        box = buffers.get(None)
        for index, env in enumerate(self.envs):
            observation, rewards[index], terminated, truncated, info = env.step(self.actions[index])
            dones[index] = done = terminated or truncated
            info["TimeLimit.truncated"] = truncated and not terminated
            if done:
                info["terminal_observation"] = observation
                observation, self.reset_infos[index] = env.reset()
            infos[index] = info
            if box is None:
                self._save_obs(index, observation)
            else:
                box[index] = observation
        self.buf_rews, self.buf_dones = rewards, dones
        given = [deepcopy(info) if done else info.copy() for info, done in zip(infos, dones, strict=True)]
        return self._obs_from_buf(), rewards, dones, given

    def _obs_from_buf(self) -> VecEnvObs:
        buffers: dict[Any, Any] = self.buf_obs
        if None in buffers:
            return buffers[None].copy()  # type: ignore[no-any-return]
        return dict_to_obs(self.observation_space, OrderedDict((key, part.copy()) for key, part in buffers.items()))
