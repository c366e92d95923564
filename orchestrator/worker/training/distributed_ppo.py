"""Stock PPO over several ranks, with gradients averaged by DistributedDataParallel or a parameter
server.

``PPO.train`` calls ``policy.evaluate_actions``. On a policy wrapped in DistributedDataParallel that
would bypass the wrapper, and gradients would silently never be averaged. So the wrapped module has
``evaluate_actions`` as its ``forward``, and the update is written out with the quantities that all
ranks must agree on: mean and deviation of the advantages, and the divergence that ends an update.
SAC and TD3 clip nothing between backward and step: averaging the gradients at each step is enough
there (:func:`.gradient_exchange.average_gradients`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import VecEnv
from torch import nn
from torch.nn import functional

from orchestrator.core.worker_spec import Mode
from orchestrator.worker.distributed.process_group import ProcessGroup
from orchestrator.worker.distributed.ranks import moments_over_ranks
from orchestrator.worker.runtime.sb3_internals import ExtendedPPO
from orchestrator.worker.training import batched_rollout
from orchestrator.worker.training.fast.epochs import Losses
from orchestrator.worker.training.fast.ppo import explained_variance, record_update
from orchestrator.worker.training.gradient_exchange import FlatGradients, step_on_server


class _Evaluated(NamedTuple):
    """What ``policy.evaluate_actions`` returns."""

    values: torch.Tensor
    log_prob: torch.Tensor
    entropy: torch.Tensor | None


class _Logged(NamedTuple):
    """What is logged of this rank's part of a minibatch; afterwards means over ranks, and arrays of
    the minibatches.
    """

    policy_loss: Any
    value_loss: Any
    entropy_loss: Any
    divergence: Any
    """Of this rank's rows alone."""
    clip_fraction: Any
    loss: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class _MinibatchLoss:
    loss: torch.Tensor
    """Of this rank's part."""
    logged: _Logged
    divergence: float
    """Over all ranks; without ``target_kl`` this rank's own."""


class _Evaluation(nn.Module):
    """``policy.evaluate_actions`` as a forward pass."""

    def __init__(self, policy: ActorCriticPolicy) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, observations: Any, actions: torch.Tensor) -> _Evaluated:
        return _Evaluated(*self.policy.evaluate_actions(observations, actions))


