"""The arithmetic written down is that of torch: forward, and gradients of PPO's loss, in float64 to
its rounding."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import example, given, settings
from hypothesis import strategies as st
from stable_baselines3.common.policies import ActorCriticPolicy
from torch import nn
from torch.nn import functional

from orchestrator.worker.ranks.ranks import ALONE
from orchestrator.worker.training.fast import qualify
from orchestrator.worker.training.fast.epochs import Epoch
from orchestrator.worker.training.fast.loss import Minibatch
from orchestrator.worker.training.fast.network import ACTIVATIONS, Array, Layout, Passes, Shape
from orchestrator.worker.training.fast.policy import shape_of
from orchestrator.worker.training.fast.rollout import Rollout

WIDTHS = st.lists(st.integers(1, 9), max_size=3)
ARCHITECTURES = st.one_of(WIDTHS, st.fixed_dictionaries({"pi": WIDTHS, "vf": WIDTHS}))
ACTIVATION_CLASSES = st.sampled_from(list(ACTIVATIONS))


def policy_of(
    net_arch: Any, activation: type[nn.Module], observation: int, actions: int, seed: int
) -> Any:
    torch.manual_seed(seed)
    policy = ActorCriticPolicy(
        spaces.Box(-np.inf, np.inf, (observation,), np.float32),
        spaces.Box(-1, 1, (actions,), np.float32),
        lambda _: 3e-4,
        net_arch=net_arch,
        activation_fn=activation,
    ).double()
    for parameter in policy.parameters():  # biases too, and an actor that does more than whisper
        nn.init.normal_(parameter, std=0.5)
    return policy


def flat_of(policy: Any) -> tuple[Layout, Array]:
    layout = Layout(shape_of(policy))
    vector = np.zeros(layout.size)
    for view, parameter in zip(layout.parameters(vector), policy.parameters(), strict=True):
        assert view.shape == parameter.shape
        view[...] = parameter.detach().numpy()
    return layout, vector


def outputs(policy: Any, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Means and values, without the conversion to float32 that goes before them in the policy."""
    actor, critic = policy.mlp_extractor(observations)
    return policy.action_net(actor), policy.value_net(critic).flatten()


def stock_loss(policy: Any, model: Any, order: Array) -> torch.Tensor:
    """Of one minibatch, as ``PPO.train`` has it."""
    rollout = model.rollout_buffer
    x, actions = (torch.from_numpy(part[order, 0]) for part in (rollout.x, rollout.actions))
    old_log_probs, advantages, returns, old_values = (
        torch.from_numpy(getattr(rollout, name)[order, 0])
        for name in ("log_probs", "advantages", "returns", "values")
    )
    means, values = outputs(policy, x[:, :-1])
    distribution = policy.action_dist.proba_distribution(means, policy.log_std)
    if model.normalize_advantage and len(advantages) > 1:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    ratio = torch.exp(distribution.log_prob(actions) - old_log_probs)
    clipped = torch.clamp(ratio, 1 - model.clip_range, 1 + model.clip_range)
    policy_loss = -torch.min(advantages * ratio, advantages * clipped).mean()
    if model.clip_range_vf is not None:
        change = torch.clamp(values - old_values, -model.clip_range_vf, model.clip_range_vf)
        values = old_values + change
    value_loss = functional.mse_loss(returns, values)
    entropy_loss = -distribution.entropy().mean()
    return policy_loss + model.ent_coef * entropy_loss + model.vf_coef * value_loss


def random_rollout(policy: Any, rows: int, rng: np.random.Generator, spread: float) -> Rollout:
    x = np.ones((rows + 1, 1, policy.features_dim + 1))
    x[:, 0, :-1] = rng.normal(size=(rows + 1, policy.features_dim))
    with torch.no_grad():
        means, values = outputs(policy, torch.from_numpy(x[:-1, 0, :-1]))
        distribution = policy.action_dist.proba_distribution(means, policy.log_std)
        noise = torch.from_numpy(rng.normal(size=means.shape))
        taken = means + distribution.distribution.stddev * noise
        log_probs = distribution.log_prob(taken)
    rollout = Rollout(x, taken.numpy()[:, None])
    rollout.log_probs[:, 0] = log_probs.numpy() + spread * rng.normal(size=rows)
    rollout.values[:, 0] = values.numpy() + spread * rng.normal(size=rows)
    rollout.advantages[:, 0] = rng.normal(size=rows)
    rollout.returns[...] = rollout.values + rollout.advantages
    return rollout


