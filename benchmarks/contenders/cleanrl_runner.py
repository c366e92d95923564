"""Trains ``benchmarks/plain_torch_ppo.py``, which has CleanRL's style, over gymnasium's own vector
environment."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from benchmarks.contenders import stopwatch
from benchmarks.contenders.stopwatch import Asked, Stopwatch
from benchmarks.plain_torch_ppo import PlainPPO


class GymnasiumVector:
    """gymnasium's vector environment with the methods that ``PlainPPO`` calls; keeps the returns of
    episodes."""

    def __init__(self, robot: str, seed: int) -> None:
        self._envs = SyncVectorEnv(
            [lambda: gymnasium.make(robot)], autoreset_mode=AutoresetMode.SAME_STEP
        )
        self._seed = seed
        self.num_envs = 1
        self.observation_space = self._envs.single_observation_space
        self.action_space = self._envs.single_action_space
        self.returns: list[float] = []
        self._sum = 0.0

    def reset(self) -> Any:
        return self._envs.reset(seed=self._seed)[0]

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any]:
        observations, rewards, terminated, truncated, infos = self._envs.step(actions)
        ended = np.logical_or(terminated, truncated)
        self._sum += float(rewards[0])
        if ended[0]:
            self.returns.append(self._sum)
            self._sum = 0.0
        return observations, rewards, ended, infos


def train(asked: Asked) -> None:
    watch = Stopwatch(asked.goal)
    venv = GymnasiumVector(asked.robot, asked.seed)
    ppo = PlainPPO(
        venv,  # type: ignore[arg-type]
        n_steps=stopwatch.N_STEPS,
        batch_size=stopwatch.BATCH_SIZE,
        n_epochs=stopwatch.N_EPOCHS,
        learning_rate=stopwatch.LEARNING_RATE,
        gamma=stopwatch.GAMMA,
        gae_lambda=stopwatch.GAE_LAMBDA,
        clip_range=stopwatch.CLIP_RANGE,
        ent_coef=stopwatch.ENT_COEF,
        vf_coef=stopwatch.VF_COEF,
        max_grad_norm=stopwatch.MAX_GRAD_NORM,
        seed=asked.seed,
    )
    for number in range(stopwatch.iterations(asked.env_steps, stopwatch.N_STEPS)):
        ppo.collect_rollouts()
        ppo.train()
        if watch.mark((number + 1) * stopwatch.N_STEPS, venv.returns):
            break
    watch.write(asked.result, venv.returns)


if __name__ == "__main__":
    stopwatch.run(train, {"cleanrl": (stopwatch.TORCH, stopwatch.GYMNASIUM)})
