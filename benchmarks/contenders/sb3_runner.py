"""Trains Stable-Baselines3's PPO, or a PPO with its methods: SBX's and the fast learner."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import Logger

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
OF_JOBS = (
    stopwatch.TORCH,
    stopwatch.GYMNASIUM,
    "benchmarks.learner",
    "orchestrator.worker.envs.env_factory",
    "orchestrator.worker.training.learners",
)
NEEDED = {
    "sb3": (stopwatch.TORCH, stopwatch.GYMNASIUM),
    "sbx": (stopwatch.TORCH, stopwatch.GYMNASIUM, "sbx"),
    "fast": OF_JOBS,
    "fast_wide": OF_JOBS,
}
"""Modules that the trainings of a contender import."""
NETWORKS = {"net_arch": list(stopwatch.HIDDEN)}
"""Tanh layers are the default of all of them."""
RL_GAMES: Mapping[str, tuple[Mapping[str, Any], Sequence[int]]] = {
    "HalfCheetah-v5": (
        {"n_steps": 256, "n_epochs": 5, "learning_rate": 5e-4, "vf_coef": 2.0},
        (128, 64, 32),
    ),
    "Ant-v5": (
        {"n_steps": 64, "n_epochs": 4, "learning_rate": 3e-4, "vf_coef": 1.0},
        (256, 128, 64),
    ),
}
"""Hyperparameters and layers in rl_games' files for EnvPool. Its ``critic_coef`` is twice a
``vf_coef``."""


def model_of(asked: Asked) -> Any:
    if asked.contender == "fast":
        return fast(asked)
    if asked.contender == "fast_wide":
        return fast_wide(asked)
    venv = make_vec_env(asked.robot, n_envs=1, seed=asked.seed)
    common: dict[str, Any] = {"seed": asked.seed, "device": "cpu", **HYPERPARAMETERS}
    if asked.contender == "sb3":
        return PPO("MlpPolicy", venv, policy_kwargs=NETWORKS, **common)
    small_last_layer = {**NETWORKS, "ortho_init": True}
    return importlib.import_module("sbx").PPO(
        "MlpPolicy", venv, policy_kwargs=small_last_layer, **common
    )


def fast(asked: Asked) -> Any:
    """The fast learner over gymnasium's environment in a job."""
    from benchmarks.harness import ROOT
    from benchmarks.learner import built, gymnasium_spec
    from orchestrator.worker.envs import env_factory

    spec = gymnasium_spec(asked.robot, hyperparameters=HYPERPARAMETERS, policy_kwargs=NETWORKS)
    spec = replace(spec, seed=asked.seed)
    return built(spec, "fast", env_factory.make(spec, ROOT, n_envs=1, seed=asked.seed))


def fast_wide(asked: Asked) -> Any:
    """The fast learner over the batched environment of a job, with rl_games' settings as far as it
    has them."""
    from benchmarks.learner import built, gymnasium_spec
    from orchestrator.worker.envs import env_factory
    from orchestrator.worker.envs.vec_env import MujocoVecEnv
    from orchestrator.worker.tasks import gymnasium_tasks

    changes, net_arch = RL_GAMES[asked.robot]
    spec = gymnasium_spec(
        asked.robot,
        hyperparameters={**HYPERPARAMETERS, **changes, "batch_size": 2048, "max_grad_norm": 1.0},
        policy_kwargs={"net_arch": net_arch, "activation_fn": "elu"},
    )
    spec = replace(spec, seed=asked.seed, n_envs=64)
    task = f"gymnasium:{asked.robot}"
    venv = MujocoVecEnv(
        gymnasium_tasks.default_xml(task), task, n_envs=spec.n_envs, seed=asked.seed
    )
    return built(spec, "fast", env_factory.normalized_env(spec, venv))


def train(asked: Asked, make_model: Callable[[Asked], Any] = model_of) -> None:
    watch = Stopwatch(asked.goal)
    model = make_model(asked)
    # Its own logger makes a temporary folder at every `learn`.
    model.set_logger(Logger(folder=None, output_formats=[]))
    of_one = model.n_steps * model.n_envs
    for number in range(stopwatch.iterations(asked.env_steps, of_one)):
        # Without a callback, for which the fast learner would evaluate every step as stock PPO
        # does.
        model.learn(of_one, reset_num_timesteps=not number)
        returns = [float(episode["r"]) for episode in model.ep_info_buffer]
        if watch.mark(model.num_timesteps, returns):
            break
    watch.write(asked.result, returns)


if __name__ == "__main__":
    stopwatch.run(train, NEEDED)