def gradients(policy: Any, model: Any) -> tuple[list[Array], Array]:
    """Of one minibatch with all samples, and their order in it."""
    layout, vector = flat_of(policy)
    ours = np.full(layout.size, np.nan)
    epoch = Epoch(model, model.clip_range)
    epoch.begin()
    (rows,) = epoch.minibatches
    minibatch = Minibatch(layout, vector, ours, len(rows.order))
    minibatch.x[...] = epoch.x[rows.order]
    minibatch.ratios(rows)
    minibatch.differentiate(rows, model, model.clip_range_vf, 1.0)
    return layout.parameters(ours), rows.order


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    net_arch=ARCHITECTURES,
    activation=ACTIVATION_CLASSES,
    observation=st.integers(1, 7),
    actions=st.integers(1, 4),
    rows=st.integers(1, 20),
    clip_range=st.sampled_from([0.05, 0.2, 0.4]),
    clip_range_vf=st.sampled_from([None, 0.1, 1.0]),
    ent_coef=st.sampled_from([0.0, 0.01, 1.0]),
    vf_coef=st.sampled_from([0.0, 0.5, 2.0]),
    normalize_advantage=st.booleans(),
    spread=st.sampled_from([0.0, 0.1, 0.5]),
    seed=st.integers(0, 2**20),
)
@example([], nn.Tanh, 1, 1, 1, 0.2, None, 0.0, 0.5, True, 0.2, 0)
@example({"pi": [], "vf": [3, 2]}, nn.ELU, 3, 2, 2, 0.2, 0.1, 0.01, 0.5, True, 0.2, 0)
@example({"pi": [4, 3, 2], "vf": []}, nn.ReLU, 3, 2, 64, 0.2, 0.1, 0.01, 0.5, True, 0.5, 0)
@example([64, 64], nn.Tanh, 105, 8, 64, 0.2, 0.1, 0.01, 0.5, True, 0.5, 0)
@example([256, 256], nn.ReLU, 17, 6, 64, 0.2, None, 0.0, 0.5, True, 0.5, 0)
def test_gradients_are_those_of_autograd_in_float64(
    net_arch: Any,
    activation: type[nn.Module],
    observation: int,
    actions: int,
    rows: int,
    clip_range: float,
    clip_range_vf: float | None,
    ent_coef: float,
    vf_coef: float,
    normalize_advantage: bool,
    spread: float,
    seed: int,
) -> None:
    policy = policy_of(net_arch, activation, observation, actions, seed)
    model = SimpleNamespace(
        rollout_buffer=random_rollout(policy, rows, np.random.default_rng(seed), spread),
        ranks=ALONE,
        batch_size=rows,
        clip_range=clip_range,
        clip_range_vf=clip_range_vf,
        ent_coef=ent_coef,
        vf_coef=vf_coef,
        normalize_advantage=normalize_advantage,
    )
    ours, order = gradients(policy, model)
    stock_loss(policy, model, order).backward()
    for gradient, (name, parameter) in zip(ours, policy.named_parameters(), strict=True):
        theirs = np.zeros(parameter.shape) if parameter.grad is None else parameter.grad.numpy()
        largest = np.abs(theirs).max()
        assert np.abs(gradient - theirs).max() <= 1e-10 * largest + 1e-14, name


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    net_arch=ARCHITECTURES,
    activation=ACTIVATION_CLASSES,
    observation=st.integers(1, 7),
    actions=st.integers(1, 4),
    rows=st.integers(1, 20),
    seed=st.integers(0, 2**20),
)
def test_actor_and_critic_are_torchs_in_float64(
    net_arch: Any, activation: type[nn.Module], observation: int, actions: int, rows: int, seed: int
) -> None:
    policy = policy_of(net_arch, activation, observation, actions, seed)
    layout, vector = flat_of(policy)
    passes = Passes(layout, vector, np.zeros_like(vector), rows)
    passes.x[:, :-1] = np.random.default_rng(seed).normal(size=(rows, observation))
    with torch.no_grad():
        means, values = outputs(policy, torch.from_numpy(passes.x[:, :-1].copy()))
    passes.forward()
    np.testing.assert_allclose(passes.mean, means, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(passes.value[:, 0], values, rtol=1e-12, atol=1e-12)
    passes.mean[...] = np.nan
    np.testing.assert_allclose(passes.act(passes.x), means, rtol=1e-12, atol=1e-12)


def test_the_shape_of_a_policy_is_read_from_its_layers() -> None:
    policy = policy_of({"pi": [5, 4], "vf": [3]}, nn.ELU, 7, 2, 0)
    assert shape_of(policy) == Shape(
        observation=7, actor=(5, 4), critic=(3,), actions=2, activation=nn.ELU
    )


NUMBERS, MOTORS = spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (2,))


@pytest.mark.parametrize(
    ("observation", "action"),
    [
        (spaces.Discrete(5), MOTORS),
        (spaces.Box(0, 255, (36, 36, 3), np.uint8), MOTORS),
        (NUMBERS, spaces.Discrete(2)),
        (NUMBERS, spaces.Box(-1, 1, (2, 2))),
        (NUMBERS, spaces.Box(-3, 3, (2,), np.int64)),
    ],
)
def test_spaces_that_stable_baselines3_would_encode_are_refused(
    observation: Any, action: Any
) -> None:
    assert qualify.unfit_spaces(NUMBERS, MOTORS) is None
    assert qualify.unfit_spaces(observation, action) is not None
