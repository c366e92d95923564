"""Rollouts of a torch policy that evaluate values and log-probabilities in large batches at their
end.

Stable-Baselines3 evaluates actor and critic at every step for a handful of rows, which costs the
same whether a rank has eight environments or two. An action needs the actor alone. Values and
log-probabilities come out the same afterwards, because the policy does not change during a rollout.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3 import PPO
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.utils import obs_as_tensor

from orchestrator.worker.runtime.env_steps import check_finite, truncated_episodes
from orchestrator.worker.runtime.sb3_internals import (
    LAST_EPISODE_STARTS,
    LAST_OBS,
    unchecked_distributions,
    update_info_buffer,
)


def collect(model: PPO, env: Any, rows_at_once: int) -> None:
    """``OnPolicyAlgorithm.collect_rollouts``, equal to rounding, for policies without
    state-dependent exploration. No callback is called.

    :param rows_at_once: rows of the buffer in one forward pass at the end.
    :raises ValueError: an action is not finite.
    """
    policy = model.policy
    space = model.action_space
    buffer = model.rollout_buffer
    attributes = vars(model)
    count_episodes = update_info_buffer(model)
    policy.set_training_mode(False)
    buffer.reset()
    later = torch.zeros(buffer.n_envs)  # values and log-probabilities
    while not buffer.full:
        observations = attributes[LAST_OBS]
        with torch.inference_mode(), unchecked_distributions():
            tensor = obs_as_tensor(observations, model.device)
            actions: NDArray[Any] = policy.get_distribution(tensor).get_actions().cpu().numpy()
        env_actions = actions
        if isinstance(space, spaces.Box):
            check_finite(actions)
            env_actions = np.minimum(np.maximum(actions, space.low), space.high)
        new_observations, rewards, dones, infos = env.step(env_actions)
        model.num_timesteps += env.num_envs
        count_episodes(infos, dones)
        if np.count_nonzero(dones):
            for index, last in truncated_episodes(infos, dones):
                with torch.no_grad():
                    value = policy.predict_values(policy.obs_to_tensor(last)[0])
                rewards[index] += model.gamma * value.item()
        starts = attributes[LAST_EPISODE_STARTS]
        buffer.add(observations, actions, rewards, starts, later, later)
        attributes[LAST_OBS] = new_observations
        attributes[LAST_EPISODE_STARTS] = dones
    with torch.no_grad(), unchecked_distributions():
        _evaluate(model, buffer, rows_at_once)
        last_values = policy.predict_values(obs_as_tensor(new_observations, model.device))
    buffer.compute_returns_and_advantage(last_values=last_values, dones=dones)


def _evaluate(model: PPO, buffer: RolloutBuffer, rows_at_once: int) -> None:
    """Fill the buffer's values and log-probabilities."""
    policy = model.policy
    count = buffer.pos * buffer.n_envs
    actions = buffer.actions.reshape(count, *buffer.actions.shape[2:])
    values = buffer.values.reshape(count)  # a view, as the next one
    log_probs = buffer.log_probs.reshape(count)
    for begin in range(0, count, rows_at_once):
        part = slice(begin, begin + rows_at_once)
        observations = _rows(buffer, buffer.observations, part)
        taken = buffer.to_torch(actions[part])
        if isinstance(model.action_space, spaces.Discrete):
            taken = taken.long().flatten()
        values[part] = policy.predict_values(observations).flatten().cpu().numpy()
        log_probs[part] = policy.get_distribution(observations).log_prob(taken).cpu().numpy()


def _rows(buffer: RolloutBuffer, arrays: Any, part: slice) -> Any:
    """Rows of a rollout's observations as the policy takes them.

    :param arrays: ``(steps, n_envs, …)``, or one for each key.
    :param part: which of the ``steps × n_envs`` rows.
    """
    if isinstance(arrays, dict):
        return {key: _rows(buffer, array, part) for key, array in arrays.items()}
    return buffer.to_torch(arrays.reshape(-1, *arrays.shape[2:])[part])
