"""The gradient of PPO's loss over a minibatch, written out instead of traced by autograd."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from stable_baselines3 import PPO

from orchestrator.worker.training.fast.network import Array, Layout, Passes

LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


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
    """Written by :meth:`Minibatch.differentiate`."""


class Minibatch(Passes):
    """Passes of both networks with the gradient of the loss, for a fixed number of rows."""

    def __init__(self, layout: Layout, parameters: Array, gradients: Array, rows: int) -> None:
        super().__init__(layout, parameters, gradients, rows)
        dtype = parameters.dtype
        actions = layout.shape.actions
        self._values = self.value[:, 0]
        self._values_gradient = self.value_gradient[:, 0]
        self._log_std = layout.matrices(parameters).log_std
        self._log_std_gradient = layout.matrices(gradients).log_std
        # The deviations are repeated for each row: operations on equal shapes are faster.
        self._z, self._zz, self._inverse_std = np.empty((3, rows, actions), dtype)
        self._ratio, self._error = np.empty((2, rows), dtype)
        self._drop = np.empty(rows, np.bool_)
        self._minus_half = np.full(actions, -0.5, dtype)

    def ratios(self, rows: Rows) -> float:
        """Forward pass of ``x``, writing the logarithms of the ratios of new to old
        probabilities.

        :return: the sum of the logarithms of the actions' standard deviations.
        """
        self.forward()
        log_ratios = rows.log_ratios
        z = self._z
        zz = self._zz
        self._inverse_std[...] = np.exp(np.negative(self._log_std))
        np.subtract(rows.actions, self.mean, out=z)
        np.multiply(z, self._inverse_std, out=z)
        np.multiply(z, z, out=zz)
        np.dot(zz, self._minus_half, out=log_ratios)
        np.subtract(log_ratios, rows.log_probs, out=log_ratios)
        log_std = float(np.add.reduce(self._log_std))
        np.subtract(log_ratios, log_std + len(self._log_std) * LOG_SQRT_2PI, out=log_ratios)
        return log_std

    def differentiate(
        self, rows: Rows, hyperparameters: PPO, clip_range_vf: float | None, share: float
    ) -> None:
        """Gradient of the loss with respect to every parameter, after :meth:`ratios`, writing the
        values.

        :param share: the part of the minibatch that these rows are; the other ranks have the rest.
        """
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
        np.multiply(z, ratio[:, None], out=self.mean_gradient)
        np.dot(ratio, self._zz, out=self._log_std_gradient)
        np.subtract(
            self._log_std_gradient,
            float(np.add.reduce(ratio)) + share * hyperparameters.ent_coef,
            out=self._log_std_gradient,
        )
        np.copyto(values, self._values)
        error = self._error
        scale = 2.0 * share * hyperparameters.vf_coef / len(values)
        if clip_range_vf is None:
            np.subtract(values, rows.returns, out=error)
            np.multiply(error, scale, out=self._values_gradient)
        else:
            change = values - rows.old_values
            values[:] = rows.old_values + np.clip(change, -clip_range_vf, clip_range_vf)
            np.subtract(values, rows.returns, out=error)
            np.multiply(error, scale * (np.abs(change) <= clip_range_vf), out=self._values_gradient)
        self.backward()
