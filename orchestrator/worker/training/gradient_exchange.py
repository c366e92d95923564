"""Gradients averaged over ranks: every rank takes the step, or rank 0, the parameter server, takes
it for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from orchestrator.core.worker_spec import Mode
from orchestrator.worker.distributed.ranks import Ranks
from orchestrator.worker.training.fast.network import Array


def average_gradients(optimizer: torch.optim.Optimizer, ranks: Ranks, mode: Mode) -> None:
    """Make ``optimizer.step`` use the mean of all ranks' gradients, on every rank or on rank 0 for
    all.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    step = optimizer.step

    def averaged_step() -> None:
        if mode == "parameter-server":
            step_on_server(parameters, ranks, step)
        else:
            _write(parameters, _mean(parameters, ranks, ranks.all_reduce))
            step()

    optimizer.step = averaged_step  # type: ignore[method-assign,assignment]


def step_on_server(
    parameters: Sequence[nn.Parameter],
    ranks: Ranks,
    step: Callable[[], object],
    vector: torch.Tensor | None = None,
) -> None:
    """Rank 0 takes ``step`` with the mean of all gradients, and sends the parameters to the others.

    :param vector: the gradients, where they are views of one vector.
    """
    if vector is None:
        gradients = _mean(parameters, ranks, ranks.reduce)
        if ranks.rank == 0:
            _write(parameters, gradients)
    else:
        vector.div_(ranks.size)
        ranks.reduce(vector.numpy())
    if ranks.rank == 0:
        step()
    values = parameters_to_vector(parameters).detach().cpu().numpy()
    ranks.broadcast(values)
    with torch.no_grad():
        for parameter, value in zip(
            parameters, _split(parameters, torch.from_numpy(values)), strict=True
        ):
            parameter.copy_(value)


def _mean(
    parameters: Sequence[nn.Parameter], ranks: Ranks, add_up: Callable[[Array], None]
) -> Array:
    """The gradients as one vector, averaged over the ranks."""
    gradients = [
        torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for parameter in parameters
    ]
    flat: Array = parameters_to_vector(gradients).detach().cpu().numpy()
    flat /= ranks.size
    add_up(flat)
    return flat


def _write(parameters: Sequence[nn.Parameter], gradients: Array) -> None:
    for parameter, gradient in zip(
        parameters, _split(parameters, torch.from_numpy(gradients)), strict=True
    ):
        parameter.grad = gradient.to(parameter.device)


def _split(parameters: Sequence[nn.Parameter], flat: torch.Tensor) -> list[torch.Tensor]:
    """Views of the part of one vector that belongs to each parameter, in the parameter's shape."""
    parts = torch.split(flat, [parameter.numel() for parameter in parameters])
    return [part.view_as(parameter) for part, parameter in zip(parts, parameters, strict=True)]


class FlatGradients:
    """All gradients of a policy as one vector, of which each parameter's own is a view.

    They are exchanged and clipped without copying.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.vector = torch.zeros_like(parameters_to_vector(parameters).detach())
        self._views = list(zip(parameters, _split(parameters, self.vector), strict=True))

    def clear(self) -> None:
        """Set to zero, for ``backward`` to add to."""
        self.vector.zero_()
        for parameter, view in self._views:
            parameter.grad = view

    def clip(self, max_norm: float) -> None:
        """``torch.nn.utils.clip_grad_norm_``"""
        self.vector.mul_(
            (max_norm / (torch.linalg.vector_norm(self.vector) + 1e-6)).clamp_(max=1.0)
        )
