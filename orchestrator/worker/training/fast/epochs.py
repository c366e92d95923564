"""An epoch of PPO's update: its samples in order, what can be computed of them beforehand, and the
logged values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from orchestrator.worker.ranks.ppo_log import Losses
from orchestrator.worker.ranks.ranks import Ranks, moments_over_ranks
from orchestrator.worker.training.fast.loss import LOG_SQRT_2PI, LossSettings, Rows
from orchestrator.worker.training.fast.network import Array


class Samples(NamedTuple):
    """A rollout of ``n`` samples as rows."""

    x: Array
    """``(n, observation + 1)`` observations, and a column of ones."""
    actions: Array
    """``(n, actions)``"""
    log_probs: Array
    """``(n,)``, like the following."""
    advantages: Array
    returns: Array
    values: Array


class Epoch:
    """The samples in the order of one epoch after the other: :meth:`begin` puts them into the next
    one's.
    """

    def __init__(self, samples: Samples, settings: LossSettings, ranks: Ranks) -> None:
        size = len(samples.x)
        dtype = samples.x.dtype
        self._samples = samples
        self._settings = settings
        self._ranks = ranks
        self._ours = settings.batch_size // ranks.size
        self._begins = np.arange(0, size, self._ours)
        self._sizes = np.diff(self._begins, append=size)
        self._rows = Rows(
            np.empty(size, np.intp), np.empty_like(samples.actions), *np.zeros((7, size), dtype)
        )
        """All of them, of which each minibatch has a part."""
        self._wholes = self._of_rows(self._sizes * ranks.size)
        """``(n,)`` for every row, the number of rows of its minibatch on all ranks."""
        self._divisors = self._wholes.astype(dtype)
        self._lowest_ratio = np.array(1.0 - settings.clip_range, dtype)
        self._highest_ratio = np.array(1.0 + settings.clip_range, dtype)
        self.minibatches = [
            Rows(*(array[begin : begin + self._ours] for array in self._rows))
            for begin in self._begins
        ]
        self.log_std_sums = np.empty(len(self._begins))
        """For each minibatch, the sum of the logarithms of the actions' standard deviations."""
        self.done = 0
        """Finished minibatches of this epoch."""

    def begin(self, order: NDArray[np.intp]) -> None:
        """Begin an epoch with the samples in ``order``, a permutation ``(n,)`` of them."""
        samples = self._samples
        rows = self._rows
        weights = rows.weights
        self.done = 0
        rows.order[...] = order
        samples.actions.take(order, axis=0, out=rows.actions, mode="clip")
        samples.log_probs.take(order, out=rows.log_probs, mode="clip")
        samples.returns.take(order, out=rows.returns, mode="clip")
        samples.values.take(order, out=rows.old_values, mode="clip")
        samples.advantages.take(order, out=weights, mode="clip")
        advantages = weights
        if self._settings.normalize_advantage:
            advantages = self._normalized_advantages(weights)
        np.divide(np.negative(advantages), self._divisors, out=weights)
        bounds = np.where(weights > 0, self._lowest_ratio, self._highest_ratio)
        np.multiply(weights, bounds, out=rows.limits)

    def _normalized_advantages(self, advantages: Array) -> Array:
        exact = advantages.astype(np.float64)
        own = self._sums(exact) / self._sizes
        squares = self._sums(np.square(exact - self._of_rows(own)))
        means, squares = moments_over_ranks(self._ranks, self._sizes, own, squares)
        with np.errstate(invalid="ignore", divide="ignore"):
            deviations = np.sqrt(squares / (self._sizes * self._ranks.size - 1))
        normalized = (exact - self._of_rows(means)) / (self._of_rows(deviations) + 1e-8)
        # A single sample is not normalised. Only the last minibatch can be so small.
        if self._wholes[-1] == 1:
            normalized = np.where(self._wholes > 1, normalized, exact)
        result: Array = normalized.astype(advantages.dtype)
        return result

    def _of_rows(self, values: NDArray[Any]) -> NDArray[Any]:
        """``(minibatches,)`` → ``(n,)``, the value of its minibatch for every row."""
        return np.repeat(values, self._ours)[: len(self._samples.x)]

    def _sums(self, values: Array) -> NDArray[np.float64]:
        """``(minibatches,)`` sums over this rank's rows."""
        return np.add.reduceat(values, self._begins, dtype=np.float64)

    def log(self) -> NDArray[np.float64]:
        """``(6, finished minibatches)``: sums over this rank's rows of surrogate loss, squared
        errors of the values, clipped rows and divergence; number of rows; ``log_std_sums``.
        """
        rows = self._rows
        weights = rows.weights
        clip_range = self._settings.clip_range
        ratios = np.exp(rows.log_ratios)
        clipped = np.minimum(np.maximum(ratios, 1.0 - clip_range), 1.0 + clip_range)
        changes = ratios - 1.0
        table = np.stack(
            [
                self._sums(np.maximum(weights * ratios, weights * clipped)),
                self._sums(np.square(rows.values - rows.returns)),
                self._sums(np.abs(changes) > clip_range),
                self._sums(changes - rows.log_ratios),
                self._sizes,
                self.log_std_sums,
            ]
        )
        return table[:, : self.done]


def losses(
    logs: Sequence[NDArray[np.float64]],
    settings: LossSettings,
    actions: int,
    ranks: Ranks,
    *,
    ended: bool,
) -> Losses:
    """The logged values of an update, over all ranks.

    :param logs: :meth:`Epoch.log` of each epoch begun.
    :param actions: dimensions of an action.
    :param ended: whether ``target_kl`` ended the update at the last minibatch.
    """
    table = np.concatenate(logs, axis=1)
    sums = table[:4]
    ranks.all_reduce(sums)
    sizes, log_std = table[4] * ranks.size, table[5]
    policy = sums[0]  # its weights are divided by the number of rows already
    value, clipped, kl = sums[1:] / sizes
    entropy_losses = -(log_std + actions * (0.5 + LOG_SQRT_2PI))
    return Losses(
        entropy_loss=float(entropy_losses.mean()),
        policy_gradient_loss=float(policy.mean()),
        value_loss=float(value.mean()),
        approx_kl=float(kl[-logs[-1].shape[1] :].mean()),
        clip_fraction=float(clipped.mean()),
        loss=float(
            policy[-1] + settings.ent_coef * entropy_losses[-1] + settings.vf_coef * value[-1]
        ),
        epochs=len(logs),
        ended_at_kl=float(kl[-1]) if ended else None,
    )
