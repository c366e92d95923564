"""Stock PPO over several ranks.

Its update is ``PPO.train`` written out, because all ranks must agree on the gradients before they
are clipped, on mean and deviation of the advantages, and on the divergence that ends an update. SAC
and TD3 clip nothing between backward and step: averaging the gradients at each step is enough there
(:func:`.gradient_exchange.average_gradients`).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv
from torch.nn import functional

from orchestrator.core.worker_spec import Mode
from orchestrator.worker.ranks import batched_rollout
from orchestrator.worker.ranks.gradient_exchange import step_together
from orchestrator.worker.ranks.ppo_log import Losses, explained_variance, record_update
from orchestrator.worker.ranks.ranks import Ranks, moments_over_ranks
from orchestrator.worker.runtime.sb3_internals import ExtendedPPO, unchecked_distributions


class DistributedPPO(ExtendedPPO):
    """``stable_baselines3.PPO`` of which each rank has a part of the environments, and so of every
    minibatch.

    ``batch_size`` counts the rows of all ranks together. :meth:`join` must be called before
    :meth:`train`.
    """

    unsaved = ("_ranks", "_mode")

    def join(self, ranks: Ranks, mode: Mode) -> None:
        self._ranks = ranks
        self._mode = mode
        if type(self.policy.optimizer) is torch.optim.Adam:  # one kernel for all parameters
            for group in self.policy.optimizer.param_groups:
                group["fused"] = True
                group["foreach"] = False

    def collect_rollouts(
        self,
        env: VecEnv,
        callback: BaseCallback,
        rollout_buffer: RolloutBuffer,
        n_rollout_steps: int,
    ) -> bool:
        """Collect a rollout that equals Stable-Baselines3's up to rounding."""
        if self.use_sde:
            return super().collect_rollouts(env, callback, rollout_buffer, n_rollout_steps)
        batched_rollout.collect(self, env, self.batch_size // self._ranks.size)
        return True

    def train(self) -> None:
        """``PPO.train`` over all ranks. Every rank logs the same values: means over all of them."""
        ranks = self._ranks
        parameters = list(self.policy.parameters())
        clip_range, clip_range_vf = self.begin_update()
        logged: list[torch.Tensor] = []
        ended = False
        epochs = 0
        in_last_epoch = 0
        while epochs < self.n_epochs and not ended:
            epochs += 1
            in_last_epoch = 0
            for samples in self.rollout_buffer.get(self.batch_size // ranks.size):
                in_last_epoch += 1
                with unchecked_distributions():
                    loss, divergence, row = self._loss(samples, clip_range, clip_range_vf)
                logged.append(row)
                ended = self.target_kl is not None and divergence > 1.5 * self.target_kl
                if ended:
                    break
                self.policy.optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                step_together(parameters, self._clipped_step, ranks, self._mode)
        of_minibatches = torch.stack(logged).double().cpu().numpy() / ranks.size
        ranks.all_reduce(of_minibatches)
        policy, value, entropy, _, clipped, _ = of_minibatches.mean(axis=0).tolist()
        divergences = of_minibatches[:, 3]
        losses = Losses(
            entropy_loss=entropy,
            policy_gradient_loss=policy,
            value_loss=value,
            approx_kl=float(np.mean(divergences[-in_last_epoch:])),
            clip_fraction=clipped,
            loss=float(of_minibatches[-1, 5]),
            epochs=epochs,
            ended_at_kl=float(divergences[-1]) if ended else None,
        )
        buffer = self.rollout_buffer
        variance = explained_variance(buffer.values.flatten(), buffer.returns.flatten(), ranks)
        std = None
        if hasattr(self.policy, "log_std"):
            std = torch.exp(self.policy.log_std).mean().item()
        record_update(self, losses, variance, std, clip_range, clip_range_vf)

    def _loss(
        self, samples: Any, clip_range: float, clip_range_vf: float | None
    ) -> tuple[torch.Tensor, float, torch.Tensor]:
        """Return PPO's loss over ``samples``, this rank's part of a minibatch; the divergence over
        all ranks; and a row of this rank's losses of policy, values and entropy, divergence, share
        of clipped samples, and loss.
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
        row = [policy_loss, value_loss, entropy_loss, own_divergence, clip_fraction, loss]
        return loss, divergence, torch.stack(row).detach()

    def _over_ranks(
        self, advantages: torch.Tensor, divergence: float
    ) -> tuple[torch.Tensor, float]:
        """Advantages normalised over all ranks and the mean divergence. What no hyperparameter
        needs stays as it is.
        """
        if not self.normalize_advantage and self.target_kl is None:
            return advantages, divergence
        count = len(advantages)
        exact = advantages.double()
        mean = exact.mean()
        squares = (exact - mean).square().sum()
        # Both means in one exchange; the spread of the divergences is not needed.
        means, distances = moments_over_ranks(
            self._ranks,
            count,
            np.array([mean.item(), divergence]),
            np.array([squares.item(), 0.0]),
        )
        if self.normalize_advantage:  # several ranks have several samples
            deviation = math.sqrt(distances[0] / (count * self._ranks.size - 1))
            advantages = ((exact - means[0]) / (deviation + 1e-8)).to(advantages.dtype)
        return advantages, float(means[1])

    def _clipped_step(self, gradients: torch.Tensor) -> None:
        """``torch.nn.utils.clip_grad_norm_``, and a step."""
        norm = torch.linalg.vector_norm(gradients)
        gradients.mul_((self.max_grad_norm / (norm + 1e-6)).clamp_(max=1.0))
        self.policy.optimizer.step()
