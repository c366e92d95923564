"""One ``train()`` of the fast learner and one of Stable-Baselines3, from the same rollout, give the
same policy.

In float64 they agree to float64's rounding over all of PPO's options: the arithmetic is the same.
In float32 each of the two rounds in its own way.

Left out: samples whose value misses its target by no more than rounding, and a ``target_kl`` near
float32's resolution.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import fast_helpers as fast
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from stable_baselines3 import PPO
from stable_baselines3.common.utils import LinearSchedule
from torch import nn

from orchestrator.worker.training.fast.ppo import FastPPO
from orchestrator.worker.training.fast.update import NonFiniteGradient

ROUNDING = 1e-5
"""Of an update's size."""
WIDTHS = st.lists(st.sampled_from([1, 3, 8, 16]), max_size=3)

SHAPES = st.fixed_dictionaries(
    {
        "observation": st.sampled_from([(1,), (5,), (2, 3)]),
        "observation_type": st.sampled_from([np.float32, np.float64]),
        "actions": st.integers(1, 4),
        "n_envs": st.integers(1, 3),
    }
)
POLICY_KWARGS = st.fixed_dictionaries(
    {
        "net_arch": WIDTHS | st.fixed_dictionaries({"pi": WIDTHS, "vf": WIDTHS}),
        "activation_fn": st.sampled_from([nn.Tanh, nn.ReLU, nn.ELU]),
        "log_std_init": st.sampled_from([0.0, -1.0, 0.5]),
        "ortho_init": st.booleans(),
        "share_features_extractor": st.booleans(),
    },
    optional={
        "optimizer_kwargs": st.fixed_dictionaries(
            {},
            optional={
                "eps": st.just(1e-4),
                "weight_decay": st.just(0.1),
                "betas": st.just((0.8, 0.95)),
            },
        )
    },
)


def schedules(low: float, high: float) -> st.SearchStrategy[Any]:
    """Numbers, and functions of what remains, between ``low`` and ``high``."""
    numbers = st.floats(np.log10(low), np.log10(high)).map(lambda exponent: 10.0**exponent)
    return numbers | st.builds(LinearSchedule, numbers, numbers, st.sampled_from([0.5, 1.0]))


OPTIONS = st.fixed_dictionaries(
    {
        "n_steps": st.integers(2, 24),
        "batch_size": st.integers(2, 64),
        "n_epochs": st.integers(1, 5),
        "learning_rate": schedules(1e-5, 1e-2),
        "clip_range": schedules(0.05, 0.4),
        "clip_range_vf": st.none() | schedules(0.05, 1.0),
        "ent_coef": st.sampled_from([0.0, 0.01, 0.3]),
        "vf_coef": st.sampled_from([0.0, 0.5, 2.0]),
        "max_grad_norm": st.sampled_from([1e-6, 1e-3, 0.5, 1e6]),
        "normalize_advantage": st.booleans(),
        "target_kl": st.sampled_from([None, 1e-3, 0.01, 0.1]),
    }
)
EVERYTHING = {
    "shape": SHAPES,
    "policy_kwargs": POLICY_KWARGS,
    "options": OPTIONS,
    "spread": st.sampled_from([0.03, 0.1, 0.3]),
    "scale": st.sampled_from([0.1, 1.0, 100.0]),
    "remaining": st.sampled_from([1.0, 0.7, 0.01]),
    "seed": st.integers(0, 2**20),
}
USUAL: dict[str, Any] = {
    "shape": {"observation": (5,), "observation_type": np.float32, "actions": 2, "n_envs": 2},
    "policy_kwargs": {"net_arch": [16, 16], "activation_fn": nn.Tanh},
    "options": {"n_steps": 32, "batch_size": 16, "n_epochs": 4},
    "spread": 0.05,
    "scale": 1.0,
    "remaining": 0.7,
    "seed": 0,
}


def usual(**options: Any) -> dict[str, Any]:
    return USUAL | {"options": USUAL["options"] | options}


def built(kind: type[PPO], given: Mapping[str, Any]) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "You have specified a mini-batch size", UserWarning)
        venv = fast.smooth_envs(**given["shape"])
        model = fast.make(
            kind, venv, policy_kwargs=dict(given["policy_kwargs"]), **given["options"]
        )
    model._current_progress_remaining = given["remaining"]
    return model


def trained(model: PPO, seed: int) -> dict[str, np.ndarray]:
    """What an update does: to the parameters, and what it leaves as Adam's moments."""
    before = fast.parameters(model)
    np.random.seed(seed)
    model.train()
    return {
        "update": fast.parameters(model) - before,
        "exp_avg": fast.moments(model, "exp_avg"),
        "exp_avg_sq": fast.moments(model, "exp_avg_sq"),
    }


def distance(one: np.ndarray, other: np.ndarray) -> float:
    """Of the size of ``other``."""
    return float(
        np.linalg.norm(one - other) / max(np.linalg.norm(other), np.finfo(np.float64).tiny)
    )


def continuations(
    begun: PPO, given: Mapping[str, Any], *, count: int, kinds: Sequence[type[PPO]]
) -> Iterator[Any]:
    """``count`` updates of ``begun``, and before each of them copies of it with the same
    rollout."""
    rng = np.random.default_rng(given["seed"])
    for number in range(count):
        fast.fill(begun, rng, spread=given["spread"], scale=given["scale"])
        copies = [built(kind, given) for kind in kinds]
        for model in copies:
            fast.copy_state(begun, model)
        yield given["seed"] + number, *copies


