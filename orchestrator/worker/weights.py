"""One number for all that a training has made: two trainings with the same one ended with the same bits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.running_mean_std import RunningMeanStd


def sha256(model: PPO) -> str:
    """SHA-256, as hexadecimal text, over the policy's tensors, the optimiser's state and the normalisation statistics.

    Of each, in the order of their names: a line with name, type and shape, then the bytes.
    """
    normalization = model.get_vec_normalize_env()
    statistics = {name: getattr(normalization, name) for name in ("obs_rms", "ret_rms") if hasattr(normalization, name)}
    state = {
        "policy": model.policy.state_dict(),
        "optimizer": model.policy.optimizer.state_dict()["state"],
        "normalization": statistics,
    }
    digest = hashlib.sha256()
    for name, array in sorted(_arrays("", state), key=lambda named: named[0]):
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


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
