"""PPO's update: epochs of minibatches over one rollout, each with its gradient, clipping and a step of Adam.

The same numbers as ``stable_baselines3.PPO.train`` makes. What does not depend on the parameters is computed for all
minibatches of an epoch at once; what is only logged, after the epoch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from orchestrator.worker.fast.epochs import Epoch, Losses, Samples, losses
from orchestrator.worker.fast.loss import Minibatch, Settings
from orchestrator.worker.fast.network import Array, Layout


class NonFiniteGradient(FloatingPointError):
    """The gradient has left the finite numbers; the message names tensor, epoch and minibatch."""


class Adam:
    """torch's Adam over the flat vector: one call of its fused kernel a step."""

    def __init__(self, size: int, dtype: np.dtype[Any]) -> None:
        self.exp_avg, self.exp_avg_sq = np.zeros((2, size), dtype)
        self.step = np.zeros(1, np.float32)
        """Steps taken so far."""
        self._moments = torch.from_numpy(self.exp_avg), torch.from_numpy(self.exp_avg_sq)
        self._count = torch.from_numpy(self.step)[0]

    def stepper(self, parameters: Array, gradients: Array, group: Mapping[str, Any]) -> Callable[[], None]:
        """A function that takes one step, with the options of torch's parameter ``group``."""
        first, second = ([moment] for moment in self._moments)
        vectors = [torch.from_numpy(parameters)], [torch.from_numpy(gradients)]
        (beta1, beta2), count = group["betas"], self._count
        options = {
            "lr": float(group["lr"]),
            "beta1": beta1,
            "beta2": beta2,
            "eps": group["eps"],
            "weight_decay": group["weight_decay"],
            "amsgrad": False,
            "maximize": False,
        }

        def step() -> None:
            self.step += 1.0
            torch._fused_adam_(*vectors, first, second, [], [count], **options)

        return step


class Update:
    """All of ``PPO.train`` but schedules and logger.

    :param parameters: the flat vector, changed in place.
    """

    def __init__(self, layout: Layout, parameters: Array) -> None:
        self._layout, self._parameters = layout, parameters
        self.gradients = np.zeros_like(parameters)
        self.adam = Adam(layout.size, parameters.dtype)
        self._minibatches: dict[int, Minibatch] = {}

    def run(
        self,
        samples: Samples,
        order: Callable[[], NDArray[np.intp]],
        settings: Settings,
        group: Mapping[str, Any],
        seconds: dict[str, float],
        each_minibatch: Callable[[], object],
    ) -> Losses:
        """Update the parameters.

        :param order: called once an epoch, a permutation of the samples.
        :param group: torch's parameter group: ``lr`` and Adam's other options.
        :param seconds: ``backward_s`` and ``optimizer_s`` are added to.
        :raises NonFiniteGradient:
        """
        step = self.adam.stepper(self._parameters, self.gradients, group)
        logs = []
        for number in range(settings.n_epochs):
            epoch = Epoch(samples, order(), settings)
            for index, (begin, end) in enumerate(epoch.slices):
                minibatch = self._minibatch(end - begin)
                samples.x.take(epoch.order[begin:end], axis=0, out=minibatch.passes.x, mode="clip")
                log_ratios = epoch.log_ratios[begin:end]
                epoch.log_std_sums[index] = minibatch.ratios(
                    epoch.actions[begin:end], epoch.log_probs[begin:end], log_ratios
                )
                started = perf_counter()
                minibatch.backward(
                    settings,
                    log_ratios,
                    epoch.weights[begin:end],
                    epoch.returns[begin:end],
                    epoch.old_values[begin:end],
                    epoch.values[begin:end],
                )
                differentiated = perf_counter()
                seconds["backward_s"] += differentiated - started
                epoch.done = index + 1
                if epoch.ends(log_ratios, settings.target_kl):
                    break
                self._clip(settings.max_grad_norm, f"epoch {number + 1}, minibatch {index + 1} of {len(epoch.slices)}")
                step()
                seconds["optimizer_s"] += perf_counter() - differentiated
                each_minibatch()
            logs.append(epoch.logs(settings))
            if epoch.ended:
                break
        return losses(logs, settings, self._layout.shape.actions)

    def _minibatch(self, rows: int) -> Minibatch:
        if rows not in self._minibatches:
            self._minibatches[rows] = Minibatch(self._layout, self._parameters, self.gradients, rows)
        return self._minibatches[rows]

    def _clip(self, max_grad_norm: float, where: str) -> None:
        """``torch.nn.utils.clip_grad_norm_``. :raises NonFiniteGradient:"""
        norm = math.sqrt(np.dot(self.gradients, self.gradients))
        if not math.isfinite(norm):
            for name, gradient in self._layout.named(self.gradients).items():
                if not np.isfinite(gradient).all():
                    raise NonFiniteGradient(f"the gradient of {name} is not finite in {where}")
        factor = max_grad_norm / (norm + 1e-6)
        if factor < 1.0:
            np.multiply(self.gradients, factor, out=self.gradients)
