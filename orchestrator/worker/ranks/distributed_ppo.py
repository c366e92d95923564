"""Stock PPO over several ranks.

Its update is ``PPO.train`` written out, because all ranks must agree on mean and deviation of the
advantages, and on the divergence that ends an update. :func:`.gradient_exchange.average_gradients`
averages and clips the gradients.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch.nn import functional

from orchestrator.core.worker_spec import Mode
from orchestrator.worker.ranks import batched_rollout
from orchestrator.worker.ranks.gradient_exchange import average_gradients
from orchestrator.worker.ranks.ranked_ppo import RankedPPO
from orchestrator.worker.ranks.ranks import Ranks, moments_over_ranks
from orchestrator.worker.runtime.sb3_internals import unchecked_distributions


class DistributedPPO(RankedPPO):
    """Stock PPO over several ranks. :meth:`join` must be called before :meth:`train`."""

    def join(self, ranks: Ranks, mode: Mode) -> None:
        super().join(ranks, mode)
        optimizer = self.policy.optimizer
        average_gradients(optimizer, ranks, mode, self.max_grad_norm)
        if type(optimizer) is torch.optim.Adam:  # one kernel for all parameters
            for group in optimizer.param_groups:
                group["fused"] = True
                group["foreach"] = False

    def collect_rollouts(self, env: Any, *arguments: Any, **options: Any) -> bool:
        """Collect a rollout that equals Stable-Baselines3's up to rounding."""
        if self.use_sde:
            return super().collect_rollouts(env, *arguments, **options)
        batched_rollout.collect(self, env, self.batch_size // self.ranks.size)
        return True

    def train(self) -> None:
        """``PPO.train`` over all ranks. Every rank logs the same means over all of them, and the
        explained variance of its own values.
        """
        clip_range, clip_range_vf = self.begin_update()
        epochs: list[NDArray[np.float64]] = []
        ended = False
        while len(epochs) < self.n_epochs and not ended:
            logged: list[torch.Tensor] = []
            for samples in self.rollout_buffer.get(self.batch_size // self.ranks.size):
                with unchecked_distributions():
                    loss, divergence, row = self._loss(samples, clip_range, clip_range_vf)
                logged.append(row)
                ended = self.target_kl is not None and divergence > 1.5 * self.target_kl
                if ended:
                    break
                self.policy.optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                self.policy.optimizer.step()
            epochs.append(torch.stack(logged).double().cpu().numpy())
        self.record_update(epochs, clip_range, clip_range_vf)

    def _loss(
        self, samples: Any, clip_range: float, clip_range_vf: float | None
    ) -> tuple[torch.Tensor, float, torch.Tensor]:
        """Return PPO's loss over ``samples``, this rank's part of a minibatch; the divergence over
        all ranks; and a row of :data:`LOGGED` values of this rank.
        """
        actions = samples.actions
        if isinstance(self.action_space, spaces.Discrete):
            actions = actions.long().flatten()
        values, log_prob, entropy = self.policy.evaluate_actions(samples.observations, actions)
        log_ratio = log_prob - samples.old_log_prob
        ratio = torch.exp(log_ratio)
        with torch.no_grad():
            own_divergence = ((ratio - 1) - log_ratio).mean()
            clip_fraction = (torch.abs(ratio - 1) > clip_range).float().mean()
        advantages, divergence = self._over_ranks(samples.advantages, own_divergence.item())
        clipped = torch.clamp(ratio, 1 - clip_range, 1 + clip_range)
        policy_loss = -torch.min(advantages * ratio, advantages * clipped).mean()
        values = values.flatten()
        if clip_range_vf is not None:
            values = samples.old_values + torch.clamp(
                values - samples.old_values, -clip_range_vf, clip_range_vf
            )
        value_loss = functional.mse_loss(samples.returns, values)
        entropy_loss = log_prob.mean() if entropy is None else -entropy.mean()
        loss = policy_loss + self.ent_coef * entropy_loss + self.vf_coef * value_loss
        row = [entropy_loss, policy_loss, value_loss, own_divergence, clip_fraction, loss]
        return loss, divergence, torch.stack(row).detach()

    def _over_ranks(
        self, advantages: torch.Tensor, divergence: float
    ) -> tuple[torch.Tensor, float]:
        """Advantages, normalised over all ranks where that is asked for, and the mean
        divergence.
        """
        count = len(advantages)
        exact = advantages.double()
        mean = exact.mean()
        squares = (exact - mean).square().sum()
        # Both means in one exchange; the spread of the divergences is not needed.
        means, distances = moments_over_ranks(
            self.ranks,
            count,
            np.array([mean.item(), divergence]),
            np.array([squares.item(), 0.0]),
        )
        if self.normalize_advantage:  # several ranks have several samples
            deviation = math.sqrt(distances[0] / (count * self.ranks.size - 1))
            advantages = ((exact - means[0]) / (deviation + 1e-8)).to(advantages.dtype)
        return advantages, float(means[1])
