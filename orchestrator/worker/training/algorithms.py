"""The algorithms of Stable-Baselines3, and classes with its interface, behind one interface.

:func:`collect` and :func:`update` are the two halves of the loop in ``learn()``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from stable_baselines3 import A2C, PPO, SAC, TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.save_util import recursive_getattr
from stable_baselines3.common.type_aliases import TrainFreq
from stable_baselines3.common.vec_env import VecEnv

from orchestrator.core.worker_spec import is_algorithm_class
from orchestrator.worker.runtime import failures, sb3_internals, user_env
from orchestrator.worker.runtime.failures import AlgorithmError

Model: TypeAlias = BaseAlgorithm
OnPolicy: TypeAlias = OnPolicyAlgorithm
OffPolicy: TypeAlias = OffPolicyAlgorithm

CLASSES: Mapping[str, type[Model]] = {"ppo": PPO, "sac": SAC, "td3": TD3, "a2c": A2C}
"""Those with a name in the job file."""


def class_of(algo: str) -> type[Model]:
    """The class of an algorithm, named as in the job file.

    :raises AlgorithmError: there is no such class, or it is no algorithm.
    """
    if not is_algorithm_class(algo):
        return CLASSES[algo]
    try:
        kind: object = user_env.load(algo)
    except user_env.EntryPointError as error:
        raise AlgorithmError(f"{algo}: {error}") from None
    except (Exception, SystemExit) as error:
        raise AlgorithmError(f"{algo}: {failures.describe(error)}") from error
    if not isinstance(kind, type) or not issubclass(kind, OnPolicy | OffPolicy):
        raise AlgorithmError(
            f"{algo} is no algorithm; expected a class derived from Stable-Baselines3's "
            "OnPolicyAlgorithm or OffPolicyAlgorithm"
        )
    return kind


def policy_class(algo: str, policy: str) -> type[BasePolicy]:
    """The class of a policy, both named as in the job file."""
    return CLASSES[algo].policy_aliases[policy]


def collect(model: Model, env: VecEnv, callback: BaseCallback) -> None:
    """Collect one rollout from ``env`` into the model's buffer."""
    if isinstance(model, OnPolicy):
        model.collect_rollouts(env, callback, model.rollout_buffer, model.n_steps)
    else:
        assert isinstance(model, OffPolicy)
        assert model.replay_buffer is not None
        assert isinstance(model.train_freq, TrainFreq), (
            "the model's set-up converts the hyperparameter"
        )
        model.collect_rollouts(
            env,
            callback,
            model.train_freq,
            model.replay_buffer,
            model.action_noise,
            model.learning_starts,
            log_interval=None,
        )


def update(model: Model, steps: int, total_timesteps: int) -> None:
    """Learn from the buffer, after a rollout of ``steps`` env_steps."""
    if isinstance(model, OnPolicy):
        sb3_internals.update_progress(model, total_timesteps)
        model.train()
    elif isinstance(model, OffPolicy) and model.num_timesteps > model.learning_starts:
        gradient_steps = model.gradient_steps if model.gradient_steps >= 0 else steps
        if gradient_steps > 0:
            model.train(gradient_steps=gradient_steps, batch_size=model.batch_size)


def dump_logs(model: Model, iteration: int) -> None:
    """Write the logged values to the logger's outputs."""
    if isinstance(model, OnPolicy):
        model.dump_logs(iteration)
    elif isinstance(model, OffPolicy):
        model.dump_logs()


def optimizers(model: Model) -> dict[str, torch.optim.Optimizer]:
    """All optimisers, by the names of their files in ``model.zip``."""
    parts: dict[str, Any] = {
        name: recursive_getattr(model, name) for name in sb3_internals.saved_parts(model)
    }
    return {name: part for name, part in parts.items() if isinstance(part, torch.optim.Optimizer)}


def temperature(model: Model) -> torch.Tensor | None:
    """The logarithm of a learnt entropy coefficient (SAC), not part of the policy; None
    elsewhere.
    """
    learnt: torch.Tensor | None = getattr(model, "log_ent_coef", None)
    return learnt


def activation(name: str) -> type[torch.nn.Module]:
    """Torch's class of an activation named in a job file: ``"leaky_relu"`` → ``LeakyReLU``."""
    kinds: dict[str, type[torch.nn.Module]] = vars(torch.nn)
    wanted = name.replace("_", "")
    return next(kind for key, kind in kinds.items() if key.lower() == wanted)
