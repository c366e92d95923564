"""Trains Stable-Baselines3's PPO, or a PPO with its methods: SBX's and the fast learner."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

from benchmarks.contenders import stopwatch
from benchmarks.contenders.stopwatch import Asked, Stopwatch

HYPERPARAMETERS = {
    "n_steps": stopwatch.N_STEPS,
    "batch_size": stopwatch.BATCH_SIZE,
    "n_epochs": stopwatch.N_EPOCHS,
    "learning_rate": stopwatch.LEARNING_RATE,
    "gamma": stopwatch.GAMMA,
    "gae_lambda": stopwatch.GAE_LAMBDA,
    "clip_range": stopwatch.CLIP_RANGE,
    "ent_coef": stopwatch.ENT_COEF,
    "vf_coef": stopwatch.VF_COEF,
    "max_grad_norm": stopwatch.MAX_GRAD_NORM,
}
NETWORKS = {"net_arch": list(stopwatch.HIDDEN)}
"""Tanh layers are the default of all of them."""


class EndsOfIterations(BaseCallback):
    def __init__(self, watch: Stopwatch) -> None:
        super().__init__()
        self._watch = watch

    def _on_rollout_start(self) -> None:
        if self.num_timesteps:
            self._watch.mark(self.num_timesteps)

    def _on_step(self) -> bool:
        return True


def model_of(asked: Asked) -> Any:
    if asked.contender == "fast":
        return fast(asked)
    venv = make_vec_env(asked.robot, n_envs=1, seed=asked.seed)
    common: dict[str, Any] = {"seed": asked.seed, "device": "cpu", **HYPERPARAMETERS}
    if asked.contender == "sb3":
        return PPO("MlpPolicy", venv, policy_kwargs=NETWORKS, **common)
    small_last_layer = {**NETWORKS, "ortho_init": True}
    return importlib.import_module("sbx").PPO("MlpPolicy", venv, policy_kwargs=small_last_layer, **common)


def fast(asked: Asked) -> Any:
    """The fast learner over the environment of a job."""
    from benchmarks.harness import ROOT
    from benchmarks.learner import built, gymnasium_spec
    from orchestrator.worker.envs import env_factory

    spec = gymnasium_spec(asked.robot, hyperparameters=HYPERPARAMETERS, policy_kwargs=NETWORKS)
    spec = replace(spec, seed=asked.seed)
    return built(spec, "fast", env_factory.make(spec, ROOT, n_envs=1, seed=asked.seed))


def train(asked: Asked) -> None:
    watch, model = Stopwatch(), model_of(asked)
    env_steps = stopwatch.N_STEPS * stopwatch.iterations(asked.env_steps, stopwatch.N_STEPS)
    model.learn(env_steps, callback=EndsOfIterations(watch))
    watch.mark(model.num_timesteps)
    watch.write(asked.result, [episode["r"] for episode in model.ep_info_buffer])


if __name__ == "__main__":
    stopwatch.run(train)
