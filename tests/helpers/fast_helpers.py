"""Stock PPO and the fast one side by side: with the same weights, in the same environments, from
the same numbers."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.distributions import DiagGaussianDistribution
from stable_baselines3.common.logger import KVWriter, Logger
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.type_aliases import RolloutBufferSamples
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from orchestrator.worker.training.fast.policy import PolicyNetwork
from orchestrator.worker.training.fast.ppo import FastPPO
from orchestrator.worker.training.fast.rollout import Rollout

torch.set_num_threads(1)

SAMPLES = RolloutBufferSamples(
    "observations",  # type: ignore[arg-type]
    "actions",
    "values",
    "log_probs",
    "advantages",
    "returns",
)
"""The arrays of a rollout buffer that an update reads, in the order in which ``get`` gives them."""


class Smooth(gymnasium.Env[Any, Any]):
    """Forgets small differences, so that rounding stays rounding. Episodes end by themselves after
    ``life`` steps."""

    render_mode = None

    def __init__(
        self,
        *,
        observation: tuple[int, ...] = (4,),
        actions: int = 2,
        observation_type: Any = np.float32,
        action_type: Any = np.float32,
        bound: float = 1.0,
        life: int = 10**9,
        seed: int = 0,
    ) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, observation, observation_type)
        self.action_space = spaces.Box(-bound, 2 * bound, (actions,), action_type)
        self.life, self.age = life, 0
        self.rng = np.random.default_rng(seed)
        size = int(np.prod(observation))
        self.steering, self.target = (
            self.rng.normal(size=(actions, size)),
            self.rng.normal(size=actions),
        )
        self.state = np.zeros(size)

    def seen(self) -> np.ndarray:
        space = self.observation_space
        return self.state.reshape(space.shape).astype(space.dtype)

    def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        self.age, self.state = 0, self.rng.normal(size=self.state.shape)
        return self.seen(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action.astype(self.action_space.dtype)), (
            "actions are clipped to the bounds"
        )
        self.age += 1
        fresh = self.rng.normal(size=self.state.shape)
        self.state = 0.5 * np.tanh(self.state) + 0.2 * np.tanh(action @ self.steering) + 0.5 * fresh
        reward = float(np.cos(action @ self.target) + self.state.sum())
        return self.seen(), reward, self.age >= self.life, False, {}


def smooth_envs(
    n_envs: int, *, limit: int | None = None, life: int = 10**9, **options: Any
) -> DummyVecEnv:
    """The i-th one lives ``life + i`` steps; all are cut off after ``limit``."""

    def make(index: int) -> gymnasium.Env[Any, Any]:
        env: gymnasium.Env[Any, Any] = Smooth(**options, life=life + index, seed=index)
        return Monitor(env if limit is None else gymnasium.wrappers.TimeLimit(env, limit))

    return DummyVecEnv([lambda index=index: make(index) for index in range(n_envs)])


class Noted(KVWriter):
    """Keeps what is logged, and whether TensorBoard would see it."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.excluded: dict[str, tuple[str, ...]] = {}

    def write(
        self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0
    ) -> None:
        self.rows.append(dict(key_values))
        self.excluded |= key_excluded

    def close(self) -> None:
        """Nothing is held."""


def make(kind: type[PPO], venv: VecEnv, **options: Any) -> Any:
    """With a logger that writes nowhere, so that ``train`` can be called alone."""
    model = kind(
        "MlpPolicy", venv, **{"n_steps": 8, "batch_size": 8, "device": "cpu", "seed": 1} | options
    )
    model.set_logger(Logger(None, []))
    return model


