"""An epoch of PPO's update: its samples in order, what can be computed of them beforehand, and the
logged values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.worker.ranks.ranks import moments_over_ranks
from orchestrator.worker.training.fast.loss import LOG_SQRT_2PI, Rows
from orchestrator.worker.training.fast.network import Array

if TYPE_CHECKING:
    from orchestrator.worker.training.fast.ppo import FastPPO


class Epoch:
    """The samples of the model's rollout in the order of one epoch after the other: :meth:`begin`
    puts them into the next one's.
    """

    def __init__(self, model: FastPPO, clip_range: float) -> None:
        rollout = model.rollout_buffer
        size = rollout.values.size
        dtype = rollout.x.dtype
        self.x = rollout.x[:-1].reshape(size, -1)
        """``(n, observation + 1)`` observations of all samples, and a column of ones."""
        self._actions = rollout.actions.reshape(size, -1)
        self._rollout = rollout
        self._model = model
        self._clip_range = clip_range
        # Stable-Baselines3 counts samples one environment after the other.
        self._samples = np.arange(size).reshape(rollout.values.shape).T.ravel()
        self._ours = model.batch_size // model.ranks.size
        self._begins = np.arange(0, size, self._ours)
        self._sizes = np.diff(self._begins, append=size)
        self._rows = Rows(
            np.empty(size, np.intp), np.empty_like(self._actions), *np.zeros((7, size), dtype)
        )
        """All of them, of which each minibatch has a part."""
        self._wholes = self._of_rows(self._sizes * model.ranks.size)
        """``(n,)`` for every row, the number of rows of its minibatch on all ranks."""
        self._divisors = self._wholes.astype(dtype)
        self._ratio_limits = np.array([1.0 - clip_range, 1.0 + clip_range], dtype)
        self.minibatches = [
            Rows(*(array[begin : begin + self._ours] for array in self._rows))
            for begin in self._begins
        ]
        self.log_std_sums = np.empty(len(self._begins))
        """For each minibatch, the sum of the logarithms of the actions' standard deviations."""
        self.done = 0
        """Finished minibatches of this epoch."""

    def begin(self) -> None:
        """Begin an epoch with the samples in a random order."""
        rollout = self._rollout
        rows = self._rows
        weights = rows.weights
        self.done = 0
        order = rows.order
        order[...] = self._samples[np.random.permutation(len(order))]
        self._actions.take(order, axis=0, out=rows.actions, mode="clip")
        rollout.log_probs.take(order, out=rows.log_probs, mode="clip")
        rollout.returns.take(order, out=rows.returns, mode="clip")
        rollout.values.take(order, out=rows.old_values, mode="clip")
        rollout.advantages.take(order, out=weights, mode="clip")
        advantages = weights
        if self._model.normalize_advantage:
            advantages = self._normalized_advantages(weights)
        np.divide(np.negative(advantages), self._divisors, out=weights)
        bounds = np.where(weights > 0, *self._ratio_limits)
        np.multiply(weights, bounds, out=rows.limits)

    def _normalized_advantages(self, advantages: Array) -> Array:
        ranks = self._model.ranks
        exact = advantages.astype(np.float64)
        own = self._sums(exact) / self._sizes
        squares = self._sums(np.square(exact - self._of_rows(own)))
        means, squares = moments_over_ranks(ranks, self._sizes, own, squares)
        with np.errstate(invalid="ignore", divide="ignore"):
            deviations = np.sqrt(squares / (self._sizes * ranks.size - 1))
        normalized = (exact - self._of_rows(means)) / (self._of_rows(deviations) + 1e-8)
        # A single sample is not normalised. Only the last minibatch can be so small.
        if self._wholes[-1] == 1:
            normalized = np.where(self._wholes > 1, normalized, exact)
        result: Array = normalized.astype(advantages.dtype)
        return result

    def _of_rows(self, values: NDArray[Any]) -> NDArray[Any]:
        """``(minibatches,)`` → ``(n,)``, the value of its minibatch for every row."""
        return np.repeat(values, self._ours)[: len(self.x)]

    def _sums(self, values: Array) -> NDArray[np.float64]:
        """``(minibatches,)`` sums over this rank's rows."""
        return np.add.reduceat(values, self._begins, dtype=np.float64)

    def log(self) -> NDArray[np.float64]:
        """``(finished minibatches, 6)``: this rank's losses, as :meth:`RankedPPO.record_update`
        takes them.
        """
        model = self._model
        rows = self._rows
        weights = rows.weights
        ratios = np.exp(rows.log_ratios)
        clipped = np.minimum(np.maximum(ratios, 1.0 - self._clip_range), 1.0 + self._clip_range)
        changes = ratios - 1.0
        entropy = -(self.log_std_sums + self._actions.shape[1] * (0.5 + LOG_SQRT_2PI))
        # The weights are divided by the number of rows on all ranks already.
        policy = self._sums(np.maximum(weights * ratios, weights * clipped)) * model.ranks.size
        value = self._sums(np.square(rows.values - rows.returns)) / self._sizes
        divergence = self._sums(changes - rows.log_ratios) / self._sizes
        clip_fraction = self._sums(np.abs(changes) > self._clip_range) / self._sizes
        loss = policy + model.ent_coef * entropy + model.vf_coef * value
        columns = [entropy, policy, value, divergence, clip_fraction, loss]
        return np.stack(columns, axis=1)[: self.done]
