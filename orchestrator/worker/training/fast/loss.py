"""The gradient of PPO's loss over a minibatch, written out instead of traced by autograd."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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


class Rows(NamedTuple):
    """One minibatch's part of an epoch's arrays: views, which keep their place from epoch to
    epoch.
    """

    order: NDArray[np.intp]
    """``(rows,)`` of the samples, like all others but ``actions``."""
    actions: Array
    """``(rows, actions)``"""
    log_probs: Array
    returns: Array
    old_values: Array
    weights: Array
    """Minus the advantages, normalised over the minibatch, divided by the minibatch's number of
    rows."""
    limits: Array
    """The surrogate loss where the ratio of the probabilities is clipped: below it, nothing depends
    on the ratio."""
    log_ratios: Array
    """Written by :meth:`Minibatch.ratios`."""
    values: Array
    """Written by :meth:`Minibatch.backward`."""


class Minibatch:
    """Work space for minibatches of ``rows`` rows."""

    def __init__(self, layout: Layout, parameters: Array, gradients: Array, rows: int) -> None:
        dtype = parameters.dtype
        actions = layout.shape.actions
        self.passes = Passes(layout, parameters, gradients, rows)
        self._value = self.passes.value[:, 0]
        self._value_gradient = self.passes.value_gradient[:, 0]
        self._log_std = layout.log_std(parameters)
        self._log_std_gradient = layout.log_std(gradients)
        # The deviations are repeated for each row: operations on equal shapes are faster.
        self._z, self._zz, self._inverse_std = np.empty((3, rows, actions), dtype)
        self._ratio, self._error = np.empty((2, rows), dtype)
        self._drop = np.empty(rows, np.bool_)
        self._minus_half = np.full(actions, -0.5, dtype)

    def ratios(self, rows: Rows) -> float:
        """Forward pass of ``passes.x``, writing the logarithms of the ratios of new to old
        probabilities.

        :return: the sum of the logarithms of the actions' standard deviations.
        """
        self.passes.forward()
        log_ratios = rows.log_ratios
        z = self._z
        zz = self._zz
        self._inverse_std[...] = np.exp(np.negative(self._log_std))
        np.subtract(rows.actions, self.passes.mean, out=z)
        np.multiply(z, self._inverse_std, out=z)
        np.multiply(z, z, out=zz)
        np.dot(zz, self._minus_half, out=log_ratios)
        np.subtract(log_ratios, rows.log_probs, out=log_ratios)
        log_std = float(np.add.reduce(self._log_std))
        np.subtract(log_ratios, log_std + len(self._log_std) * LOG_SQRT_2PI, out=log_ratios)
        return log_std

    def backward(self, settings: LossSettings, share: float, rows: Rows) -> None:
        """Gradient of the loss with respect to every parameter, after :meth:`ratios`, writing the
        values.

        :param share: the part of the minibatch that these rows are; the other ranks have the rest.
        """
        passes = self.passes
        ratio = self._ratio
        z = self._z
        values = rows.values
        # The surrogate loss is sum(max(weights × ratio, weights × clip(ratio))). Where the second
        # term is larger, the loss does not depend on the ratio. d ratio / d log_prob = ratio.
        np.exp(rows.log_ratios, out=ratio)
        np.multiply(rows.weights, ratio, out=ratio)
        np.less(ratio, rows.limits, out=self._drop)
        np.copyto(ratio, 0.0, where=self._drop)
        # d log_prob / d mean = z / std, d log_prob / d log_std = z² - 1
        np.multiply(z, self._inverse_std, out=z)
        np.multiply(z, ratio[:, None], out=passes.mean_gradient)
        np.dot(ratio, self._zz, out=self._log_std_gradient)
        np.subtract(
            self._log_std_gradient,
            float(np.add.reduce(ratio)) + share * settings.ent_coef,
            out=self._log_std_gradient,
        )
        np.copyto(values, self._value)
        error = self._error
        limit = settings.clip_range_vf
        scale = 2.0 * share * settings.vf_coef / len(values)
        if limit is None:
            np.subtract(values, rows.returns, out=error)
            np.multiply(error, scale, out=self._value_gradient)
        else:
            change = values - rows.old_values
            values[:] = rows.old_values + np.clip(change, -limit, limit)
            np.subtract(values, rows.returns, out=error)
            np.multiply(error, scale * (np.abs(change) <= limit), out=self._value_gradient)
        passes.backward()
