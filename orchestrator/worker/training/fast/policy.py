"""Between a policy of Stable-Baselines3 with its optimiser and the flat vectors in which its arithmetic is done."""

from __future__ import annotations

import numpy as np
import torch
from stable_baselines3.common.distributions import DiagGaussianDistribution
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import FlattenExtractor
from torch import nn

from orchestrator.core.worker_spec import FAST_ACTIVATIONS, Mode
from orchestrator.worker.distributed.ranks import ALONE, Ranks
from orchestrator.worker.training import algorithms
from orchestrator.worker.training.fast.network import Array, Layout, Passes, Shape
from orchestrator.worker.training.fast.qualify import unfit_spaces
from orchestrator.worker.training.fast.update import Update

CHUNK = 256
"""Rows of a large forward pass: what fits into the nearer caches."""
ACTIVATION_NAMES = {algorithms.activation(name): name for name in FAST_ACTIVATIONS}
UNKNOWN_OPTIONS = ("amsgrad", "maximize", "decoupled_weight_decay")
"""Of torch's Adam."""


class UnsuitableError(ValueError):
    """What the fast learner was given has a form whose arithmetic is not written here."""

    def __init__(self, problem: str | None) -> None:
        super().__init__(f"the fast learner cannot train this: {problem}")


class Network:
    """A policy's parameters in one flat vector, and what computes with them.

    :raises UnsuitableError: the policy has a form that is not written here.
    """

    def __init__(
        self, policy: ActorCriticPolicy, ranks: Ranks = ALONE, mode: Mode = "allreduce", dtype: type = np.float32
    ) -> None:
        self.shape = shape_of(policy)
        self.dtype = np.dtype(dtype)
        self._layout = Layout(self.shape)
        self._passes: dict[int, Passes] = {}
        self.update = Update(self._layout, ranks, mode, self.dtype)
        self._parameters = self.update.parameters

    @property
    def log_std(self) -> Array:
        """``(actions,)``"""
        return self._layout.log_std(self._parameters)

    def passes(self, rows: int) -> Passes:
        """Work space for so many rows at once."""
        if rows not in self._passes:
            self._passes[rows] = Passes(self._layout, self._parameters, self.update.gradients, rows)
        return self._passes[rows]

    def evaluate(self, observations: Array) -> tuple[Array, Array]:
        """``(steps, n_envs, observation)`` → means ``(steps, n_envs, actions)``, values ``(steps, n_envs)``."""
        steps, n_envs, width = observations.shape
        rows = observations.reshape(-1, width)
        means = np.empty((len(rows), self.shape.actions), self.dtype)
        values = np.empty(len(rows), self.dtype)
        for begin in range(0, len(rows), CHUNK):
            end = min(begin + CHUNK, len(rows))
            count = end - begin
            passes = self.passes(1 << (count - 1).bit_length())  # few sizes, for each keeps its work space
            passes.x[:count, :-1] = rows[begin:end]
            passes.forward()
            means[begin:end], values[begin:end] = passes.mean[:count], passes.value[:count, 0]
        return means.reshape(steps, n_envs, -1), values.reshape(steps, n_envs)

    def load(self, policy: ActorCriticPolicy) -> None:
        """Read the parameters of ``policy``. :raises UnsuitableError: some are not to be trained."""
        views = self._layout.named(self._parameters)
        for name, parameter in policy.named_parameters():
            if not parameter.requires_grad:
                raise UnsuitableError(f"{name} is frozen (its requires_grad is off)")
            views[name][...] = parameter.detach().numpy()

    def load_moments(self, policy: ActorCriticPolicy) -> None:
        """Read the state of its optimiser."""
        adam, state = self.update.adam, policy.optimizer.state
        first, second = self._layout.named(adam.exp_avg), self._layout.named(adam.exp_avg_sq)
        adam.step[:] = 0.0
        for name, parameter in policy.named_parameters():
            known = state.get(parameter)
            first[name][...] = known["exp_avg"].numpy() if known else 0.0
            second[name][...] = known["exp_avg_sq"].numpy() if known else 0.0
            if known:
                adam.step[:] = float(known["step"])

    def store(self, policy: ActorCriticPolicy) -> None:
        """Write parameters and state of the optimiser, in place."""
        adam, state, named = self.update.adam, policy.optimizer.state, self._layout.named
        values, first, second = named(self._parameters), named(adam.exp_avg), named(adam.exp_avg_sq)
        for name, parameter in policy.named_parameters():
            parameter.detach().numpy()[...] = values[name]
            if adam.step[0] == 0.0:  # no step was ever taken: torch keeps nothing then
                continue
            if not state.get(parameter):
                moments = {key: torch.zeros_like(parameter) for key in ("exp_avg", "exp_avg_sq")}
                state[parameter] = {"step": torch.zeros(()), **moments}
            known = state[parameter]
            known["step"].fill_(float(adam.step[0]))
            known["exp_avg"].numpy()[...] = first[name]
            known["exp_avg_sq"].numpy()[...] = second[name]


def shape_of(policy: ActorCriticPolicy) -> Shape:
    """:raises UnsuitableError: it is no ``MlpPolicy`` on the CPU with Gaussian actions and an activation known here."""
    optimizer = policy.optimizer
    options = optimizer.param_groups[0]
    activation = policy.activation_fn
    unfit = unfit_spaces(policy.observation_space, policy.action_space)
    for known, problem in (
        (type(policy) is ActorCriticPolicy, f"the policy is a {type(policy).__name__}"),
        (unfit is None, unfit),
        (type(policy.pi_features_extractor) is FlattenExtractor, "the actor has a feature extractor of its own"),
        (type(policy.vf_features_extractor) is FlattenExtractor, "the critic has a feature extractor of its own"),
        (type(policy.action_dist) is DiagGaussianDistribution, "actions are not drawn from a diagonal Gaussian"),
        (activation in ACTIVATION_NAMES, f"the activation is {activation.__name__}"),
        (policy.device.type == "cpu", f"the policy is on {policy.device}"),
        (type(optimizer) is torch.optim.Adam, f"the optimiser is {type(optimizer).__name__}"),
        (not any(options.get(name) for name in UNKNOWN_OPTIONS), "Adam has options that are not known here"),
        (hasattr(torch, "_fused_adam_"), f"torch {torch.__version__} has no fused Adam"),
    ):
        if not known:
            raise UnsuitableError(problem)
    layers = policy.mlp_extractor
    return Shape(
        observation=policy.features_dim,
        actor=_widths(layers.policy_net),
        critic=_widths(layers.value_net),
        actions=policy.action_net.out_features,  # type: ignore[arg-type]
        activation=ACTIVATION_NAMES[activation],
    )


def _widths(net: nn.Sequential) -> tuple[int, ...]:
    return tuple(layer.out_features for layer in net if isinstance(layer, nn.Linear))
