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

_SPAWN_KEY = 1
"""Sets the seeds of evaluation apart from those of training."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    returns: list[float]
    """Sums of the task's own rewards, in the order in which the episodes ended."""
    lengths: list[int]
    """Control steps."""

    @property
    def mean(self) -> float:
        return float(np.mean(self.returns))

    def to_json(self) -> str:
        return (
            json.dumps(
                {
                    "mean": self.mean,
                    "std": float(np.std(self.returns)),
                    "returns": self.returns,
                    "lengths": self.lengths,
                    "deterministic": True,
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
        return _run(model, _prepared(spec, model, venv), left, each_step)
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


def _run(model: PPO, venv: Any, left: np.ndarray, each_step: Callable[[], None]) -> Evaluation:
    result = Evaluation([], [])
    observations = venv.reset()
    while left.any():
        actions, _ = model.predict(observations, deterministic=True)
        observations, _, dones, infos = venv.step(actions)
        for index in np.flatnonzero(dones):
            if left[index]:
                left[index] -= 1
                episode = infos[index]["episode"]
                result.returns.append(float(episode["r"]))
                result.lengths.append(int(episode["l"]))
        each_step()
    return result
