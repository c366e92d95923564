"""An epoch of PPO's update: its samples in order, what can be computed of them beforehand, and the logged values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from orchestrator.worker.distributed.ranks import Ranks, moments_over_ranks
from orchestrator.worker.training.fast.loss import LOG_SQRT_2PI, LossSettings
from orchestrator.worker.training.fast.network import Array


class Samples(NamedTuple):
    """A rollout of ``n`` samples as rows, in the order in which minibatches count them."""

    x: Array
    """``(n, observation + 1)`` observations, and a column of ones."""
    actions: Array
    """``(n, actions)``"""
    log_probs: Array
    """``(n,)``, like the following."""
    advantages: Array
    returns: Array
    values: Array


class Losses(NamedTuple):
    """What Stable-Baselines3 logs of an update: means over its minibatches, and the last one's ``loss``."""

    entropy_loss: float
    policy_gradient_loss: float
    value_loss: float
    approx_kl: float
    """Mean over the last epoch."""
    clip_fraction: float
    loss: float
    epochs: int
    """Epochs begun: fewer than ``n_epochs`` where ``target_kl`` ended the update before the last one."""
    ended_at_kl: float | None
    """Divergence of the minibatch at which ``target_kl`` ended the update; None where it did not."""


class Log(NamedTuple):
    """Sums over this rank's rows of an epoch's finished minibatches."""

    sums: NDArray[np.float64]
    """``(4, minibatches)``: surrogate loss, squared errors of the values, clipped rows, divergence."""
    sizes: NDArray[np.intp]
    """``(minibatches,)`` numbers of rows."""
    log_stds: NDArray[np.float64]
    """``(minibatches,)`` sums of the logarithms of the actions' standard deviations."""


class Epoch:
    """The samples in the order of one epoch.

    :param order: ``(n,)`` permutation of the samples.
    """

    def __init__(self, samples: Samples, order: NDArray[np.intp], settings: LossSettings, ranks: Ranks) -> None:
        size, dtype = len(order), samples.x.dtype
        self.order, self._ranks = order, ranks
        ours = settings.batch_size // ranks.size
        begins = range(0, size, ours)
        self.slices = [(begin, min(begin + ours, size)) for begin in begins]
        self._begins = np.fromiter(begins, np.intp)
        self._sizes = np.diff(self._begins, append=size)
        self.done = 0
        """Finished minibatches."""
        self.actions, self.log_probs = samples.actions[order], samples.log_probs[order]
        self.returns, self.old_values = samples.returns[order], samples.values[order]
        self.weights = self._weights(samples.advantages[order], settings.normalize_advantage)
        self.log_ratios, self.values = np.zeros((2, size), dtype)
        self.log_std_sums = np.empty(len(self.slices))

    def _weights(self, advantages: Array, normalize: bool) -> Array:
        """``(n,)`` minus the advantages, normalised over each minibatch, divided by the minibatch's number of rows."""
        wholes = self._sizes * self._ranks.size
        sizes = np.repeat(wholes, self._sizes)
        if normalize:
            exact = advantages.astype(np.float64)
            own = self._sums(exact) / self._sizes
            squares = self._sums(np.square(exact - np.repeat(own, self._sizes)))
            means, squares = moments_over_ranks(self._ranks, self._sizes, own, squares)
            with np.errstate(invalid="ignore", divide="ignore"):
                deviations = np.sqrt(squares / (wholes - 1))
            normalized = (exact - np.repeat(means, self._sizes)) / (np.repeat(deviations, self._sizes) + 1e-8)
            exact = np.where(sizes > 1, normalized, exact)  # a single sample is not normalised
            advantages = exact.astype(advantages.dtype)
        weights: Array = -advantages / sizes.astype(advantages.dtype)
        return weights

    def _sums(self, values: Array) -> NDArray[np.float64]:
        """``(minibatches,)`` sums over this rank's rows."""
        return np.add.reduceat(values, self._begins, dtype=np.float64)

    def log(self, settings: LossSettings) -> Log:
        ratios = np.exp(self.log_ratios)
        clipped = np.clip(ratios, 1.0 - settings.clip_range, 1.0 + settings.clip_range)
        of_each_row = (
            np.maximum(self.weights * ratios, self.weights * clipped),
            np.square(self.values - self.returns),
            np.abs(ratios - 1.0) > settings.clip_range,
            ratios - 1.0 - self.log_ratios,
        )
        sums = np.stack([self._sums(values)[: self.done] for values in of_each_row])
        return Log(sums, self._sizes[: self.done], self.log_std_sums[: self.done])


def losses(logs: Sequence[Log], settings: LossSettings, actions: int, ranks: Ranks, *, ended: bool) -> Losses:
    """The logged values of an update, over all ranks.

    :param logs: one for each epoch begun. :param actions: dimensions of an action.
    :param ended: whether ``target_kl`` ended the update at the last minibatch.
    """
    sums = np.concatenate([log.sums for log in logs], axis=1)
    ranks.all_reduce(sums)
    sizes = np.concatenate([log.sizes for log in logs]) * ranks.size
    log_std = np.concatenate([log.log_stds for log in logs])
    policy, (value, clipped, kl) = sums[0], sums[1:] / sizes
    entropy_losses = -(log_std + actions * (0.5 + LOG_SQRT_2PI))
    return Losses(
        entropy_loss=float(entropy_losses.mean()),
        policy_gradient_loss=float(policy.mean()),
        value_loss=float(value.mean()),
        approx_kl=float(kl[-len(logs[-1].sizes) :].mean()),
        clip_fraction=float(clipped.mean()),
        loss=float(policy[-1] + settings.ent_coef * entropy_losses[-1] + settings.vf_coef * value[-1]),
        epochs=len(logs),
        ended_at_kl=float(kl[-1]) if ended else None,
    )
