"""Copies a policy of Stable-Baselines3 and its optimiser to and from the flat vectors that the fast
learner uses.
"""

from __future__ import annotations

import numpy as np
import torch
from stable_baselines3.common.distributions import DiagGaussianDistribution
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import FlattenExtractor
from torch import nn

from orchestrator.core.worker_spec import FAST_ACTIVATIONS, Mode
from orchestrator.worker.distributed.ranks import ALONE, Ranks
from orchestrator.worker.runtime.sb3_internals import HAS_FUSED_ADAM
from orchestrator.worker.training import algorithms
from orchestrator.worker.training.fast.network import Array, Layout, Passes, Shape
from orchestrator.worker.training.fast.qualify import unfit_spaces
from orchestrator.worker.training.fast.update import Update

CHUNK = 256
"""Rows of a forward pass over a rollout: what fits into the nearer caches."""
ACTIVATION_NAMES = {algorithms.activation(name): name for name in FAST_ACTIVATIONS}
UNSUPPORTED_OPTIONS = ("amsgrad", "maximize", "decoupled_weight_decay")
"""Options of torch's Adam."""


class UnsuitableError(ValueError):
    """The fast learner does not implement the form of this policy, optimiser or buffer."""

    def __init__(self, problem: str | None) -> None:
        super().__init__(f"the fast learner cannot train this: {problem}")


class PolicyNetwork:
    """A policy's parameters in one flat vector, with its forward passes and its update.

    :param hidden: number of the last observations for which the actor's weights are not trained.
    :raises UnsuitableError: the policy has a form that is not implemented here.
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
        self.update = Update(self._layout, ranks, mode, self.dtype)
        self._parameters = self.update.parameters
        if hidden:
            self.update.hide(hidden)

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
        """Read the parameters of ``policy``. :raises UnsuitableError: one of them is frozen."""
        views = self._layout.named_views(self._parameters)
        for name, parameter in policy.named_parameters():
            if not parameter.requires_grad:
                raise UnsuitableError(f"{name} is frozen (its requires_grad is off)")
            views[name][...] = parameter.detach().numpy()

    def load_moments(self, policy: ActorCriticPolicy) -> None:
        """Read the moments and step counts of the policy's optimiser."""
        adam = self.update.adam
        state = policy.optimizer.state
        first = self._layout.named_views(adam.exp_avg)
        second = self._layout.named_views(adam.exp_avg_sq)
        adam.step[:] = 0.0
        for name, parameter in policy.named_parameters():
            moments = state.get(parameter)
            first[name][...] = moments["exp_avg"].numpy() if moments else 0.0
            second[name][...] = moments["exp_avg_sq"].numpy() if moments else 0.0
            if moments:
                adam.step[:] = float(moments["step"])

    def store(self, policy: ActorCriticPolicy) -> None:
        """Write the parameters and the optimiser's state back, in place."""
        adam = self.update.adam
        state = policy.optimizer.state
        named = self._layout.named_views
        values = named(self._parameters)
        first = named(adam.exp_avg)
        second = named(adam.exp_avg_sq)
        for name, parameter in policy.named_parameters():
            parameter.detach().numpy()[...] = values[name]
            if adam.step[0] == 0.0:  # before the first step torch keeps no state
                continue
            if not state.get(parameter):
                moments = {key: torch.zeros_like(parameter) for key in ("exp_avg", "exp_avg_sq")}
                state[parameter] = {"step": torch.zeros(()), **moments}
            entry = state[parameter]
            entry["step"].fill_(float(adam.step[0]))
            entry["exp_avg"].numpy()[...] = first[name]
            entry["exp_avg_sq"].numpy()[...] = second[name]


def shape_of(policy: ActorCriticPolicy) -> Shape:
    """The shape of an ``MlpPolicy`` with Gaussian actions on the CPU. :raises UnsuitableError: it
    is anything else.
    """
    optimizer = policy.optimizer
    options = optimizer.param_groups[0]
    activation = policy.activation_fn
    unfit = unfit_spaces(policy.observation_space, policy.action_space)
    for supported, problem in (
        (type(policy) is ActorCriticPolicy, f"the policy is a {type(policy).__name__}"),
        (unfit is None, unfit),
        (
            type(policy.pi_features_extractor) is FlattenExtractor,
            "the actor has a feature extractor of its own",
        ),
        (
            type(policy.vf_features_extractor) is FlattenExtractor,
            "the critic has a feature extractor of its own",
        ),
        (
            type(policy.action_dist) is DiagGaussianDistribution,
            "actions are not drawn from a diagonal Gaussian",
        ),
        (activation in ACTIVATION_NAMES, f"the activation is {activation.__name__}"),
        (policy.device.type == "cpu", f"the policy is on {policy.device}"),
        (type(optimizer) is torch.optim.Adam, f"the optimiser is {type(optimizer).__name__}"),
        (
            not any(options.get(name) for name in UNSUPPORTED_OPTIONS),
            "Adam has options that are not supported",
        ),
        (HAS_FUSED_ADAM, f"torch {torch.__version__} has no fused Adam"),
    ):
        if not supported:
            raise UnsuitableError(problem)
    layers = policy.mlp_extractor
    return Shape(
        observation=policy.features_dim,
        actor=_widths(layers.policy_net),
        critic=_widths(layers.value_net),
        actions=policy.action_net.out_features,  # type: ignore[arg-type]
        activation=ACTIVATION_NAMES[activation],
    )


def _widths(network: nn.Sequential) -> tuple[int, ...]:
    return tuple(layer.out_features for layer in network if isinstance(layer, nn.Linear))