def assert_same_logs(ours: FastPPO, stocks: PPO, *, to: float) -> None:
    """:param to: relative to the value, or to 1, or to that of which it is a small difference.

    Stable-Baselines3 averages ``clip_fraction`` in float32 whatever the policy's precision.
    """
    mine, theirs = fast.logged(ours), fast.logged(stocks)
    assert list(mine) == list(theirs)
    advantages = float(np.abs(stocks.rollout_buffer.advantages).max())
    sizes = {
        "train/policy_gradient_loss": advantages,
        "train/loss": advantages + stocks.vf_coef * theirs["train/value_loss"],
        "train/explained_variance": abs(1.0 - theirs["train/explained_variance"]),
    }
    for name, value in theirs.items():
        near = (
            max(to, 1e-7) if name == "train/clip_fraction" else to * max(1.0, sizes.get(name, 0.0))
        )
        assert mine[name] == pytest.approx(value, rel=to, abs=near, nan_ok=True), name


@pytest.mark.nightly
@settings(max_examples=20, deadline=None, derandomize=True)
@given(**EVERYTHING)
@example(**usual())
@example(**usual(batch_size=21))  # the last minibatch is a single sample
@example(**usual(batch_size=64))  # the whole buffer
@example(**usual(batch_size=1000))  # and more
@example(**usual(batch_size=1, normalize_advantage=False))
@example(**usual(target_kl=1e-6))  # ended by the first minibatch
@example(**usual(target_kl=0.01, learning_rate=0.01))  # ended on the way
@example(**usual(clip_range_vf=0.05, ent_coef=0.1, max_grad_norm=1e-6))
def test_in_float64_an_update_is_stable_baselines3s_to_float64s_rounding(**given: Any) -> None:
    begun = built(PPO, given)
    for seed, ours, stocks in continuations(begun, given, count=2, kinds=[FastPPO, PPO]):
        fast.to_doubles(ours)
        fast.to_doubles(stocks)
        mine, theirs = trained(ours, seed), trained(stocks, seed)
        for name, array in theirs.items():
            assert distance(mine[name], array) <= 1e-8, name
        assert ours._n_updates == stocks._n_updates
        assert fast.steps_taken(ours) == (fast.steps_taken(stocks) or {0.0})
        assert_same_logs(ours, stocks, to=1e-9)
        trained(begun, seed)


@pytest.mark.parametrize(
    ("shape", "net_arch", "activation_fn"),
    [
        ({"observation": (105,), "actions": 8, "n_envs": 1}, [64, 64], nn.Tanh),
        (
            {"observation": (17,), "actions": 6, "n_envs": 2},
            {"pi": [64, 64], "vf": [128, 64]},
            nn.ReLU,
        ),
        pytest.param(
            {"observation": (11,), "actions": 3, "n_envs": 4},
            [32],
            nn.ELU,
            marks=pytest.mark.nightly,
        ),
    ],
    ids=["ant", "half-cheetah", "hopper"],
)
def test_with_the_usual_hyperparameters_an_update_is_stable_baselines3s_without_exception(
    shape: dict[str, Any], net_arch: Any, activation_fn: type[nn.Module]
) -> None:
    options = {"n_steps": 256 // shape["n_envs"], "batch_size": 64, "n_epochs": 10}
    policy_kwargs = {"net_arch": net_arch, "activation_fn": activation_fn}
    given = usual() | {"shape": shape, "policy_kwargs": policy_kwargs, "options": options}
    begun = built(PPO, given)
    for seed, ours in continuations(begun, given, count=2, kinds=[FastPPO]):
        mine, theirs = trained(ours, seed), trained(begun, seed)
        for name, array in theirs.items():
            assert distance(mine[name], array) <= ROUNDING, name
        assert_same_logs(ours, begun, to=ROUNDING)


def test_each_step_of_the_optimiser_is_told() -> None:
    for options, steps in (({"batch_size": 21}, 4 * 4), ({"target_kl": 1e-6}, 0)):
        model = built(FastPPO, usual(**options))
        told: list[int] = []
        model.each_minibatch = lambda told=told: told.append(1)
        fast.fill(model, np.random.default_rng(0))
        model.train()
        assert len(told) == steps
        assert fast.steps_taken(model) == {float(steps)}


# -- gradients that are no numbers


@pytest.mark.parametrize(
    ("array", "value"),
    [
        ("returns", np.nan),
        ("observations", np.nan),
        ("log_probs", -1e4),  # finite, but the ratio of probabilities overflows
    ],
)
def test_a_gradient_that_is_not_finite_is_noticed_and_leaves_the_policy_as_it_is(
    array: str, value: float
) -> None:
    model = built(FastPPO, usual(normalize_advantage=False, learning_rate=1e-3))
    fast.fill(model, np.random.default_rng(0))
    buffer = model.rollout_buffer
    buffer.advantages[...] = -1.0
    getattr(buffer, array)[5, 1] = value
    before = fast.parameters(model)
    with pytest.raises(NonFiniteGradient):
        model.train()
    np.testing.assert_array_equal(fast.parameters(model), before)


def test_a_gradient_whose_norm_overflows_is_clipped_to_nothing_as_torch_does() -> None:
    begun = built(PPO, usual())
    for seed, ours in continuations(begun, usual(), count=1, kinds=[FastPPO]):
        for model in (ours, begun):
            model.rollout_buffer.returns[...] = 1e25
        mine, theirs = trained(ours, seed), trained(begun, seed)
        assert not np.any(theirs["update"])
        assert not np.any(mine["update"])
        assert np.isinf(fast.logged(ours)["train/value_loss"])
