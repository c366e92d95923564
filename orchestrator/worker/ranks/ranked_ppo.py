"""PPO over several ranks, and what both of its learners log of an update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.utils import explained_variance

from orchestrator.core.worker_spec import Mode
from orchestrator.worker.ranks.ranks import ALONE, Ranks
from orchestrator.worker.runtime.sb3_internals import ExtendedPPO

LOGGED = (
    "entropy_loss",
    "policy_gradient_loss",
    "value_loss",
    "approx_kl",
    "clip_fraction",
    "loss",
)
"""Logged values of a minibatch, in the order of ``PPO.train``."""


class RankedPPO(ExtendedPPO):
    """``stable_baselines3.PPO`` of which each rank has a part of the environments, and so of every
    minibatch. ``batch_size`` counts the rows of all ranks together.
    """

    unsaved: ClassVar[tuple[str, ...]] = ("ranks", "mode")
    ranks: Ranks = ALONE
    mode: Mode = "allreduce"

    def join(self, ranks: Ranks, mode: Mode) -> None:
        """Train together with other ranks.

        The caller of :meth:`collect_rollouts` adds the others' steps to ``num_timesteps``.
        """
        self.ranks = ranks
        self.mode = mode

    def record_update(
        self,
        epochs: Sequence[NDArray[np.float64]],
        clip_range: float,
        clip_range_vf: float | None,
    ) -> None:
        """Log what ``PPO.train`` logs at its end: losses over all ranks, and the explained variance
        of this one's values.

        :param epochs: for each epoch begun ``(minibatches, 6)``, this rank's means of
            :data:`LOGGED`.
        """
        minibatches = np.concatenate(epochs) / self.ranks.size
        self.ranks.all_reduce(minibatches)
        means = dict(zip(LOGGED, minibatches.mean(axis=0), strict=True))
        of_last_epoch = minibatches[-len(epochs[-1]) :]
        means["approx_kl"] = of_last_epoch[:, LOGGED.index("approx_kl")].mean()
        means["loss"] = minibatches[-1, LOGGED.index("loss")]
        record = self.logger.record
        for name, mean in means.items():
            record(f"train/{name}", float(mean))
        buffer = self.rollout_buffer
        variance = explained_variance(buffer.values.flatten(), buffer.returns.flatten())
        record("train/explained_variance", float(variance))
        if hasattr(self.policy, "log_std"):
            record("train/std", torch.exp(self.policy.log_std).mean().item())
        record("train/n_updates", self.count_epochs(len(epochs)), exclude="tensorboard")
        record("train/clip_range", clip_range)
        if clip_range_vf is not None:
            record("train/clip_range_vf", clip_range_vf)
