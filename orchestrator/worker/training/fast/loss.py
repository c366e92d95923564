"""The gradient of PPO's loss over a minibatch, written out instead of traced by autograd."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from orchestrator.worker.training.fast.network import Array, Layout, Passes

LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSettings:
    """Hyperparameters under Stable-Baselines3's names, with schedules evaluated."""

    batch_size: int
    n_epochs: int
    clip_range: float
    clip_range_vf: float | None
    normalize_advantage: bool
    ent_coef: float
    vf_coef: float
    max_grad_norm: float
    target_kl: float | None


class Minibatch:
    """Work space for minibatches of ``rows`` rows."""

    def __init__(self, layout: Layout, parameters: Array, gradients: Array, rows: int) -> None:
        dtype, actions = parameters.dtype, layout.shape.actions
        self.passes = Passes(layout, parameters, gradients, rows)
        self._log_std, self._log_std_gradient = layout.log_std(parameters), layout.log_std(gradients)
        self._z, self._zz = np.empty((2, rows, actions), dtype)
        self._inverse_std = np.empty(actions, dtype)
        self._ratio, self._clipped, self._error = np.empty((3, rows), dtype)
        self._drop = np.empty(rows, np.bool_)
        self._minus_half = np.full(actions, -0.5, dtype)

    def ratios(self, actions: Array, old_log_probs: Array, log_ratios: Array) -> float:
        """Forward pass of ``passes.x``, writing ``log_ratios`` ``(rows,)`` of new to old probabilities.

        :return: the sum of the logarithms of the actions' standard deviations.
        """
        self.passes.forward()
        np.negative(self._log_std, out=self._inverse_std)
        np.exp(self._inverse_std, out=self._inverse_std)
        np.subtract(actions, self.passes.mean, out=self._z)
        np.multiply(self._z, self._inverse_std, out=self._z)
        np.multiply(self._z, self._z, out=self._zz)
        np.dot(self._zz, self._minus_half, out=log_ratios)
        np.subtract(log_ratios, old_log_probs, out=log_ratios)
        log_std = float(np.add.reduce(self._log_std))
        np.subtract(log_ratios, log_std + len(self._log_std) * LOG_SQRT_2PI, out=log_ratios)
        return log_std

    def backward(
        self,
        settings: LossSettings,
        share: float,
        log_ratios: Array,
        weights: Array,
        returns: Array,
        old_values: Array,
        values: Array,
    ) -> None:
        """Gradient of the loss with respect to every parameter, after :meth:`ratios`, writing ``values`` ``(rows,)``.

        :param share: the part of the minibatch that these rows are; the other ranks have the rest.
        :param weights: ``(rows,)`` minus the normalised advantages, divided by the number of rows of the minibatch.
        """
        passes, ratio, clipped = self.passes, self._ratio, self._clipped
        # The surrogate loss is sum(max(weights × ratio, weights × clip(ratio))). Where the second term is larger,
        # the loss does not depend on the ratio. d ratio / d log_prob = ratio.
        np.exp(log_ratios, out=ratio)
        np.maximum(ratio, 1.0 - settings.clip_range, out=clipped)
        np.minimum(clipped, 1.0 + settings.clip_range, out=clipped)
        np.multiply(weights, clipped, out=clipped)
        np.multiply(weights, ratio, out=ratio)
        np.less(ratio, clipped, out=self._drop)
        np.copyto(ratio, 0.0, where=self._drop)
        # d log_prob / d mean = z / std, d log_prob / d log_std = z² - 1
        np.multiply(self._z, self._inverse_std, out=self._z)
        np.multiply(self._z, ratio[:, None], out=passes.mean_gradient)
        np.dot(ratio, self._zz, out=self._log_std_gradient)
        np.subtract(
            self._log_std_gradient, float(np.add.reduce(ratio)) + share * settings.ent_coef, out=self._log_std_gradient
        )
        np.copyto(values, passes.value[:, 0])
        error, limit = self._error, settings.clip_range_vf
        scale = 2.0 * share * settings.vf_coef / len(values)
        if limit is None:
            np.subtract(values, returns, out=error)
            np.multiply(error, scale, out=passes.value_gradient[:, 0])
        else:
            change = values - old_values
            values[:] = old_values + np.clip(change, -limit, limit)
            np.subtract(values, returns, out=error)
            np.multiply(error, scale * (np.abs(change) <= limit), out=passes.value_gradient[:, 0])
        passes.backward()
