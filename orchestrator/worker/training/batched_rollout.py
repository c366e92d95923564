"""Rollouts of a torch policy with as little as possible of it a step: the rest in one go at the end.

Stable-Baselines3 asks actor and critic at every step, for a handful of rows, which costs the same whether a rank has
eight environments or two. An action needs the actor alone. What the buffer holds besides, values and log-probabilities,
is the same for the policy does not change meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3 import PPO
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import obs_as_tensor


def collect(
    model: PPO, env: Any, callback: BaseCallback, buffer: RolloutBuffer, n_rollout_steps: int, rows_at_once: int
) -> bool:
    """``OnPolicyAlgorithm.collect_rollouts`` to rounding, for policies without state-dependent exploration.

    The callback sees no local variables.

    :param rows_at_once: of the buffer, that the policy is shown at the end.
    :return: False where the callback ended it.
    :raises ValueError: an action is not finite.
    """
    policy, space = model.policy, model.action_space
    policy.set_training_mode(False)
    buffer.reset()
    callback.on_rollout_start()
    observations: Any = model._last_obs
    dones = model._last_episode_starts
    for step in range(n_rollout_steps):
        with torch.inference_mode():
            tensor = obs_as_tensor(observations, model.device)
            actions: NDArray[Any] = policy.get_distribution(tensor).get_actions().cpu().numpy()
        given = actions
        if isinstance(space, spaces.Box):
            numbers = actions.ravel()
            # The fastest way to say isfinite().all().
            if not math.isfinite(numbers.dot(numbers)) and not np.isfinite(numbers).all():
                raise ValueError(f"an action of the policy is not finite: {actions}")
            if policy.squash_output:
                given = policy.unscale_action(actions)
            else:
                given = np.minimum(np.maximum(actions, space.low), space.high)
        new_observations, rewards, new_dones, infos = env.step(given)
        model.num_timesteps += env.num_envs
        if not callback.on_step():
            return False
        model._update_info_buffer(infos, new_dones)
        if np.count_nonzero(new_dones):
            _add_what_would_have_followed(model, rewards, new_dones, infos)
        _put(buffer.observations, step, observations)
        buffer.actions[step] = actions.reshape(buffer.actions.shape[1:])
        buffer.rewards[step], buffer.episode_starts[step] = rewards, dones
        observations = model._last_obs = new_observations
        dones = model._last_episode_starts = new_dones
    buffer.pos, buffer.full = n_rollout_steps, True
    _judge(model, buffer, rows_at_once)
    with torch.no_grad():
        last_values = policy.predict_values(obs_as_tensor(observations, model.device))
    assert dones is not None
    buffer.compute_returns_and_advantage(last_values=last_values, dones=dones)
    callback.on_rollout_end()
    return True


def _put(rows: Any, step: int, observations: Any) -> None:
    """Into row ``step`` of a buffer's observations: an array, or one of every part."""
    if isinstance(rows, dict):
        for key, part in rows.items():
            _put(part, step, observations[key])
    else:
        rows[step] = observations.reshape(rows.shape[1:])


def _add_what_would_have_followed(
    model: PPO, rewards: NDArray[Any], dones: NDArray[Any], infos: Sequence[Mapping[str, Any]]
) -> None:
    """Where the time limit has cut off an episode: what the critic expects after its last observation."""
    for env in map(int, dones.nonzero()[0]):
        observation = infos[env].get("terminal_observation")
        if observation is not None and infos[env].get("TimeLimit.truncated", False):
            with torch.no_grad():
                value = model.policy.predict_values(model.policy.obs_to_tensor(observation)[0])
            rewards[env] += model.gamma * value.item()


def _judge(model: PPO, buffer: RolloutBuffer, rows_at_once: int) -> None:
    """Values and log-probabilities of everything in ``buffer``."""
    policy, count = model.policy, buffer.pos * buffer.n_envs
    actions = buffer.actions.reshape(count, *buffer.actions.shape[2:])
    values, log_probs = buffer.values.reshape(count), buffer.log_probs.reshape(count)  # views: filled below
    for begin in range(0, count, rows_at_once):
        part = slice(begin, begin + rows_at_once)
        with torch.no_grad():
            observations = _rows(buffer, buffer.observations, count, part)
            taken = buffer.to_torch(actions[part])
            if isinstance(model.action_space, spaces.Discrete):
                taken = taken.long().flatten()
            values[part] = policy.predict_values(observations).flatten().cpu().numpy()
            log_probs[part] = policy.get_distribution(observations).log_prob(taken).cpu().numpy()


def _rows(buffer: RolloutBuffer, arrays: Any, count: int, part: slice) -> Any:
    """Observations as the policy takes them. :param arrays: ``(steps, n_envs, …)``, or one of every part."""
    if isinstance(arrays, dict):
        return {key: _rows(buffer, one, count, part) for key, one in arrays.items()}
    return buffer.to_torch(arrays.reshape(count, *arrays.shape[2:])[part])
