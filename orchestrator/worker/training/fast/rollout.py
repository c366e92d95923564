"""Collecting a rollout: each step evaluates the actor alone; values and advantages follow in one
pass at its end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback, ConvertCallback
from stable_baselines3.common.utils import obs_as_tensor

from orchestrator.worker.runtime.sb3_internals import (
    LAST_EPISODE_STARTS,
    LAST_OBS,
    update_info_buffer,
)
from orchestrator.worker.training.fast.loss import LOG_SQRT_2PI
from orchestrator.worker.training.fast.network import Array

if TYPE_CHECKING:
    from orchestrator.worker.training.fast.policy import PolicyNetwork
    from orchestrator.worker.training.fast.ppo import FastPPO


@dataclass(frozen=True, slots=True, kw_only=True)
class _CutOff:
    """The end of an episode that a time limit truncated."""

    step: int
    env: int
    observation: Array
    """Its last one."""


def collect(
    model: FastPPO, env: Any, callback: BaseCallback, rollout_buffer: RolloutBuffer
) -> bool:
    """``OnPolicyAlgorithm.collect_rollouts``: fill the buffer.

    Local variables have the names that Stable-Baselines3 gives them, because callbacks may read
    them.

    :return: False where a callback ended the rollout.
    :raises ValueError: an action is not finite.
    """
    n_rollout_steps = rollout_buffer.buffer_size
    n_envs = env.num_envs
    network = model.network
    rollout_buffer.reset()
    # First, because it may change the policy, the random stream, or the observations.
    callback.on_rollout_start()
    network.load(model.policy)
    x = np.ones((n_rollout_steps + 1, n_envs, network.shape.observation + 1), network.dtype)
    all_actions = _noise(network, n_rollout_steps, n_envs)
    cut_off: list[_CutOff] = []
    space: Any = model.action_space
    low = np.tile(space.low, (n_envs, 1))  # equal shapes are faster
    high = np.tile(space.high, (n_envs, 1))
    watched = _is_watched(callback)
    acting_s = 0.0
    attributes = vars(model)
    count_episodes = update_info_buffer(model)
    last_obs: Any = attributes[LAST_OBS]

    for n_steps, actions in enumerate(all_actions):
        started = perf_counter()
        x[n_steps, :, :-1] = last_obs.reshape(n_envs, -1)
        _act(network, x[n_steps], actions)
        acting_s += perf_counter() - started
        clipped_actions = np.maximum(actions, low)
        np.minimum(clipped_actions, high, out=clipped_actions)

        new_obs, rewards, dones, infos = env.step(clipped_actions)
        model.num_timesteps += n_envs
        if watched:
            obs_tensor = obs_as_tensor(last_obs, model.device)
            values, log_probs = _evaluate_step(network, x[n_steps], actions)
            callback.update_locals({**locals(), "self": model})
            if not callback.on_step():
                return False
        for info in infos:
            if "episode" in info or "is_success" in info:
                count_episodes(infos, dones)
                break
        if np.count_nonzero(dones):
            cut_off += _cut_off(n_steps, infos, dones)
        rollout_buffer.rewards[n_steps] = rewards
        rollout_buffer.episode_starts[n_steps] = attributes[LAST_EPISODE_STARTS]
        last_obs = attributes[LAST_OBS] = new_obs
        attributes[LAST_EPISODE_STARTS] = dones

    x[-1, :, :-1] = last_obs.reshape(n_envs, -1)
    model.seconds["policy_s"] += acting_s
    last_values = _complete(model, rollout_buffer, x, all_actions, cut_off, dones)
    # As Stable-Baselines3 leaves them.
    n_steps = n_rollout_steps
    values = torch.from_numpy(last_values)
    if not watched:
        callback.n_calls += n_rollout_steps
    callback.num_timesteps = model.num_timesteps
    callback.update_locals({**locals(), "self": model})
    callback.on_rollout_end()
    return True


def _is_watched(callback: BaseCallback) -> bool:
    """Whether anything is called at every step."""
    return not (type(callback) is ConvertCallback and callback.callback is None)


@np.errstate(over="ignore")
def _noise(network: PolicyNetwork, steps: int, n_envs: int) -> Array:
    """``(steps, n_envs, actions)`` distances of the actions from the actor's means."""
    noise: Array = torch.randn(steps, n_envs, network.shape.actions).numpy()
    return np.multiply(noise, np.exp(network.log_std), out=noise)


def _act(network: PolicyNetwork, x: Array, actions: Array) -> None:
    """Add the actor's means to the noise in ``actions`` ``(n_envs, actions)``.

    :raises ValueError: an action is not finite.
    """
    np.add(network.passes(len(actions)).act(x), actions, out=actions)
    check_finite(actions)


