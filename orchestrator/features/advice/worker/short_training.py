"""A policy that was trained for a few seconds on the original robot: it moves the robot as a
beginner does, which random actions do not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.worker.envs import env_factory
from orchestrator.worker.envs.vec_env import MujocoVecEnv
from orchestrator.worker.training import learners

N_ENVS = 8
N_STEPS = 256
"""Control steps of an environment in one rollout of PPO."""
MOST_ENV_STEPS = 200_000


class ShortTrainedPolicy:
    """Trained with PPO by this program's learner, with normalised observations and rewards.

    :param xml: the robot, with all changes that the job makes.
    :param cpu_s: CPU seconds of training; at least one rollout is trained.
    :param deadline: on the monotonic clock; no further rollout is begun after it.
    """

    def __init__(
        self,
        xml: Path,
        task: str,
        task_options: Mapping[str, Any],
        *,
        cpu_s: float,
        deadline: float = math.inf,
    ) -> None:
        venv = MujocoVecEnv(
            xml, task, task_options, n_envs=N_ENVS, seed=0, on_divergence="end-episode"
        )
        spec = WorkerSpec(
            job_id="advice",
            name="advice",
            seed=0,
            algo="ppo",
            learner="auto",
            total_timesteps=MOST_ENV_STEPS,
            n_envs=N_ENVS,
            normalize=True,
            checkpoint_every=None,
            eval_episodes=0,
            hyperparameters={"n_steps": N_STEPS, "batch_size": N_STEPS},
        )
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            self._normalized = env_factory.normalized_env(spec, venv)
            self._model = learners.build(spec, self._normalized).model
            until = time.thread_time() + cpu_s
            while self.env_steps == 0 or (
                self.env_steps < MOST_ENV_STEPS
                and time.thread_time() < until
                and time.monotonic() < deadline
            ):
                self._model.learn(N_ENVS * N_STEPS, reset_num_timesteps=False)
        finally:
            torch.set_num_threads(threads)
            self._normalized.training = False

    @property
    def env_steps(self) -> int:
        return int(self._model.num_timesteps)

    def act_cpu_s(self, n_envs: int) -> float:
        """CPU seconds of :meth:`actions` for so many observations, measured once."""
        observations = np.zeros((n_envs, *(self._normalized.observation_space.shape or ())))
        begun = time.thread_time()
        self.actions(observations)
        return time.thread_time() - begun

    def actions(self, observations: NDArray[Any]) -> NDArray[Any]:
        """``(n, actions)`` for observations ``(n, observation_size)`` as the task gives them."""
        seen = self._normalized.normalize_obs(observations)
        assert isinstance(seen, np.ndarray)
        actions, _ = self._model.predict(seen, deterministic=True)
        return actions
