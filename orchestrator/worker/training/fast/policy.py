"""Copies a policy of Stable-Baselines3 and its optimiser to and from the flat vectors that the fast
learner uses.
"""

from __future__ import annotations

import numpy as np
import torch
from stable_baselines3.common.policies import ActorCriticPolicy
from torch import nn

from orchestrator.core.worker_spec import FAST_ACTIVATIONS, Mode
from orchestrator.worker.ranks.ranks import ALONE, Ranks
from orchestrator.worker.training import algorithms
from orchestrator.worker.training.fast.network import Array, Layout, Passes, Shape
from orchestrator.worker.training.fast.update import Update

CHUNK = 256
"""Rows of a forward pass over a rollout: what fits into the nearer caches."""
ACTIVATION_NAMES = {algorithms.activation(name): name for name in FAST_ACTIVATIONS}


class PolicyNetwork:
    """A policy's parameters in one flat vector, with its forward passes and its update.

    :param hidden: number of the last observations for which the actor's weights are not trained.
    """

    def __init__(
        self,
        policy: ActorCriticPolicy,
        ranks: Ranks = ALONE,
        mode: Mode = "allreduce",
        dtype: type = np.float32,
        hidden: int = 0,
    ) -> None:
        self.shape = shape_of(policy)
        self.dtype = np.dtype(dtype)
        self._layout = Layout(self.shape)
        self._passes: dict[int, Passes] = {}
        self.update = Update(self._layout, ranks, mode, self.dtype, hidden)
        self._parameters = self.update.parameters

    @property
    def log_std(self) -> Array:
        """``(actions,)``"""
        return self._layout.log_std(self._parameters)

    def passes(self, rows: int) -> Passes:
        """The work space for ``rows`` rows at once, made on first use."""
        if rows not in self._passes:
            self._passes[rows] = Passes(self._layout, self._parameters, self.update.gradients, rows)
        return self._passes[rows]

    def evaluate(self, x: Array) -> tuple[Array, Array]:
        """Means ``(steps, n_envs, actions)`` and values ``(steps, n_envs)``.

        :param x: ``(steps, n_envs, observation + 1)``, of which the last column is 1.
        """
        steps, n_envs, width = x.shape
        rows = x.reshape(-1, width)
        means = np.empty((len(rows), self.shape.actions), self.dtype)
        values = np.empty(len(rows), self.dtype)
        for begin in range(0, len(rows), CHUNK):
            end = min(begin + CHUNK, len(rows))
            count = end - begin
            # Rows up to the next power of two: few sizes, because each keeps its work space.
            passes = self.passes(1 << (count - 1).bit_length())
            passes.x[:count] = rows[begin:end]
            passes.forward()
            means[begin:end] = passes.mean[:count]
            values[begin:end] = passes.value[:count, 0]
        return means.reshape(steps, n_envs, -1), values.reshape(steps, n_envs)

    def load(self, policy: ActorCriticPolicy) -> None:
        """Read the parameters of ``policy``."""
        values = self._layout.named_views(self._parameters)
        for name, parameter in policy.named_parameters():
            values[name][...] = parameter.detach().numpy()

    def load_moments(self, policy: ActorCriticPolicy) -> None:
        """Read the moments and the step count of the policy's optimiser."""
        adam = self.update.adam
        state = policy.optimizer.state
        first = self._layout.named_views(adam.exp_avg)
        second = self._layout.named_views(adam.exp_avg_sq)
        if not state:  # before the first step
            adam.reset()
            return
        for name, parameter in policy.named_parameters():
            first[name][...] = state[parameter]["exp_avg"].numpy()
            second[name][...] = state[parameter]["exp_avg_sq"].numpy()
            adam.step[:] = float(state[parameter]["step"])

    def store(self, policy: ActorCriticPolicy) -> None:
        """Write the parameters and the optimiser's state back."""
        adam = self.update.adam
        values = self._layout.named_views(self._parameters)
        first = self._layout.named_views(adam.exp_avg)
        second = self._layout.named_views(adam.exp_avg_sq)
        for name, parameter in policy.named_parameters():
            parameter.detach().numpy()[...] = values[name]
            if adam.step[0] > 0:
                policy.optimizer.state[parameter] = {
                    "step": torch.tensor(float(adam.step[0])),
                    "exp_avg": torch.from_numpy(first[name].copy()),
                    "exp_avg_sq": torch.from_numpy(second[name].copy()),
                }


def shape_of(policy: ActorCriticPolicy) -> Shape:
    """The shape of an ``MlpPolicy`` that :mod:`.qualify` accepts."""
    layers = policy.mlp_extractor
    return Shape(
        observation=policy.features_dim,
        actor=_widths(layers.policy_net),
        critic=_widths(layers.value_net),
        actions=policy.action_net.out_features,  # type: ignore[arg-type]
        activation=ACTIVATION_NAMES[policy.activation_fn],
    )


def _widths(network: nn.Sequential) -> tuple[int, ...]:
    return tuple(layer.out_features for layer in network if isinstance(layer, nn.Linear))