def check_finite(actions: Array) -> None:
    """Check actions of a step. :raises ValueError: one is not finite."""
    numbers = actions.ravel()
    # The fastest form of isfinite().all().
    if not math.isfinite(numbers.dot(numbers)) and not np.isfinite(numbers).all():
        raise ValueError(f"an action of the policy is not finite: {actions}")


def _evaluate_step(
    network: PolicyNetwork, x: Array, actions: Array
) -> tuple[torch.Tensor, torch.Tensor]:
    """Values ``(n_envs, 1)`` and log-probabilities ``(n_envs,)`` of a step, for callbacks to
    read.
    """
    passes = network.passes(len(actions))
    passes.x[...] = x
    passes.forward()
    log_probs = _log_probs(network, actions[None], passes.mean[None])[0]
    return torch.from_numpy(passes.value.copy()), torch.from_numpy(log_probs)


def _log_probs(network: PolicyNetwork, actions: Array, means: Array) -> Array:
    """Log-probabilities ``(steps, n_envs)`` of ``actions``, which like ``means`` are ``(steps,
    n_envs, actions)``.
    """
    z = (actions - means) * np.exp(-network.log_std)
    log_probs: Array = np.square(z).sum(axis=2) * -0.5 - (
        network.log_std.sum() + z.shape[2] * LOG_SQRT_2PI
    )
    return log_probs


def truncated_episodes(
    infos: Sequence[Mapping[str, Any]], dones: Array
) -> Iterator[tuple[int, Any]]:
    """Indices of environments whose episode was truncated by a time limit, with its last
    observation.
    """
    for index in map(int, dones.nonzero()[0]):
        observation = infos[index].get("terminal_observation")
        if observation is not None and infos[index].get("TimeLimit.truncated", False):
            yield index, observation


def _cut_off(step: int, infos: Sequence[Mapping[str, Any]], dones: Array) -> list[_CutOff]:
    # Copies: an environment may reuse the array before the rollout ends.
    return [
        _CutOff(step=step, env=env, observation=np.array(observation))
        for env, observation in truncated_episodes(infos, dones)
    ]


@np.errstate(over="ignore", invalid="ignore")  # the NaN guard names what is not finite
def _complete(
    model: FastPPO,
    buffer: RolloutBuffer,
    x: Array,
    actions: Array,
    cut_off: Sequence[_CutOff],
    dones: Array,
) -> Array:
    """Fill in values, log-probabilities and advantages of the rollout.

    :param x: ``(steps + 1, n_envs, observation + 1)`` observations, those after the last step
        included, and ones.
    :param cut_off: the critic's discounted value of the last observation is added to the reward of
        that step.
    :return: ``(n_envs,)`` values of the observations after the last step.
    """
    started = perf_counter()
    network = model.network
    means, values = network.evaluate(x)
    if cut_off:
        steps = [end.step for end in cut_off]
        envs = [end.env for end in cut_off]
        last_observations = np.stack([end.observation for end in cut_off])
        last_x = np.ones((len(cut_off), 1, x.shape[2]), x.dtype)
        last_x[:, 0, :-1] = last_observations.reshape(len(cut_off), -1)
        _, bootstraps = network.evaluate(last_x)
        buffer.rewards[steps, envs] += model.gamma * bootstraps[:, 0]
    buffer.log_probs[...] = _log_probs(network, actions, means[:-1])
    buffer.observations[...] = x[:-1, :, :-1].reshape(buffer.observations.shape)
    buffer.actions[...] = actions
    buffer.values[...] = values[:-1]
    evaluated = perf_counter()
    last_values: Array = values[-1]
    _estimate_advantages(buffer, last_values, dones)
    buffer.pos = len(actions)
    buffer.full = True
    model.seconds["policy_s"] += evaluated - started
    model.seconds["gae_s"] += perf_counter() - evaluated
    return last_values


def _estimate_advantages(buffer: RolloutBuffer, last_values: Array, dones: Array) -> None:
    """``RolloutBuffer.compute_returns_and_advantage`` with everything but the recursion done for
    all steps at once.
    """
    next_non_terminal = 1.0 - np.concatenate(
        [buffer.episode_starts[1:], dones[None].astype(np.float32)]
    )
    next_values = np.concatenate([buffer.values[1:], last_values[None]])
    advantages = buffer.rewards + buffer.gamma * next_values * next_non_terminal - buffer.values
    decays = buffer.gamma * buffer.gae_lambda * next_non_terminal
    later = np.zeros_like(last_values)
    for advantage, decay in zip(advantages[::-1], decays[::-1], strict=True):
        np.multiply(decay, later, out=decay)
        later = np.add(advantage, decay, out=advantage)
    buffer.advantages[...] = advantages
    buffer.returns[...] = buffer.advantages + buffer.values
