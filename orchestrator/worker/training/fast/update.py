"""PPO's update: epochs of minibatches over one rollout, each with its gradient, clipping and a step
of Adam.

It computes the same numbers as ``stable_baselines3.PPO.train``. Everything that does not depend on
the parameters is computed for all minibatches of an epoch at once, and logged values after the
epoch.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from orchestrator.core.worker_spec import Mode
from orchestrator.worker.ranks.ppo_log import Losses
from orchestrator.worker.ranks.ranks import Ranks
from orchestrator.worker.runtime.sb3_internals import fused_adam
from orchestrator.worker.training.fast.epochs import Epoch, Samples, losses
from orchestrator.worker.training.fast.loss import LossSettings, Minibatch
from orchestrator.worker.training.fast.network import Array, Layout


class NonFiniteGradient(FloatingPointError):
    """The gradient is not finite; the message names tensor, epoch and minibatch."""


class Adam:
    """torch's Adam over the flat vector, with one call of its fused kernel a step."""

    def __init__(self, size: int, dtype: np.dtype[Any]) -> None:
        self.exp_avg, self.exp_avg_sq = np.zeros((2, size), dtype)
        self.step = np.zeros(1, np.float32)
        """Steps taken so far."""

    def reset(self) -> None:
        for array in (self.exp_avg, self.exp_avg_sq, self.step):
            array[:] = 0.0

    def stepper(
        self, parameters: Array, gradients: Array, group: Mapping[str, Any]
    ) -> Callable[[], None]:
        """A function that takes one step with the options of torch's parameter ``group``."""
        beta1, beta2 = group["betas"]
        kernel = functools.partial(
            fused_adam(),
            [torch.from_numpy(parameters)],
            [torch.from_numpy(gradients)],
            [torch.from_numpy(self.exp_avg)],
            [torch.from_numpy(self.exp_avg_sq)],
            [],  # the largest second moments, of AMSGrad
            [torch.from_numpy(self.step)[0]],
            lr=float(group["lr"]),
            beta1=beta1,
            beta2=beta2,
            eps=group["eps"],
            weight_decay=group["weight_decay"],
            amsgrad=False,
            maximize=False,
        )

        def step() -> None:
            self.step += 1.0
            kernel()

        return step


class Update:
    """``PPO.train`` without schedules and logger.

    Each rank has a part of every minibatch. Either every rank adds up the gradients of all and
    takes the same step, or rank 0, the parameter server, takes it alone and sends the parameters to
    the others.

    :param hidden: number of the last observations for which the weights of the actor's first layer
        are not trained.
    """

    def __init__(
        self, layout: Layout, ranks: Ranks, mode: Mode, dtype: np.dtype[Any], hidden: int
    ) -> None:
        self._layout = layout
        self._ranks = ranks
        self._has_server = mode == "parameter-server"
        # Exchanged between ranks in one vector: gradient and divergence, parameters and whether the
        # update ends.
        self._gradients_and_kl, self._parameters_and_end = np.zeros((2, layout.size + 1), dtype)
        self.parameters = self._parameters_and_end[:-1]
        self.gradients = self._gradients_and_kl[:-1]
        self.adam = Adam(layout.size, dtype)
        self._minibatches: dict[int, Minibatch] = {}
        self._hidden = self.gradients[:0]
        """Gradients that are always 0."""
        if hidden:
            views = layout.named_views(self.gradients)
            self._hidden = views["mlp_extractor.policy_net.0.weight"][:, -hidden:]

    def run(
        self,
        samples: Samples,
        order: Callable[[], NDArray[np.intp]],
        settings: LossSettings,
        group: Mapping[str, Any],
        seconds: dict[str, float],
        each_minibatch: Callable[[], object],
    ) -> Losses:
        """Update the parameters.

        :param order: called once an epoch; returns a permutation ``(n,)`` of the samples.
        :param group: torch's parameter group with ``lr`` and Adam's other options.
        :param seconds: its ``backward_s`` and ``optimizer_s`` are increased.
        :raises NonFiniteGradient: the parameters of the flat vector are undefined then.
        """
        step = self.adam.stepper(self.parameters, self.gradients, group)
        logs: list[NDArray[np.float64]] = []
        ended = False
        share = 1.0 / self._ranks.size
        epoch = Epoch(samples, settings, self._ranks)
        while len(logs) < settings.n_epochs and not ended:
            epoch.begin(order())
            for rows in epoch.minibatches:
                minibatch = self._minibatch(len(rows.order))
                samples.x.take(rows.order, axis=0, out=minibatch.passes.x, mode="clip")
                epoch.log_std_sums[epoch.done] = minibatch.ratios(rows)
                epoch.done += 1
                started = perf_counter()
                minibatch.backward(settings, share, rows)
                self._hidden[...] = 0.0
                differentiated = perf_counter()
                seconds["backward_s"] += differentiated - started
                waited = self._ranks.seconds
                place = len(logs) + 1, epoch.done, len(epoch.minibatches)
                ended = self._step(rows.log_ratios, settings, step, place)
                if ended:
                    break
                seconds["optimizer_s"] += (
                    perf_counter() - differentiated - (self._ranks.seconds - waited)
                )
                each_minibatch()
            logs.append(epoch.log())
        return losses(logs, settings, self._layout.shape.actions, self._ranks, ended=ended)

    def _minibatch(self, rows: int) -> Minibatch:
        if rows not in self._minibatches:
            self._minibatches[rows] = Minibatch(self._layout, self.parameters, self.gradients, rows)
        return self._minibatches[rows]

    def _step(
        self,
        log_ratios: Array,
        settings: LossSettings,
        step: Callable[[], None],
        place: tuple[int, int, int],
    ) -> bool:
        """Add up the ranks' gradients and take the step. Return whether ``target_kl`` ends the
        update here instead.

        :param place: numbers of epoch and minibatch, and how many minibatches an epoch has.
        """
        ranks = self._ranks
        limit = settings.target_kl
        if limit is not None:
            self._gradients_and_kl[-1] = np.mean(np.exp(log_ratios) - 1.0 - log_ratios) / ranks.size
        if self._has_server:
            ranks.reduce(self._gradients_and_kl)
        else:
            ranks.all_reduce(self._gradients_and_kl)
        ended = limit is not None and float(self._gradients_and_kl[-1]) > 1.5 * limit
        if not ended and (not self._has_server or ranks.rank == 0):
            self._clip(settings.max_grad_norm, place)
            step()
        if self._has_server:
            self._parameters_and_end[-1] = ended
            ranks.broadcast(self._parameters_and_end)
            ended = bool(self._parameters_and_end[-1])
        return ended

    def _clip(self, max_grad_norm: float, place: tuple[int, int, int]) -> None:
        """``torch.nn.utils.clip_grad_norm_``. :raises NonFiniteGradient: the norm is not finite."""
        norm = math.sqrt(np.dot(self.gradients, self.gradients))
        if not math.isfinite(norm):
            for name, gradient in self._layout.named_views(self.gradients).items():
                if not np.isfinite(gradient).all():
                    epoch, minibatch, count = place
                    raise NonFiniteGradient(
                        f"the gradient of {name} is not finite in epoch {epoch}, minibatch {minibatch} of {count}"
                    )
        factor = max_grad_norm / (norm + 1e-6)
        if factor < 1.0:
            np.multiply(self.gradients, factor, out=self.gradients)
