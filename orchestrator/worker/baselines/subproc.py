"""Stock PPO over ``SubprocVecEnv``: how Stable-Baselines3 itself uses more cores, a process for every environment.

For `bench --ranks`, which puts it beside ranks: the same task, hyperparameters, seeds, loop and timings, without our
learner, our batched environment and our normalisation.
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
from orchestrator.worker.distributed.ranks import ALONE
from orchestrator.worker.envs import env_factory
from orchestrator.worker.envs.vec_env import MujocoVecEnv
from orchestrator.worker.runtime.exit_record import AttemptFacts
from orchestrator.worker.runtime.progress import ProgressReporter
from orchestrator.worker.training import learners
from orchestrator.worker.training.train import Training


class Single(gymnasium.Env[NDArray[Any], NDArray[Any]]):
    """Environment ``number`` of a built-in task by itself, as gymnasium has environments.

    :param spec: of a job with a robot and a task.
    """

    def __init__(self, spec: WorkerSpec, job_dir: Path, number: int) -> None:
        alone = env_factory.make(spec, job_dir, n_envs=1, seed=spec.seed, first_env=number)
        assert isinstance(alone, MujocoVecEnv), f"{spec.job_id} has an environment of its own"
        self._batch, self._number = alone, number
        self._begun: NDArray[Any] | None = None
        """The first observation of the episode that the batch has begun by itself."""
        self.observation_space, self.action_space = alone.observation_space, alone.action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """:param seed: as ``VecEnv.seed`` gives it to this environment: the job's, and ``number``."""
        if seed is not None:
            self._batch.seed(seed - self._number)
            self._begun = None
        observation, self._begun = self._begun, None
        return self._batch.reset()[0] if observation is None else observation, {}

    def step(self, action: NDArray[Any]) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        self._batch.step_async(action[None])
        observations: Any
        observations, rewards, dones, (info,) = self._batch.step_wait()
        if not dones[0]:
            return observations[0], float(rewards[0]), False, False, info
        self._begun = observations[0]
        truncated = bool(info["TimeLimit.truncated"])
        return info["terminal_observation"], float(rewards[0]), not truncated, truncated, info


def make(spec: WorkerSpec, job_dir: Path) -> VecEnv:
    """All environments of the job, each in a process of its own, with the seeds that they have in one process."""
    if spec.env is None and spec.entry_point is None:
        makers: list[Callable[[], gymnasium.Env[Any, Any]]] = [
            partial(Single, spec, job_dir, number) for number in range(spec.n_envs)
        ]
    else:
        makers = env_factory.makers(spec, job_dir, range(spec.n_envs), spec.seed)
    venv = SubprocVecEnv(makers)
    return env_factory.normalized(spec, venv, VecNormalize) if spec.normalize else venv


def run(spec: WorkerSpec, paths: JobPaths, facts: AttemptFacts, reporter: ProgressReporter) -> None:
    """Train on and on, with rows in ``timings.csv``, until it is ended from outside."""
    spec = dataclasses.replace(spec, learner="sb3", ranks=1)
    venv = make(spec, paths.root)
    try:
        learner = learners.build(spec, venv)
        facts.learner, facts.learner_reason, reporter.learner = learner.name, learner.reason, learner.name
        Training(spec, paths, learner.model, facts, reporter, ALONE).train(lambda: False)
    finally:
        venv.close()
