"""What PPO logs of an update, over all ranks and for both learners."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from orchestrator.worker.ranks.ranks import Ranks, moments_over_ranks
from orchestrator.worker.runtime.sb3_internals import ExtendedPPO

LOGGED = (
    "entropy_loss",
    "policy_gradient_loss",
    "value_loss",
    "approx_kl",
    "clip_fraction",
    "loss",
)
"""Fields of :class:`Losses`, in the order of ``PPO.train``."""


class Losses(NamedTuple):
    """The logged values of an update: means over its minibatches, unless stated otherwise."""

    entropy_loss: float
    policy_gradient_loss: float
    value_loss: float
    approx_kl: float
    """Mean over the last epoch."""
    clip_fraction: float
    loss: float
    """Of the last minibatch."""
    epochs: int
    """Epochs begun."""
    ended_at_kl: float | None
    """Divergence at which ``target_kl`` ended the update; None if it did not."""


def record_update(
    model: ExtendedPPO,
    losses: Losses,
    variance: float,
    std: float | None,
    clip_range: float,
    clip_range_vf: float | None,
) -> None:
    """Log what ``PPO.train`` logs at its end, and print that ``target_kl`` has ended it.

    :param variance: explained variance of the values.
    :param std: mean of the actions' standard deviations, or None.
    """
    if losses.ended_at_kl is not None and model.verbose >= 1:
        print(
            f"Early stopping at step {losses.epochs - 1} due to reaching max kl: {losses.ended_at_kl:.2f}"
        )
    record = model.logger.record
    for name in LOGGED:
        record(f"train/{name}", getattr(losses, name))
    record("train/explained_variance", variance)
    if std is not None:
        record("train/std", std)
    record("train/n_updates", model.count_epochs(losses.epochs), exclude="tensorboard")
    record("train/clip_range", clip_range)
    if clip_range_vf is not None:
        record("train/clip_range_vf", clip_range_vf)


def explained_variance(predicted: NDArray[Any], true: NDArray[Any], ranks: Ranks) -> float:
    """``stable_baselines3.common.utils.explained_variance`` over all ranks: 1 - Var(true -
    predicted) / Var(true).
    """
    numbers = np.stack([true, true - predicted]).astype(np.float64)
    means = numbers.mean(axis=1)
    squares = np.square(numbers - means[:, None]).sum(axis=1)
    _, squares = moments_over_ranks(ranks, numbers.shape[1], means, squares)
    return float("nan") if squares[0] == 0.0 else float(1.0 - squares[1] / squares[0])
