"""Stock learners over several ranks: gradients through DistributedDataParallel, or through a parameter server.

``PPO.train`` calls ``policy.evaluate_actions``, which a wrapped policy would pass by without a word: gradients would
never be averaged. So the module that is wrapped here has ``evaluate_actions`` as its ``forward``, and the update is
written out, with what all ranks must agree on: mean and deviation of the advantages, and the divergence that ends an
update. SAC clips nothing between backward and step: there it is enough to unite the gradients at each step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import VecEnv
from torch import nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector

from orchestrator.core.worker_spec import Mode
from orchestrator.worker.distributed.ranks import Group, Ranks, pooled
from orchestrator.worker.training import batched_rollout
from orchestrator.worker.training.fast.epochs import Losses
from orchestrator.worker.training.fast.network import Array
from orchestrator.worker.training.fast.ppo import explained_variance, record_update

Evaluated = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]


class _Evaluation(nn.Module):
    """What PPO's loss needs of a policy, as a forward pass."""

    def __init__(self, policy: ActorCriticPolicy) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, observations: Any, actions: torch.Tensor) -> Evaluated:
        return self.policy.evaluate_actions(observations, actions)


def unite(optimizer: torch.optim.Optimizer, ranks: Ranks, mode: Mode) -> None:
    """From now on ``optimizer.step`` takes the mean of all ranks' gradients, on every rank or on rank 0 for all."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    step = optimizer.step

    def united() -> None:
        if mode == "parameter-server":
            _served(parameters, ranks, step)
        else:
            _write(parameters, _mean(parameters, ranks, ranks.all_reduce))
            step()

    optimizer.step = united  # type: ignore[method-assign,assignment]


def _served(
    parameters: Sequence[nn.Parameter],
    ranks: Ranks,
    step: Callable[[], object],
    vector: torch.Tensor | None = None,
) -> None:
    """Rank 0 takes ``step`` with the mean of all gradients, and sends the parameters to the others.

    :param vector: the gradients, where they lie in one.
    """
    if vector is None:
        gradients = _mean(parameters, ranks, ranks.reduce)
        if ranks.rank == 0:
            _write(parameters, gradients)
    else:
        vector.div_(ranks.size)
        ranks.reduce(vector.numpy())
    if ranks.rank == 0:
        step()
    values = parameters_to_vector(parameters).detach().cpu().numpy()
    ranks.broadcast(values)
    with torch.no_grad():
        for parameter, value in zip(parameters, _parts(parameters, values), strict=True):
            parameter.copy_(value)


def _mean(parameters: Sequence[nn.Parameter], ranks: Ranks, add_up: Callable[[Array], None]) -> Array:
    """The gradients as one vector, averaged over the ranks."""
    gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
    flat: Array = parameters_to_vector(gradients).detach().cpu().numpy()
    flat /= ranks.size
    add_up(flat)
    return flat


def _write(parameters: Sequence[nn.Parameter], gradients: Array) -> None:
    for parameter, gradient in zip(parameters, _parts(parameters, gradients), strict=True):
        parameter.grad = gradient.to(parameter.device)


def _parts(parameters: Sequence[nn.Parameter], flat: Array) -> list[torch.Tensor]:
    """What of one vector belongs to each parameter, in its shape."""
    parts = torch.split(torch.from_numpy(flat), [parameter.numel() for parameter in parameters])
    return [part.reshape(parameter.shape) for part, parameter in zip(parts, parameters, strict=True)]


class _Gradients:
    """All gradients of a policy as one vector, of which each parameter's own is a view.

    They can be exchanged and clipped as they are, without copying.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        first = parameters[0]
        self.vector = torch.zeros(sum(one.numel() for one in parameters), dtype=first.dtype, device=first.device)
        parts = torch.split(self.vector, [one.numel() for one in parameters])
        self._views = [(one, part.view_as(one)) for one, part in zip(parameters, parts, strict=True)]

    def clear(self) -> None:
        """Zero, for ``backward`` to add to."""
        self.vector.zero_()
        for parameter, view in self._views:
            parameter.grad = view

    def clip(self, max_norm: float) -> None:
        """``torch.nn.utils.clip_grad_norm_``"""
        self.vector.mul_((max_norm / (torch.linalg.vector_norm(self.vector) + 1e-6)).clamp_(max=1.0))


