"""The layers of a trained policy, as arrays: the part of its network that gives the deterministic
action.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple, get_args

import numpy as np
from stable_baselines3 import TD3
from stable_baselines3.common.torch_layers import CombinedExtractor, FlattenExtractor
from torch import nn

from orchestrator.core.worker_spec import Activation
from orchestrator.features.export.worker.exported_policy import DenseLayer, ExportError
from orchestrator.features.export.worker.input_spaces import entries_of, is_vector
from orchestrator.worker.training import algorithms
from orchestrator.worker.training.algorithms import Model, OffPolicy

ELSEWHERE = "orchestrator.load gives the policy to a script, and play shows it"
"""What to do with a policy that no format holds."""
NAMES = {algorithms.activation(name): name for name in get_args(Activation)}


class Network(NamedTuple):
    layers: tuple[DenseLayer, ...]
    mean_limit: float
    """Bound of the last layer's output; infinite without one."""
    squash: bool
    """Whether tanh and the range of the actions follow."""


def network_of(model: Model) -> Network:
    """:raises ExportError: observations or actions are no vectors of numbers, or a layer is of an
    unknown kind.
    """
    entries = entries_of(model.observation_space)
    if not is_vector(model.action_space):
        raise ExportError(
            f"its actions are {model.action_space}; only those that are a vector of real numbers can be exported; "
            f"{ELSEWHERE}"
        )
    layers: list[DenseLayer] = []
    limit = math.inf
    parts = _leaves(_modules(model, CombinedExtractor if entries else FlattenExtractor))
    if isinstance(model, TD3):
        parts.pop()  # its tanh is that of squashed actions
    for part in parts:
        match part:
            case nn.Linear():
                layers.append(_dense(part))
            case nn.Hardtanh() if part is parts[-1]:
                limit = float(part.max_val)
            case _ if type(part) in NAMES and layers and not layers[-1].activation:
                layers[-1] = replace(layers[-1], activation=NAMES[type(part)])
            case _:
                raise ExportError(
                    f"its network has a layer that cannot be exported: {part}; train it with net_arch and "
                    f"activation_fn alone, or leave it here: {ELSEWHERE}"
                )
    return Network(tuple(layers), limit, bool(model.policy.squash_output))


def _modules(model: Model, extractor_kind: type[nn.Module]) -> list[nn.Module]:
    """What makes the mean action of an observation, in order.

    :param extractor_kind: the one that puts the observation together as it is.
    :raises ExportError: it needs more than that.
    """
    policy: Any = model.policy
    if type(model) not in algorithms.CLASSES.values():
        named = ", ".join(algorithms.CLASSES)
        raise ExportError(
            f"it is one of {type(model).__name__}; only policies of {named} can be exported; {ELSEWHERE}"
        )
    if isinstance(model, OffPolicy):
        latent = [policy.actor.latent_pi] if hasattr(policy.actor, "latent_pi") else []
        extractor = policy.actor.features_extractor
        modules = [*latent, policy.actor.mu]
    else:
        extractor = policy.pi_features_extractor
        modules = [policy.mlp_extractor.policy_net, policy.action_net]
    if type(extractor) is not extractor_kind:
        kind = type(policy).__name__
        raise ExportError(
            f"{kind} with {type(extractor).__name__} cannot be exported; only MlpPolicy and MultiInputPolicy with "
            f"vectors can; train one of these, or leave it here: {ELSEWHERE}"
        )
    return modules


def _leaves(modules: Iterable[nn.Module]) -> list[nn.Module]:
    return [
        leaf
        for module in modules
        for leaf in module.modules()
        if not isinstance(leaf, nn.Sequential)
    ]


def _dense(layer: nn.Linear) -> DenseLayer:
    return DenseLayer(
        weight=layer.weight.detach().cpu().numpy().astype(np.float32),
        bias=layer.bias.detach().cpu().numpy().astype(np.float32),
        activation="",
    )
