"""The algorithms of Stable-Baselines3 and sb3-contrib behind one interface.

:func:`collect` and :func:`update` are the two halves of the loop in ``learn()``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from stable_baselines3 import A2C, PPO, SAC, TD3
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import TrainFreq
from stable_baselines3.common.vec_env import VecEnv

from orchestrator.core.worker_spec import CONTRIB
from orchestrator.worker.runtime import sb3_internals

Model: TypeAlias = OnPolicyAlgorithm | OffPolicyAlgorithm
OffPolicy: TypeAlias = OffPolicyAlgorithm

CLASSES: Mapping[str, type[Model]] = {"ppo": PPO, "sac": SAC, "td3": TD3, "a2c": A2C}
"""Those of Stable-Baselines3, by name in the job file."""


def class_of(algo: str) -> type[Model]:
    """The class of an algorithm, named as in the job file.

    :raises MissingPackageError: it is of sb3-contrib, which is not installed.
    """
    if algo not in CONTRIB:
        return CLASSES[algo]
    from orchestrator.worker.training import contrib

    return contrib.class_of(algo)


def policy_class(algo: str, policy: str) -> type[BasePolicy]:
    """The class of a policy, named as in the job file.

    :raises MissingPackageError: as :func:`class_of`.
    """
    return class_of(algo).policy_aliases[policy_alias(algo, policy)]


def policy_alias(algo: str, policy: str) -> str:
    """The algorithm's own name of a policy of the job file: recurrent PPO has ``MlpLstmPolicy`` for
    ``MlpPolicy``.
    """
    return policy.replace("Policy", "LstmPolicy") if algo == "recurrent-ppo" else policy


def collect(model: Model, env: VecEnv, callback: BaseCallback) -> None:
    """Collect one rollout from ``env`` into the model's buffer."""
    if not isinstance(model, OffPolicy):
        model.collect_rollouts(env, callback, model.rollout_buffer, model.n_steps)
        return
    assert model.replay_buffer is not None
    assert isinstance(model.train_freq, TrainFreq), "the model's set-up converts the hyperparameter"
    when = model.train_freq
    starts = model.learning_starts
    model.collect_rollouts(
        env, callback, when, model.replay_buffer, model.action_noise, starts, log_interval=None
    )


def update(model: Model, steps: int, total_timesteps: int) -> None:
    """Learn from the buffer, after a rollout of ``steps`` env_steps."""
    if not isinstance(model, OffPolicy):
        sb3_internals.update_progress(model, total_timesteps)
        model.train()
    elif model.num_timesteps > model.learning_starts:
        gradient_steps = model.gradient_steps if model.gradient_steps >= 0 else steps
        if gradient_steps > 0:
            model.train(gradient_steps=gradient_steps, batch_size=model.batch_size)


def dump_logs(model: Model, iteration: int) -> None:
    """Write the logged values to the logger's outputs."""
    if isinstance(model, OffPolicy):
        model.dump_logs()
    else:
        model.dump_logs(iteration)


def optimizers(model: Model) -> dict[str, torch.optim.Optimizer]:
    """All optimisers, by the names of their files in ``model.zip``."""
    if not isinstance(model, OffPolicy):
        return {"policy.optimizer": model.policy.optimizer}
    parts: Any = model  # each has them, and the base class does not say so
    by_name: dict[str, torch.optim.Optimizer] = {
        "actor.optimizer": parts.actor.optimizer,
        "critic.optimizer": parts.critic.optimizer,
    }
    of_temperature = getattr(model, "ent_coef_optimizer", None)
    if of_temperature is not None:
        by_name["ent_coef_optimizer"] = of_temperature
    return by_name


def temperature(model: Model) -> torch.Tensor | None:
    """The logarithm of a learnt entropy coefficient (SAC, TQC, CrossQ), not part of the policy;
    None elsewhere.
    """
    learnt: torch.Tensor | None = getattr(model, "log_ent_coef", None)
    return learnt


def activation(name: str) -> type[torch.nn.Module]:
    """Torch's class of an activation named in a job file: ``"leaky_relu"`` → ``LeakyReLU``."""
    classes: dict[str, type[torch.nn.Module]] = {
        key.lower(): value for key, value in vars(torch.nn).items()
    }
    return classes[name.replace("_", "")]
