"""The layers of a trained policy, as arrays: the part of its network that gives the deterministic action."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import A2C, PPO, SAC, TD3
from stable_baselines3.common.torch_layers import FlattenExtractor
from torch import nn

from orchestrator.core.worker_spec import Activation
from orchestrator.worker.export.exported_policy import DenseLayer, ExportError
from orchestrator.worker.training import algorithms
from orchestrator.worker.training.algorithms import Model

NAMES = {algorithms.activation(name): name for name in get_args(Activation)}


class Network(NamedTuple):
    layers: tuple[DenseLayer, ...]
    mean_limit: float
    """Bound of the last layer's output; infinite without one."""
    squash: bool
    """Whether tanh and the range of the actions follow."""


def network_of(model: Model) -> Network:
    """:raises ExportError: observations or actions are no vectors of numbers, or a layer is of an unknown kind."""
    observations, actions = model.observation_space, model.action_space
    for name, space in (("observations", observations), ("actions", actions)):
        if not isinstance(space, spaces.Box) or len(space.shape) != 1:
            raise ExportError(f"its {name} are {space}; only policies between vectors of real numbers can be exported")
    policy: Any = model.policy
    if isinstance(model, PPO | A2C):
        extractor, modules = policy.pi_features_extractor, [policy.mlp_extractor.policy_net, policy.action_net]
    else:
        extractor, modules = policy.actor.features_extractor, [policy.actor.mu]
        if isinstance(model, SAC):
            modules.insert(0, policy.actor.latent_pi)
    if not isinstance(extractor, FlattenExtractor):
        kind = type(policy).__name__
        raise ExportError(f"{kind} with {type(extractor).__name__} cannot be exported; only MlpPolicy can")
    layers: list[DenseLayer] = []
    limit, parts = math.inf, _leaves(modules)
    if isinstance(model, TD3):
        parts.pop()  # its tanh is that of squashed actions
    for part in parts:
        match part:
            case nn.Linear():
                layers.append(DenseLayer(weight=_array(part.weight), bias=_array(part.bias), activation=""))
            case nn.Hardtanh() if part is parts[-1]:
                limit = float(part.max_val)
            case _ if type(part) in NAMES and layers and not layers[-1].activation:
                last = layers.pop()
                layers.append(DenseLayer(weight=last.weight, bias=last.bias, activation=NAMES[type(part)]))
            case _:
                raise ExportError(f"its network has a layer that cannot be exported: {part}")
    return Network(tuple(layers), limit, bool(policy.squash_output))


def _leaves(modules: Iterable[nn.Module]) -> list[nn.Module]:
    return [leaf for module in modules for leaf in module.modules() if not isinstance(leaf, nn.Sequential)]


def _array(parameter: torch.Tensor) -> np.ndarray[Any, np.dtype[np.float32]]:
    return parameter.detach().cpu().numpy().astype(np.float32)
