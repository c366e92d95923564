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
from stable_baselines3.common.policies import ActorCriticPolicy
from torch import nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector

from orchestrator.contract import Mode
from orchestrator.worker.fast.network import Array
from orchestrator.worker.fast.ppo import explained_variance
from orchestrator.worker.ranks import Group, Ranks

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


def _served(parameters: Sequence[nn.Parameter], ranks: Ranks, step: Callable[[], object]) -> None:
    """Rank 0 takes ``step`` with the mean of all gradients, and sends the parameters to the others."""
    gradients = _mean(parameters, ranks, ranks.reduce)
    if ranks.rank == 0:
        _write(parameters, gradients)
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


class DistributedPPO(PPO):
    """``stable_baselines3.PPO`` of which each rank has a part of the environments, and so of every minibatch.

    ``batch_size`` is of all ranks together. :meth:`join` comes before :meth:`train`.
    """

    def join(self, ranks: Group, mode: Mode) -> None:
        self._ranks, self._mode = ranks, mode
        self._evaluate: nn.Module = _Evaluation(self.policy)
        if mode == "allreduce":
            self.policy.set_training_mode(False)
            self._evaluate = ranks.parallel(self._evaluate, *self._example())

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
        return [*super()._excluded_save_params(), "_ranks", "_mode", "_evaluate"]

    def train(self) -> None:
        """``PPO.train`` over all ranks. Every rank logs the same: means over all of them."""
        ranks, optimizer, progress = self._ranks, self.policy.optimizer, self._current_progress_remaining
        self.policy.set_training_mode(True)
        self._update_learning_rate(optimizer)
        clip_range = self.clip_range(progress)  # type: ignore[operator]
        clip_range_vf = None if self.clip_range_vf is None else self.clip_range_vf(progress)  # type: ignore[operator]
        logs: list[list[list[float]]] = []
        ended = False
        for _ in range(self.n_epochs):
            logs.append([])
            for samples in self.rollout_buffer.get(self.batch_size // ranks.size):
                loss, known = self._loss(samples, clip_range, clip_range_vf)
                # The divergence is needed now; the rest travels with it.
                told = np.array([*known, loss.item()]) / ranks.size
                ranks.all_reduce(told)
                logs[-1].append(told.tolist())
                ended = self.target_kl is not None and told[3] > 1.5 * self.target_kl
                if ended:
                    break
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                self._step(optimizer)
            self._n_updates += 1
            if ended:
                break
        self._log([one for epoch in logs for one in epoch], logs[-1], clip_range, clip_range_vf)

    def _loss(self, samples: Any, clip_range: float, clip_range_vf: float | None) -> tuple[torch.Tensor, list[float]]:
        """The loss of this rank's part, and what is logged: policy, value, entropy loss, divergence, clipped share."""
        values, log_prob, entropy = self._evaluate(samples.observations, self._as_actions(samples.actions))
        log_ratio = log_prob - samples.old_log_prob
        ratio = torch.exp(log_ratio)
        advantages = self._normalized(samples.advantages)
        clipped = torch.clamp(ratio, 1 - clip_range, 1 + clip_range)
        policy_loss = -torch.min(advantages * ratio, advantages * clipped).mean()
        values = values.flatten()
        if clip_range_vf is not None:
            values = samples.old_values + torch.clamp(values - samples.old_values, -clip_range_vf, clip_range_vf)
        value_loss = functional.mse_loss(samples.returns, values)
        entropy_loss = log_prob.mean() if entropy is None else -entropy.mean()
        loss = policy_loss + self.ent_coef * entropy_loss + self.vf_coef * value_loss
        with torch.no_grad():
            divergence = ((ratio - 1) - log_ratio).mean()
            clip_fraction = (torch.abs(ratio - 1) > clip_range).float().mean()
        known = [policy_loss, value_loss, entropy_loss, divergence, clip_fraction]
        return loss, [one.item() for one in known]

    def _normalized(self, advantages: torch.Tensor) -> torch.Tensor:
        """By mean and unbiased deviation over all ranks; a single sample is left as it is."""
        count = len(advantages) * self._ranks.size
        if not self.normalize_advantage or count == 1:
            return advantages
        exact = advantages.double()
        mean = self._total(exact.sum()) / count
        deviation = math.sqrt(self._total((exact - mean).square().sum()) / (count - 1))
        return ((exact - mean) / (deviation + 1e-8)).to(advantages.dtype)

    def _total(self, value: torch.Tensor) -> float:
        total = np.array([value.item()])
        self._ranks.all_reduce(total)
        return float(total[0])

    def _step(self, optimizer: torch.optim.Optimizer) -> None:
        """Clip the gradients of all ranks together and take the step."""
        parameters = list(self.policy.parameters())

        def step() -> None:
            nn.utils.clip_grad_norm_(parameters, self.max_grad_norm)
            optimizer.step()

        if self._mode == "parameter-server":
            _served(parameters, self._ranks, step)
        else:
            step()

    def _log(
        self, every: list[list[float]], last_epoch: list[list[float]], clip_range: float, clip_range_vf: float | None
    ) -> None:
        record, buffer = self.logger.record, self.rollout_buffer
        policy_loss, value_loss, entropy_loss, _, clip_fraction, _ = np.mean(every, axis=0).tolist()
        record("train/entropy_loss", entropy_loss)
        record("train/policy_gradient_loss", policy_loss)
        record("train/value_loss", value_loss)
        record("train/approx_kl", float(np.mean([one[3] for one in last_epoch])))
        record("train/clip_fraction", clip_fraction)
        record("train/loss", every[-1][-1])
        variance = explained_variance(buffer.values.flatten(), buffer.returns.flatten(), self._ranks)
        record("train/explained_variance", variance)
        if hasattr(self.policy, "log_std"):
            record("train/std", torch.exp(self.policy.log_std).mean().item())
        record("train/n_updates", self._n_updates, exclude="tensorboard")
        record("train/clip_range", clip_range)
        if clip_range_vf is not None:
            record("train/clip_range_vf", clip_range_vf)