def loud(model: PPO, seed: int = 0) -> None:
    """Weights with which the policy's actions depend on what it sees, and its values are no
    zeros."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.policy.named_parameters()):
            scale = 0.3 if name == "log_std" else 1 / parameter.shape[-1] ** 0.5
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)


def begin(model: PPO) -> Any:
    """What ``learn`` does before the first rollout. → The callback to collect rollouts with."""
    _, prepared = model._setup_learn(10**9, None)
    model.set_logger(Logger(None, []))
    return prepared


def collect(model: PPO, callback: Any) -> bool:
    return model.collect_rollouts(model.env, callback, model.rollout_buffer, model.n_steps)


def fill(model: PPO, rng: np.random.Generator, *, spread: float = 0.2, scale: float = 1.0) -> None:
    """A rollout of random numbers.

    :param spread: by how much logarithms of probabilities, and values, differ from the policy's.
    :param scale: of advantages.
    """
    shape = model.n_steps, model.n_envs
    space = model.observation_space
    seen = rng.normal(size=(*shape, *space.shape)).astype(np.float32).astype(space.dtype)
    with torch.no_grad():
        observations = torch.from_numpy(seen.reshape(-1, *space.shape)).float()
        distribution = model.policy.get_distribution(observations)
        mean, std = distribution.distribution.mean, distribution.distribution.stddev
        actions = mean + std * torch.from_numpy(rng.normal(size=mean.shape).astype(np.float32))
        log_probs = distribution.log_prob(actions).numpy().reshape(shape)
        values = model.policy.predict_values(observations).numpy().reshape(shape)
    arrays = {
        "observations": seen,
        "actions": actions.numpy().reshape(*shape, -1),
        "log_probs": (log_probs + spread * rng.normal(size=shape)).astype(np.float32),
        "values": (values + spread * rng.normal(size=shape)).astype(np.float32),
        "advantages": (scale * rng.normal(size=shape)).astype(np.float32),
    }
    set_rollout(model, arrays | {"returns": arrays["advantages"] + arrays["values"]})


def set_rollout(model: PPO, arrays: dict[str, np.ndarray], dtype: Any = np.float32) -> None:
    """Give ``model`` a rollout of these arrays."""
    shape = arrays["values"].shape
    if isinstance(model, FastPPO):
        seen = arrays["observations"].reshape(*shape, -1)
        x = np.ones((shape[0] + 1, shape[1], seen.shape[2] + 1), dtype)
        x[:-1, :, :-1] = seen
        model.rollout_buffer = Rollout(x, arrays["actions"].astype(dtype))
        for name in SAMPLES[2:]:
            getattr(model.rollout_buffer, name)[...] = arrays[name]
        return
    buffer = model.rollout_buffer
    buffer.reset()
    for name in SAMPLES:
        before = getattr(buffer, name)
        setattr(buffer, name, arrays[name].reshape(before.shape).astype(before.dtype))
    buffer.pos, buffer.full = buffer.buffer_size, True


def copy_state(source: PPO, target: PPO) -> None:
    """Parameters, state of the optimiser, rollout and counters."""
    target.policy.load_state_dict(source.policy.state_dict())
    target.policy.optimizer.load_state_dict(copy.deepcopy(source.policy.optimizer.state_dict()))
    target._n_updates = source._n_updates
    target._current_progress_remaining = source._current_progress_remaining
    set_rollout(target, rollout_of(source))


def rollout_of(model: PPO) -> dict[str, np.ndarray]:
    return {name: getattr(model.rollout_buffer, name).copy() for name in SAMPLES}


def to_doubles(model: PPO) -> None:
    """Let it compute its next update in float64, from the same numbers."""
    model.policy.double()
    for state in model.policy.optimizer.state.values():
        state |= {name: state[name].double() for name in ("exp_avg", "exp_avg_sq")}
    if isinstance(model, FastPPO):
        set_rollout(model, rollout_of(model), np.float64)
        model.network = PolicyNetwork(model.policy)
        return
    buffer, shared = model.rollout_buffer, model.policy.share_features_extractor
    for name in SAMPLES:
        setattr(buffer, name, getattr(buffer, name).astype(np.float64))

    def samples(indices: np.ndarray) -> RolloutBufferSamples:
        arrays = RolloutBufferSamples(*(getattr(buffer, name)[indices] for name in SAMPLES))
        flat = (array.reshape(len(indices)) for array in arrays[2:])
        return RolloutBufferSamples(*map(torch.from_numpy, (arrays[0], arrays[1], *flat)))

    def features(observations: torch.Tensor, *_: Any) -> Any:
        given = observations.reshape(len(observations), -1)
        return given if shared else (given, given)

    buffer._get_samples = samples  # type: ignore[method-assign]
    model.policy.extract_features = features  # type: ignore[method-assign]


def parameters(model: PPO) -> np.ndarray:
    """All in one vector."""
    return np.concatenate(
        [each.detach().numpy().ravel() for each in model.policy.parameters()]
    ).astype(np.float64)


def moments(model: PPO, name: str) -> np.ndarray:
    """``exp_avg`` or ``exp_avg_sq`` in one vector; zeros where no step was taken."""
    state = model.policy.optimizer.state
    given = [(each, state.get(each)) for each in model.policy.parameters()]
    arrays = [np.zeros(each.numel()) if not of else of[name].numpy().ravel() for each, of in given]
    return np.concatenate(arrays).astype(np.float64)


def steps_taken(model: PPO) -> set[float]:
    return {float(state["step"]) for state in model.policy.optimizer.state.values() if state}


def logged(model: PPO) -> dict[str, Any]:
    return {
        name: value
        for name, value in model.logger.name_to_value.items()
        if name.startswith("train/")
    }


@contextmanager
def drawn_at_once(stock: PPO) -> Iterator[None]:
    """Let ``stock`` draw its noise as the fast learner does: that of a rollout in one go."""
    rows = iter(torch.randn(stock.n_steps, stock.n_envs, stock.action_space.shape[0]))

    def sample(distribution: DiagGaussianDistribution) -> torch.Tensor:
        return distribution.distribution.mean + distribution.distribution.stddev * next(rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DiagGaussianDistribution, "sample", sample)
        yield
