"""Values that the critic alone sees: ``asymmetric = true``.

The last observations are what the episode has drawn. Policy and networks are those of
Stable-Baselines3; only the actor's weights for these observations are 0 and stay so, because their
gradient is always 0. So ``model.zip`` loads wherever Stable-Baselines3 does, and an exported actor
leaves these columns out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from stable_baselines3.common.vec_env import VecEnv
from torch import nn

from orchestrator.worker.training.algorithms import Model, OffPolicy
from orchestrator.worker.training.fast.ppo import FastPPO


def privileged_values(venv: VecEnv) -> int:
    """How many of the last observations the critic alone may see."""
    return len(getattr(getattr(venv.unwrapped, "simulation", None), "privileged_names", ()))


def hide_from_actor(model: Model, count: int) -> None:
    """Make the actor of a new ``model`` blind to the last ``count`` observations, for good."""
    set_to_zero(model, count)
    for weights in _first_weights(model):
        mask = torch.ones_like(weights)
        mask[:, -count:] = 0.0
        weights.register_hook(lambda gradient, mask=mask: gradient * mask)  # type: ignore[no-untyped-call]
    if isinstance(model, FastPPO):
        model.network.hide_from_actor(count)


def set_to_zero(model: Model, count: int) -> None:
    """Set the actor's weights for these observations to 0: in a new model, and again after other
    weights were copied into it.
    """
    with torch.no_grad():
        for weights in _first_weights(model):
            weights[:, -count:] = 0.0


def _first_weights(model: Model) -> Iterator[torch.Tensor]:
    """``(units, observations)`` of the actor's first layer, and of its copy where there is one."""
    policy: Any = model.policy
    if not isinstance(model, OffPolicy):
        networks = [policy.mlp_extractor.policy_net]
    else:
        actors = [
            actor
            for name in ("actor", "actor_target")
            if (actor := getattr(policy, name, None)) is not None
        ]
        networks = [getattr(actor, "latent_pi", actor.mu) for actor in actors]
    for network in networks:
        yield next(layer.weight for layer in network.modules() if isinstance(layer, nn.Linear))
