"""Stock PPO over ``SubprocVecEnv``: Stable-Baselines3's own way to use several cores, one process
per environment.

``bench --ranks`` compares it with ranks: the same task, hyperparameters, seeds, loop and timings,
without the fast learner, the batched environment and normalisation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv, VecNormalize

from orchestrator.core.paths import JobPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.worker.envs import env_factory
from orchestrator.worker.envs.vec_env import MujocoVecEnv
from orchestrator.worker.runtime.attempt_facts import AttemptFacts
from orchestrator.worker.runtime.progress import ProgressReporter
from orchestrator.worker.training import learners
from orchestrator.worker.training.attempt import Attempt
from orchestrator.worker.training.train import Training


class SingleEnv(gymnasium.Env[NDArray[Any], NDArray[Any]]):
    """Environment ``number`` of a job with a built-in task, as a gymnasium environment."""

    def __init__(self, spec: WorkerSpec, job_dir: Path, number: int) -> None:
        alone = env_factory.make(
            spec, job_dir, n_envs=1, seed=spec.seed, first_env=number, training=True
        )
        assert isinstance(alone, MujocoVecEnv), f"{spec.job_id} has no built-in task"
        self._batch = alone
        self._number = number
        self._next_observation: NDArray[Any] | None = None
        """First observation of the next episode, which the batched environment begins by itself."""
        self.observation_space = alone.observation_space
        self.action_space = alone.action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """:param seed: the seed that ``VecEnv.seed`` gives to this environment: the job's seed plus
        ``number``.
        """
        if seed is not None:
            self._batch.seed(seed - self._number)
            self._next_observation = None
        observation = self._next_observation
        self._next_observation = None
        return self._batch.reset()[0] if observation is None else observation, {}

    def step(self, action: NDArray[Any]) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        self._batch.step_async(action[None])
        observations: Any
        observations, rewards, dones, (info,) = self._batch.step_wait()
        if not dones[0]:
            return observations[0], float(rewards[0]), False, False, info
        self._next_observation = observations[0]
        truncated = bool(info["TimeLimit.truncated"])
        return info["terminal_observation"], float(rewards[0]), not truncated, truncated, info


def make(spec: WorkerSpec, job_dir: Path) -> VecEnv:
    """All environments of the job, each in its own process, with the same seeds as within one
    process.
    """
    if spec.env is None and spec.entry_point is None:
        makers: list[Callable[[], gymnasium.Env[Any, Any]]] = [
            partial(SingleEnv, spec, job_dir, number) for number in range(spec.n_envs)
        ]
    else:
        makers = env_factory.makers(spec, job_dir, range(spec.n_envs), spec.seed)
    venv = SubprocVecEnv(makers)
    return env_factory.normalized_env(spec, venv, VecNormalize) if spec.normalize else venv


def run(spec: WorkerSpec, paths: JobPaths, facts: AttemptFacts, reporter: ProgressReporter) -> None:
    """Train until the process is killed, with rows in ``timings.csv``."""
    spec = dataclasses.replace(spec, learner="sb3", ranks=1)
    venv = make(spec, paths.root)
    try:
        learner = learners.build(spec, venv)
        facts.learner = learner.name
        facts.learner_reason = learner.reason
        attempt = Attempt(
            spec=spec, paths=paths, model=learner.model, facts=facts, reporter=reporter
        )
        Training(attempt).train(lambda: False)
    finally:
        venv.close()
