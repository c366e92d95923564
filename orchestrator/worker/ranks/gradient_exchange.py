"""Steps of an optimiser with the mean gradient of all ranks: every rank takes the step, or rank 0,
the parameter server, takes it and sends the parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from orchestrator.core.worker_spec import Mode
from orchestrator.worker.ranks.ranks import Ranks


def average_gradients(
    optimizer: torch.optim.Optimizer,
    ranks: Ranks,
    mode: Mode,
    max_grad_norm: float | None = None,
) -> None:
    """Make ``optimizer.step`` use the mean gradient of all ranks.

    :param max_grad_norm: to clip it to.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    own_step = optimizer.step

    def step() -> None:
        gradients = [
            torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            for parameter in parameters
        ]
        vector = parameters_to_vector(gradients).detach()
        for parameter, gradient in zip(parameters, _views(parameters, vector), strict=True):
            parameter.grad = gradient
        vector.div_(ranks.size)
        ranks.all_reduce(_exchangeable(vector))
        if mode == "allreduce" or ranks.rank == 0:
            if max_grad_norm is not None:  # ``torch.nn.utils.clip_grad_norm_``
                norm = torch.linalg.vector_norm(vector)
                vector.mul_((max_grad_norm / (norm + 1e-6)).clamp_(max=1.0))
            own_step()
        if mode == "parameter-server":
            values = parameters_to_vector(parameters).detach()
            ranks.broadcast(_exchangeable(values))
            with torch.no_grad():
                for parameter, value in zip(parameters, _views(parameters, values), strict=True):
                    parameter.copy_(value)

    optimizer.step = step  # type: ignore[method-assign,assignment]


def _exchangeable(tensor: torch.Tensor) -> Any:
    """``tensor`` in the form that collectives take: a tensor on a GPU, or else an array."""
    return tensor.numpy() if tensor.device.type == "cpu" else tensor


def _views(parameters: Sequence[nn.Parameter], vector: torch.Tensor) -> list[torch.Tensor]:
    """The part of ``vector`` that belongs to each parameter, in the parameter's shape."""
    parts = torch.split(vector, [parameter.numel() for parameter in parameters])
    return [part.view_as(parameter) for part, parameter in zip(parts, parameters, strict=True)]