class DistributedPPO(PPO):
    """``stable_baselines3.PPO`` of which each rank has a part of the environments, and so of every minibatch.

    Where ranks share memory they exchange their gradients as one vector; over the network DistributedDataParallel
    does it. ``batch_size`` is of all ranks together. :meth:`join` comes before :meth:`train`.
    """

    def join(self, ranks: Group, mode: Mode) -> None:
        self._ranks, self._mode = ranks, mode
        self._evaluate: nn.Module = _Evaluation(self.policy)
        self._gradients = _Gradients(list(self.policy.parameters())) if ranks.shares_memory else None
        if mode == "allreduce" and self._gradients is None:
            self.policy.set_training_mode(False)
            self._evaluate = ranks.parallel(self._evaluate, *self._example())
        if type(self.policy.optimizer) is torch.optim.Adam:  # one kernel for all parameters
            for group in self.policy.optimizer.param_groups:
                group["fused"], group["foreach"] = True, False
        # Several checks of every mean and deviation, all at every step; what is not finite is noticed anyway.
        torch.distributions.Distribution.set_default_validate_args(False)

    def collect_rollouts(
        self, env: VecEnv, callback: BaseCallback, rollout_buffer: RolloutBuffer, n_rollout_steps: int
    ) -> bool:
        """As in Stable-Baselines3, to rounding."""
        if self.use_sde:
            return super().collect_rollouts(env, callback, rollout_buffer, n_rollout_steps)
        rows_at_once = self.batch_size // self._ranks.size
        return batched_rollout.collect(self, env, callback, rollout_buffer, n_rollout_steps, rows_at_once)

    def _example(self) -> tuple[Any, torch.Tensor]:
        """Observations and actions of one step, all zero."""
        buffer: Any = self.rollout_buffer
        if isinstance(buffer.observations, dict):
            observations: Any = {key: buffer.to_torch(part[0]) for key, part in buffer.observations.items()}
        else:
            observations = buffer.to_torch(buffer.observations[0])
        return observations, self._as_actions(buffer.to_torch(buffer.actions[0]))

    def _as_actions(self, actions: torch.Tensor) -> torch.Tensor:
        return actions.long().flatten() if isinstance(self.action_space, spaces.Discrete) else actions

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_ranks", "_mode", "_evaluate", "_gradients"]

    def train(self) -> None:
        """``PPO.train`` over all ranks. Every rank logs the same: means over all of them."""
        ranks, optimizer, progress = self._ranks, self.policy.optimizer, self._current_progress_remaining
        self.policy.set_training_mode(True)
        self._update_learning_rate(optimizer)
        clip_range = self.clip_range(progress)  # type: ignore[operator]
        clip_range_vf = None if self.clip_range_vf is None else self.clip_range_vf(progress)  # type: ignore[operator]
        logs: list[list[float]] = []
        ended, epochs, in_last_epoch = False, 0, 0
        while epochs < self.n_epochs and not ended:
            epochs, in_last_epoch = epochs + 1, 0
            for samples in self.rollout_buffer.get(self.batch_size // ranks.size):
                loss, known, divergence = self._loss(samples, clip_range, clip_range_vf)
                logs.append([*known, loss.item()])
                in_last_epoch += 1
                ended = self.target_kl is not None and divergence > 1.5 * self.target_kl
                if ended:
                    break
                if self._gradients is None:
                    optimizer.zero_grad()
                else:
                    self._gradients.clear()
                loss.backward()  # type: ignore[no-untyped-call]
                self._step(optimizer)
        self._n_updates += epochs
        of_all = np.array(logs) / ranks.size
        ranks.all_reduce(of_all)
        losses = _losses(of_all, in_last_epoch, epochs, ended=ended)
        buffer = self.rollout_buffer
        variance = explained_variance(buffer.values.flatten(), buffer.returns.flatten(), ranks)
        std = torch.exp(self.policy.log_std).mean().item() if hasattr(self.policy, "log_std") else None
        record_update(self, losses, variance, std, clip_range, clip_range_vf)

    def _loss(
        self, samples: Any, clip_range: float, clip_range_vf: float | None
    ) -> tuple[torch.Tensor, list[float], float]:
        """The loss of this rank's part; what of it is logged: policy, value, entropy loss, divergence, clipped share.

        :return: and the divergence over all ranks, where it is asked for.
        """
        values, log_prob, entropy = self._evaluate(samples.observations, self._as_actions(samples.actions))
        log_ratio = log_prob - samples.old_log_prob
        ratio = torch.exp(log_ratio)
        with torch.no_grad():
            own_divergence = ((ratio - 1) - log_ratio).mean().item()
            clip_fraction = (torch.abs(ratio - 1) > clip_range).float().mean()
        advantages, divergence = self._of_all(samples.advantages, own_divergence)
        clipped = torch.clamp(ratio, 1 - clip_range, 1 + clip_range)
        policy_loss = -torch.min(advantages * ratio, advantages * clipped).mean()
        values = values.flatten()
        if clip_range_vf is not None:
            values = samples.old_values + torch.clamp(values - samples.old_values, -clip_range_vf, clip_range_vf)
        value_loss = functional.mse_loss(samples.returns, values)
        entropy_loss = log_prob.mean() if entropy is None else -entropy.mean()
        loss = policy_loss + self.ent_coef * entropy_loss + self.vf_coef * value_loss
        known = [policy_loss.item(), value_loss.item(), entropy_loss.item(), own_divergence, clip_fraction.item()]
        return loss, known, divergence

    def _of_all(self, advantages: torch.Tensor, divergence: float) -> tuple[torch.Tensor, float]:
        """What must be known over all ranks, in one exchange: advantages normalised by their mean and unbiased
        deviation, and the mean divergence. What is not asked for stays this rank's own.
        """
        count, ranks = len(advantages), self._ranks
        normalizes = self.normalize_advantage  # of several ranks there are several samples
        if not normalizes and self.target_kl is None:
            return advantages, divergence
        exact = advantages.double()
        mean = exact.mean()
        squares = (exact - mean).square().sum()
        means, distances = pooled(ranks, count, np.array([mean.item(), divergence]), np.array([squares.item(), 0.0]))
        if normalizes:
            deviation = math.sqrt(distances[0] / (count * ranks.size - 1))
            advantages = ((exact - means[0]) / (deviation + 1e-8)).to(advantages.dtype)
        return advantages, float(means[1])

    def _step(self, optimizer: torch.optim.Optimizer) -> None:
        """Clip the gradients of all ranks together and take the step."""
        parameters, gradients = list(self.policy.parameters()), self._gradients

        def step() -> None:
            if gradients is None:
                nn.utils.clip_grad_norm_(parameters, self.max_grad_norm)
            else:
                gradients.clip(self.max_grad_norm)
            optimizer.step()

        if self._mode == "parameter-server":
            _served(parameters, self._ranks, step, None if gradients is None else gradients.vector)
            return
        if gradients is not None:
            gradients.vector.div_(self._ranks.size)
            self._ranks.all_reduce(gradients.vector.numpy())
        step()


def _losses(every: Array, in_last_epoch: int, epochs: int, *, ended: bool) -> Losses:
    """:param every: ``(minibatches, 6)``: what :meth:`DistributedPPO._loss` says of each, and the loss itself."""
    policy_loss, value_loss, entropy_loss, _, clip_fraction, _ = np.mean(every, axis=0).tolist()
    return Losses(
        entropy_loss=entropy_loss,
        policy_gradient_loss=policy_loss,
        value_loss=value_loss,
        approx_kl=float(np.mean(every[-in_last_epoch:, 3])),
        clip_fraction=clip_fraction,
        loss=float(every[-1, -1]),
        epochs=epochs,
        ended_at_kl=float(every[-1, 3]) if ended else None,
    )
