"""The arithmetic written down is that of torch: forward, and gradients of PPO's loss, in float64 to
its rounding."""

from __future__ import annotations

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
from orchestrator.worker.training.fast.epochs import Epoch, Samples
from orchestrator.worker.training.fast.loss import LossSettings, Minibatch, Rows
from orchestrator.worker.training.fast.network import Array, Layout, Passes, Shape
from orchestrator.worker.training.fast.policy import ACTIVATION_NAMES, shape_of

WIDTHS = st.lists(st.integers(1, 9), max_size=3)
ARCHITECTURES = st.one_of(WIDTHS, st.fixed_dictionaries({"pi": WIDTHS, "vf": WIDTHS}))
ACTIVATION_CLASSES = st.sampled_from(list(ACTIVATION_NAMES))


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
    views = layout.named_views(vector)
    assert views.keys() == dict(policy.named_parameters()).keys()
    for name, parameter in policy.named_parameters():
        views[name][...] = parameter.detach().numpy()
    return layout, vector


def outputs(policy: Any, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Means and values, without the conversion to float32 that goes before them in the policy."""
    actor, critic = policy.mlp_extractor(observations)
    return policy.action_net(actor), policy.value_net(critic).flatten()


def stock_loss(policy: Any, samples: Samples, order: Array, given: LossSettings) -> torch.Tensor:
    """Of one minibatch, as ``PPO.train`` has it."""
    x, actions, old_log_probs, advantages, returns, old_values = (
        torch.from_numpy(each[order]) for each in samples
    )
    means, values = outputs(policy, x[:, :-1])
    distribution = policy.action_dist.proba_distribution(means, policy.log_std)
    if given.normalize_advantage and len(advantages) > 1:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    ratio = torch.exp(distribution.log_prob(actions) - old_log_probs)
    clipped = torch.clamp(ratio, 1 - given.clip_range, 1 + given.clip_range)
    policy_loss = -torch.min(advantages * ratio, advantages * clipped).mean()
    if given.clip_range_vf is not None:
        values = old_values + torch.clamp(
            values - old_values, -given.clip_range_vf, given.clip_range_vf
        )
    value_loss = functional.mse_loss(returns, values)
    entropy_loss = -distribution.entropy().mean()
    return policy_loss + given.ent_coef * entropy_loss + given.vf_coef * value_loss


def random_samples(policy: Any, rows: int, rng: np.random.Generator, spread: float) -> Samples:
    actions = policy.action_net.out_features
    x = np.ones((rows, policy.features_dim + 1))
    x[:, :-1] = rng.normal(size=(rows, policy.features_dim))
    with torch.no_grad():
        means, values = outputs(policy, torch.from_numpy(x[:, :-1]))
        distribution = policy.action_dist.proba_distribution(means, policy.log_std)
        taken = means + distribution.distribution.stddev * torch.from_numpy(
            rng.normal(size=(rows, actions))
        )
        log_probs = distribution.log_prob(taken)
    near = values.numpy() + spread * rng.normal(size=rows)
    advantages = rng.normal(size=rows)
    return Samples(
        x,
        taken.numpy(),
        log_probs.numpy() + spread * rng.normal(size=rows),
        advantages,
        near + advantages,
        near,
    )


def begun(samples: Samples, order: Array, given: LossSettings) -> Rows:
    """The first minibatch."""
    epoch = Epoch(samples, given, ALONE)
    epoch.begin(order)
    return epoch.minibatches[0]


def gradients(
    policy: Any, samples: Samples, order: Array, given: LossSettings
) -> tuple[dict[str, Array], Minibatch]:
    layout, vector = flat_of(policy)
    ours = np.full(layout.size, np.nan)
    minibatch = Minibatch(layout, vector, ours, len(order))
    minibatch.passes.x[...] = samples.x[order]
    rows = begun(samples, order, given)
    minibatch.ratios(rows)
    minibatch.backward(given, 1.0, rows)
    return layout.named_views(ours), minibatch


def settings_of(rows: int, **changes: Any) -> LossSettings:
    return LossSettings(
        **{
            "batch_size": rows,
            "n_epochs": 1,
            "clip_range": 0.2,
            "clip_range_vf": None,
            "normalize_advantage": True,
            "ent_coef": 0.0,
            "vf_coef": 0.5,
            "max_grad_norm": 0.5,
            "target_kl": None,
        }
        | changes
    )


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
    chosen = settings_of(
        rows,
        clip_range=clip_range,
        clip_range_vf=clip_range_vf,
        ent_coef=ent_coef,
        vf_coef=vf_coef,
        normalize_advantage=normalize_advantage,
    )
    policy, rng = (
        policy_of(net_arch, activation, observation, actions, seed),
        np.random.default_rng(seed),
    )
    samples, order = random_samples(policy, rows, rng, spread), rng.permutation(rows)
    ours, _ = gradients(policy, samples, order, chosen)
    stock_loss(policy, samples, order, chosen).backward()
    for name, parameter in policy.named_parameters():
        theirs = np.zeros(parameter.shape) if parameter.grad is None else parameter.grad.numpy()
        largest = np.abs(theirs).max()
        assert np.abs(ours[name] - theirs).max() <= 1e-10 * largest + 1e-14, name


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
        observation=7, actor=(5, 4), critic=(3,), actions=2, activation="elu"
    )


NUMBERS, MOTORS = spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (2,))


@pytest.mark.parametrize(
    ("observation", "action", "why"),
    [
        (spaces.Discrete(5), MOTORS, "its observation space is a Discrete"),
        (spaces.MultiDiscrete([3, 2]), MOTORS, "its observation space is a MultiDiscrete"),
        (spaces.Box(0, 255, (36, 36, 3), np.uint8), MOTORS, "its observations are images"),
        (NUMBERS, spaces.Discrete(2), "its action space is a Discrete"),
        (
            NUMBERS,
            spaces.Box(-1, 1, (2, 2)),
            "its action space is a Box of float32 with the shape (2, 2)",
        ),
        (NUMBERS, spaces.Box(-3, 3, (2,), np.int64), "its action space is a Box of int64"),
    ],
    ids=[
        "discrete",
        "multi-discrete",
        "images",
        "discrete actions",
        "actions in two dimensions",
        "whole numbers",
    ],
)
def test_spaces_that_stable_baselines3_would_encode_are_refused(
    observation: Any, action: Any, why: str
) -> None:
    problem = qualify.unfit_spaces(observation, action)
    assert problem is not None
    assert problem.startswith(why)
