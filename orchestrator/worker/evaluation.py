"""How good the trained policy is: whole episodes, without exploration, in fresh environments."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3 import PPO

from orchestrator.contract import WorkerSpec
from orchestrator.worker import envs
from orchestrator.worker.progress import say

LONGEST = 100_000
"""Control steps after which an episode is cut off: a good policy may keep one up for ever where nothing limits it."""
_SPAWN_KEY = 1
"""Sets the seeds of evaluation apart from those of training."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    returns: list[float]
    """Sums of the task's own rewards, in the order in which the episodes ended."""
    lengths: list[int]
    """Control steps."""
    seed: int
    """Environment *i* had ``seed + i`` (a built-in task's batch has ``seed`` as a whole)."""
    n_envs: int

    @property
    def mean(self) -> float:
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        return float(np.std(self.returns))

    def to_json(self) -> str:
        return (
            json.dumps(
                {
                    "mean": self.mean,
                    "std": self.std,
                    "returns": self.returns,
                    "lengths": self.lengths,
                    "deterministic": True,
                    "seed": self.seed,
                    "n_envs": self.n_envs,
                },
                indent=2,
            )
            + "\n"
        )


def evaluate(spec: WorkerSpec, job_dir: Path, model: PPO, each_step: Callable[[], None]) -> Evaluation:
    """Run ``spec.eval_episodes`` deterministic episodes with the statistics of normalisation frozen.

    The episodes are dealt out to the environments beforehand: taking the first to end would favour short ones.
    ``each_step`` is called after every step and may raise to end the evaluation.
    """
    seed = int(np.random.SeedSequence(spec.seed, spawn_key=(_SPAWN_KEY,)).generate_state(1)[0]) >> 1
    n_envs = min(spec.n_envs, spec.eval_episodes)
    venv = envs.make(spec, job_dir, n_envs=n_envs, seed=seed)
    try:
        venv.seed(seed)
        left = np.array([(spec.eval_episodes + index) // n_envs for index in range(n_envs)])
        returns, lengths = _run(model, _prepared(spec, model, venv), left, each_step)
        return Evaluation(returns, lengths, seed, n_envs)
    finally:
        venv.close()


def _prepared(spec: WorkerSpec, model: PPO, venv: Any) -> Any:
    """``venv`` as the model saw its own in training: observations normalised, images transposed."""
    trained = model.get_vec_normalize_env()
    if trained is not None:
        wrapped = envs.normalized(spec, venv)
        wrapped.training = wrapped.norm_reward = False
        if trained.norm_obs:
            wrapped.obs_rms = trained.obs_rms
        venv = wrapped
    return PPO._wrap_env(venv)


def _run(model: PPO, venv: Any, left: np.ndarray, each_step: Callable[[], None]) -> tuple[list[float], list[int]]:
    returns: list[float] = []
    lengths: list[int] = []
    so_far, steps = np.zeros(len(left)), np.zeros(len(left), int)
    observations = venv.reset()
    while left.any():
        actions, _ = model.predict(observations, deterministic=True)
        observations, rewards, dones, infos = venv.step(actions)
        so_far += rewards
        steps += 1
        for index in np.flatnonzero((dones | (steps >= LONGEST)) & (left > 0)):
            if dones[index]:
                left[index] -= 1
                episode = infos[index]["episode"]
                returns.append(float(episode["r"]))
                lengths.append(int(episode["l"]))
            else:
                left[index] = 0
                returns.append(float(so_far[index]))
                lengths.append(int(steps[index]))
                say(f"evaluation: environment {index} ended no episode in {LONGEST} steps and was cut off")
        so_far[dones] = steps[dones] = 0
        each_step()
    return returns, lengths
