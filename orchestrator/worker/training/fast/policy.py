"""The networks of a policy of Stable-Baselines3 with their optimiser, in flat vectors."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.policies import ActorCriticPolicy
from torch import nn

from orchestrator.worker.runtime.sb3_internals import fused_adam
from orchestrator.worker.training.fast.loss import Minibatch
from orchestrator.worker.training.fast.network import Array, Layout, Shape
from orchestrator.worker.training.fast.update import NonFiniteGradient

CHUNK = 256
"""Rows of a forward pass over a rollout: what fits into the nearer caches."""


class PolicyNetwork:
    """A policy's parameters, their gradients and Adam's moments, and the work spaces of their
    passes. The policy is read by :meth:`load` and written by :meth:`store`.
    """

    def __init__(self, policy: ActorCriticPolicy) -> None:
        self.shape = shape_of(policy)
        self.dtype = next(policy.parameters()).detach().numpy().dtype
        layout = Layout(self.shape)
        self.parameters = np.zeros(layout.size, self.dtype)
        self.gradients_and_kl = np.zeros(layout.size + 1, self.dtype)
        """Gradients and divergence, which ranks exchange at once."""
        self.gradients = self.gradients_and_kl[:-1]
        self.untrained = self.gradients[:0]
        """Gradients that are set to 0."""
        self._gradients = layout.parameters(self.gradients)
        self._exp_avg, self._exp_avg_sq = np.zeros((2, layout.size), self.dtype)
        self._steps = np.zeros(1, np.float32)
        self.log_std = layout.matrices(self.parameters).log_std
        """``(actions,)``"""
        self.minibatch = functools.cache(
            functools.partial(Minibatch, layout, self.parameters, self.gradients)
        )
        """The work space for a number of rows, made on first use."""
        vectors = (self.parameters, self._exp_avg, self._exp_avg_sq)
        self._adam = functools.partial(
            fused_adam(),
            [torch.from_numpy(self.parameters)],
            [torch.from_numpy(self.gradients)],
            [torch.from_numpy(self._exp_avg)],
            [torch.from_numpy(self._exp_avg_sq)],
            [],  # the largest second moments, of AMSGrad
            [torch.from_numpy(self._steps)[0]],
            amsgrad=False,
            maximize=False,
        )
        self._views = list(zip(*map(layout.parameters, vectors), strict=True))
        """For each parameter of the policy, the places of its values and moments."""

    def hide_from_actor(self, count: int) -> None:
        """Stop training the actor's weights for the last ``count`` observations."""
        self.untrained = self._gradients[1][:, -count:]

    def evaluate(self, x: Array) -> tuple[Array, Array]:
        """Means ``(steps, n_envs, actions)`` and values ``(steps, n_envs)``.

        :param x: ``(steps, n_envs, observation + 1)``, of which the last column is 1.
        """
        rows = x.reshape(-1, x.shape[2])
        means = []
        values = []
        for begin in range(0, len(rows), CHUNK):
            part = rows[begin : begin + CHUNK]
            count = len(part)
            # Rows up to the next power of two: few sizes, because each keeps its work space.
            passes = self.minibatch(1 << (count - 1).bit_length())
            passes.x[:count] = part
            passes.forward()
            means.append(passes.mean[:count].copy())
            values.append(passes.value[:count].copy())
        of_steps = x.shape[:2]
        return (
            np.concatenate(means).reshape(*of_steps, -1),
            np.concatenate(values).reshape(of_steps),
        )

    def step(self, group: Mapping[str, Any], max_grad_norm: float) -> None:
        """Clip the gradients and take a step of torch's Adam with its fused kernel.

        :param group: torch's parameter group with ``lr`` and other options.
        :raises NonFiniteGradient: they are not finite.
        """
        norm = math.sqrt(np.dot(self.gradients, self.gradients))
        if not math.isfinite(norm) and not np.isfinite(self.gradients).all():
            raise NonFiniteGradient("the gradient of the policy is not finite")
        factor = max_grad_norm / (norm + 1e-6)
        if factor < 1.0:
            np.multiply(self.gradients, factor, out=self.gradients)
        self._steps += 1.0
        self._adam(
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            eps=group["eps"],
            weight_decay=group["weight_decay"],
        )

    def load(self, policy: ActorCriticPolicy) -> None:
        """Read parameters and moments, which are 0 before the optimiser's first step."""
        for parameter, (values, first, second) in zip(
            policy.parameters(), self._views, strict=True
        ):
            state = policy.optimizer.state.get(parameter, {})
            values[...] = parameter.detach().numpy()
            first[...] = state.get("exp_avg", 0.0)
            second[...] = state.get("exp_avg_sq", 0.0)
            self._steps[0] = state.get("step", 0.0)

    def store(self, policy: ActorCriticPolicy) -> None:
        """Write parameters and moments."""
        for parameter, (values, first, second) in zip(
            policy.parameters(), self._views, strict=True
        ):
            parameter.detach().numpy()[...] = values
            policy.optimizer.state[parameter] = {
                "step": torch.tensor(self._steps[0]),
                "exp_avg": torch.from_numpy(first.copy()),
                "exp_avg_sq": torch.from_numpy(second.copy()),
            }


def shape_of(policy: ActorCriticPolicy) -> Shape:
    """The shape of an ``MlpPolicy`` that :mod:`.qualify` accepts."""
    actor, critic = (
        tuple(layer.out_features for layer in network if isinstance(layer, nn.Linear))
        for network in (policy.mlp_extractor.policy_net, policy.mlp_extractor.value_net)
    )
    return Shape(
        observation=policy.features_dim,
        actor=actor,
        critic=critic,
        actions=policy.action_net.out_features,  # type: ignore[arg-type]
        activation=policy.activation_fn,
    )
