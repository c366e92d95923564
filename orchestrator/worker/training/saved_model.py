"""What Stable-Baselines3 saves of a model, in checkpoints of algorithms that are classes: their
attributes are not known.
"""

from __future__ import annotations

import io
from typing import Any

import torch
from stable_baselines3.common.save_util import load_from_zip_file, recursive_setattr
from torch import nn

from orchestrator.worker.runtime import sb3_internals as sb3
from orchestrator.worker.training.algorithms import Model

_RESTORED_ELSEWHERE = {
    "observation_space",
    "action_space",
    sb3.LAST_OBS,
    sb3.LAST_ORIGINAL_OBS,
    sb3.LAST_EPISODE_STARTS,
}


def save(model: Model) -> bytes:
    """The content of ``model.zip``."""
    content = io.BytesIO()
    model.save(content)
    return content.getvalue()


def lost_attributes(model: Model) -> list[str]:
    """Return the names of attributes that :func:`save` leaves out and :func:`restore` does not bring
    back otherwise.
    """
    names = sb3.unsaved_attributes(model)
    return sorted(name for name in names if not isinstance(vars(model).get(name), nn.Module))


def restore(model: Model, content: bytes) -> None:
    """Bring a model that was just built to what :func:`save` returned.

    An attribute that refers to tensors of the policy stays, since these are restored in place: such
    as SAC's ``actor``, an alias of a part of the policy.
    """
    attributes, parameters, variables = load_from_zip_file(io.BytesIO(content), device=model.device)
    own = {tensor.data_ptr() for tensor in model.policy.state_dict().values()}
    for name, value in (attributes or {}).items():
        if name not in _RESTORED_ELSEWHERE and not _refers_to(own, vars(model).get(name)):
            setattr(model, name, value)
    model.set_parameters(parameters, exact_match=True, device=model.device)
    for name, variable in (variables or {}).items():
        if variable is not None:
            recursive_setattr(model, f"{name}.data", variable.data)


def _refers_to(tensors: set[int], value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.data_ptr() in tensors
    if isinstance(value, nn.Module):
        value = list(value.state_dict().values())
    return isinstance(value, list | tuple) and any(_refers_to(tensors, part) for part in value)
