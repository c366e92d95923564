"""What only the algorithms of sb3-contrib need: their classes, LSTM states, and running statistics
of batch norms.

The package is an optional extra. It is imported when the first of its classes is asked for.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from orchestrator.core.text import missing_contrib
from orchestrator.worker.runtime import sb3_internals
from orchestrator.worker.runtime.failures import MissingPackageError

if TYPE_CHECKING:
    from orchestrator.worker.training.algorithms import Model


def class_of(algo: str) -> type[Model]:
    """The class of an algorithm of sb3-contrib, named as in the job file.

    :raises MissingPackageError: the package is not installed.
    """
    try:
        from sb3_contrib import TQC, CrossQ, RecurrentPPO
    except ModuleNotFoundError as error:
        raise MissingPackageError(missing_contrib(algo)) from error
    classes: dict[str, type[Model]] = {"tqc": TQC, "crossq": CrossQ, "recurrent-ppo": RecurrentPPO}
    return classes[algo]


def lstm_states(model: Model) -> list[list[torch.Tensor]] | None:
    """Hidden and cell states of the policy and of the value function, with which the next rollout
    begins.

    Each is ``(n_lstm_layers, n_envs, lstm_hidden_size)``. None where the policy is not recurrent.
    """
    states = vars(model).get(sb3_internals.LAST_LSTM_STATES)
    return None if states is None else [[state.cpu() for state in part] for part in states]


def restore_lstm_states(model: Model, saved: list[list[torch.Tensor]]) -> None:
    """Give a model that was just built the states that :func:`lstm_states` returned."""
    attributes = vars(model)
    kind = type(attributes[sb3_internals.LAST_LSTM_STATES])
    attributes[sb3_internals.LAST_LSTM_STATES] = kind(
        *(tuple(state.to(model.device) for state in part) for part in saved)
    )


@dataclasses.dataclass(frozen=True)
class Affine:
    """``scale * x + shift``, ``(features,)`` each: a batch normalisation with its running
    statistics frozen.
    """

    scale: NDArray[np.float64]
    shift: NDArray[np.float64]


def frozen_normalization(module: nn.Module) -> Affine | None:
    """What a batch renormalisation of CrossQ does outside of training; None for any other
    module.
    """
    if type(module).__name__ != "BatchRenorm1d":
        return None
    layer: Any = module
    mean, variance, scale, bias = (
        part.detach().cpu().double().numpy()
        for part in (layer.ra_mean, layer.ra_var, layer.scale, layer.bias)
    )
    factor = scale / np.sqrt(variance + layer.eps)
    return Affine(factor, bias - mean * factor)
