"""One hash of all that a training has made: equal hashes mean that two trainings ended with the
same bits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.running_mean_std import RunningMeanStd

from orchestrator.worker.training import algorithms
from orchestrator.worker.training.algorithms import Model


def sha256(model: Model, *, optimizers: bool = True) -> str:
    """SHA-256, as hexadecimal text, over the policy's tensors, the optimisers' states and the
    normalisation statistics.

    Each array, in the order of the names, contributes a line with name, type and shape, then its
    bytes. (A single optimiser is called ``optimizer``; SAC adds ``log_ent_coef`` where it is
    learnt.)
    """
    normalization = model.get_vec_normalize_env()
    statistics = {
        name: getattr(normalization, name)
        for name in ("obs_rms", "ret_rms")
        if hasattr(normalization, name)
    }
    states = {
        name: optimizer.state_dict()["state"]
        for name, optimizer in algorithms.optimizers(model).items()
    }
    state = {
        "policy": model.policy.state_dict(),
        **{name.removeprefix("policy."): state for name, state in states.items() if optimizers},
        "log_ent_coef": algorithms.temperature(model),
        "normalization": statistics,
    }
    return digest(state)


def digest(state: Mapping[str, Any]) -> str:
    """SHA-256, as hexadecimal text, over every array in ``state``."""
    hashed = hashlib.sha256()
    for name, array in sorted(_arrays("", state), key=lambda item: item[0]):
        hashed.update(f"{name} {array.dtype} {array.shape}\n".encode())
        hashed.update(np.ascontiguousarray(array).data)
    return hashed.hexdigest()


def _arrays(name: str, value: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Every array in ``value``, with its path in it: ``policy.action_net.bias``."""
    if isinstance(value, RunningMeanStd):
        value = {"mean": value.mean, "var": value.var, "count": value.count}
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _arrays(f"{name}.{key}" if name else str(key), part)
    elif isinstance(value, torch.Tensor):
        yield name, value.detach().cpu().contiguous().numpy()
    elif value is not None:
        yield name, np.asarray(value)