class DistributedPPO(ExtendedPPO):
    """``stable_baselines3.PPO`` of which each rank has a part of the environments, and so of every
    minibatch.

    Ranks that share memory exchange their gradients as one vector; over the network
    DistributedDataParallel does it. ``batch_size`` counts the rows of all ranks together.
    :meth:`join` must be called before :meth:`train`.
    """

    unsaved = ("_ranks", "_mode", "_evaluate", "_gradients")

    def join(self, ranks: ProcessGroup, mode: Mode) -> None:
        self._ranks = ranks
        self._mode = mode
        self._evaluate: nn.Module = _Evaluation(self.policy)
        self._gradients = (
            FlatGradients(list(self.policy.parameters())) if ranks.shares_memory else None
        )
        if mode == "allreduce" and self._gradients is None:
            self.policy.set_training_mode(False)
            self._evaluate = ranks.parallel(self._evaluate, *self._example())
        if type(self.policy.optimizer) is torch.optim.Adam:  # one kernel for all parameters
            for group in self.policy.optimizer.param_groups:
                group["fused"] = True
                group["foreach"] = False
        # Several checks of every mean and deviation at every step; the NaN guard notices what is
        # not finite anyway.
        torch.distributions.Distribution.set_default_validate_args(False)

    def collect_rollouts(
        self,
        env: VecEnv,
        callback: BaseCallback,
        rollout_buffer: RolloutBuffer,
        n_rollout_steps: int,
    ) -> bool:
        """Equal to Stable-Baselines3's rollout up to rounding."""
        if self.use_sde:
            return super().collect_rollouts(env, callback, rollout_buffer, n_rollout_steps)
        rows_at_once = self.batch_size // self._ranks.size
        return batched_rollout.collect(
            self, env, callback, rollout_buffer, n_rollout_steps, rows_at_once
        )

    def _example(self) -> tuple[Any, torch.Tensor]:
        """Observations and actions of one step, all zero."""
        buffer = self.rollout_buffer
        first_step = slice(0, buffer.n_envs)
        observations = batched_rollout.policy_observations(buffer, buffer.observations, first_step)
        return observations, self._as_actions(buffer.to_torch(buffer.actions[0]))

    def _as_actions(self, actions: torch.Tensor) -> torch.Tensor:
        return (
            actions.long().flatten() if isinstance(self.action_space, spaces.Discrete) else actions
        )

    def train(self) -> None:
        """``PPO.train`` over all ranks. Every rank logs the same values: means over all of them."""
        ranks = self._ranks
        optimizer = self.policy.optimizer
        clip_range, clip_range_vf = self.begin_update()
        logs: list[_Logged] = []
        ended = False
        epochs = 0
        in_last_epoch = 0
        while epochs < self.n_epochs and not ended:
            epochs += 1
            in_last_epoch = 0
            for samples in self.rollout_buffer.get(self.batch_size // ranks.size):
                minibatch = self._loss(samples, clip_range, clip_range_vf)
                logs.append(minibatch.logged)
                in_last_epoch += 1
                limit = self.target_kl
                ended = limit is not None and minibatch.divergence > 1.5 * limit
                if ended:
                    break
                if self._gradients is None:
                    optimizer.zero_grad()
                else:
                    self._gradients.clear()
                minibatch.loss.backward()  # type: ignore[no-untyped-call]
                self._step(optimizer)
        means = np.array(logs) / ranks.size
        ranks.all_reduce(means)
        of_update = _Logged(*np.mean(means, axis=0).tolist())
        of_minibatches = _Logged(*means.T)
        losses = Losses(
            entropy_loss=of_update.entropy_loss,
            policy_gradient_loss=of_update.policy_loss,
            value_loss=of_update.value_loss,
            approx_kl=float(np.mean(of_minibatches.divergence[-in_last_epoch:])),
            clip_fraction=of_update.clip_fraction,
            loss=float(of_minibatches.loss[-1]),
            epochs=epochs,
            ended_at_kl=float(of_minibatches.divergence[-1]) if ended else None,
        )
        buffer = self.rollout_buffer
        variance = explained_variance(buffer.values.flatten(), buffer.returns.flatten(), ranks)
        std = None
        if hasattr(self.policy, "log_std"):
            std = torch.exp(self.policy.log_std).mean().item()
        record_update(self, losses, variance, std, clip_range, clip_range_vf)

    def _loss(self, samples: Any, clip_range: float, clip_range_vf: float | None) -> _MinibatchLoss:
        """PPO's loss over ``samples``, this rank's part of a minibatch."""
        evaluated: _Evaluated = self._evaluate(
            samples.observations, self._as_actions(samples.actions)
        )
        log_ratio = evaluated.log_prob - samples.old_log_prob
        ratio = torch.exp(log_ratio)
        with torch.no_grad():
            own_divergence = ((ratio - 1) - log_ratio).mean().item()
            clip_fraction = (torch.abs(ratio - 1) > clip_range).float().mean()
        advantages, divergence = self._over_ranks(samples.advantages, own_divergence)
        clipped = torch.clamp(ratio, 1 - clip_range, 1 + clip_range)
        policy_loss = -torch.min(advantages * ratio, advantages * clipped).mean()
        values = evaluated.values.flatten()
        if clip_range_vf is not None:
            values = samples.old_values + torch.clamp(
                values - samples.old_values, -clip_range_vf, clip_range_vf
            )
        value_loss = functional.mse_loss(samples.returns, values)
        entropy = evaluated.entropy
        entropy_loss = evaluated.log_prob.mean() if entropy is None else -entropy.mean()
        loss = policy_loss + self.ent_coef * entropy_loss + self.vf_coef * value_loss
        logged = _Logged(
            policy_loss=policy_loss.item(),
            value_loss=value_loss.item(),
            entropy_loss=entropy_loss.item(),
            divergence=own_divergence,
            clip_fraction=clip_fraction.item(),
            loss=loss.item(),
        )
        return _MinibatchLoss(loss=loss, logged=logged, divergence=divergence)

    def _over_ranks(
        self, advantages: torch.Tensor, divergence: float
    ) -> tuple[torch.Tensor, float]:
        """Advantages normalised over all ranks and the mean divergence; what no hyperparameter
        needs stays as it is.
        """
        count = len(advantages)
        ranks = self._ranks
        if not self.normalize_advantage and self.target_kl is None:
            return advantages, divergence
        exact = advantages.double()
        mean = exact.mean()
        squares = (exact - mean).square().sum()
        # Both means in one exchange; the spread of the divergences is not needed.
        own_means = np.array([mean.item(), divergence])
        own_squares = np.array([squares.item(), 0.0])
        means, distances = moments_over_ranks(ranks, count, own_means, own_squares)
        if self.normalize_advantage:  # several ranks have several samples
            deviation = math.sqrt(distances[0] / (count * ranks.size - 1))
            advantages = ((exact - means[0]) / (deviation + 1e-8)).to(advantages.dtype)
        return advantages, float(means[1])

    def _step(self, optimizer: torch.optim.Optimizer) -> None:
        """Clip the gradients of all ranks together and take the step."""
        parameters = list(self.policy.parameters())
        gradients = self._gradients

        def step() -> None:
            if gradients is None:
                nn.utils.clip_grad_norm_(parameters, self.max_grad_norm)
            else:
                gradients.clip(self.max_grad_norm)
            optimizer.step()

        if self._mode == "parameter-server":
            step_on_server(
                parameters, self._ranks, step, None if gradients is None else gradients.vector
            )
            return
        if gradients is not None:
            gradients.vector.div_(self._ranks.size)
            self._ranks.all_reduce(gradients.vector.numpy())
        step()
