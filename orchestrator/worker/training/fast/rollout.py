"""Collecting a rollout: each step evaluates the actor alone; values and advantages follow in one
pass at its end.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from orchestrator.worker.runtime.env_steps import check_finite, truncated_episodes
from orchestrator.worker.runtime.sb3_internals import (
    LAST_EPISODE_STARTS,
    LAST_OBS,
    update_info_buffer,
)
from orchestrator.worker.training.fast.loss import LOG_SQRT_2PI
from orchestrator.worker.training.fast.network import Array

if TYPE_CHECKING:
    from orchestrator.worker.training.fast.ppo import FastPPO


class Rollout:
    """One rollout: arrays ``(steps, n_envs, …)`` with the names of Stable-Baselines3's buffer.

    :param x: ``(steps + 1, n_envs, observation + 1)``: observations, those after the last step
        included, and a column of ones.
    :param actions: ``(steps, n_envs, actions)``
    """

    def __init__(self, x: Array, actions: Array) -> None:
        self.x = x
        self.observations = x[:-1, :, :-1]
        self.actions = actions
        (
            self.rewards,
            self.episode_starts,
            self.values,
            self.log_probs,
            self.advantages,
            self.returns,
        ) = np.zeros((6, *actions.shape[:2]), x.dtype)


def collect(model: FastPPO, env: Any) -> None:
    """``OnPolicyAlgorithm.collect_rollouts``. No callback is called.

    :raises ValueError: an action is not finite.
    """
    n_envs = env.num_envs
    network = model.network
    network.load(model.policy)
    x = np.ones((model.n_steps + 1, n_envs, network.shape.observation + 1), network.dtype)
    noise = torch.randn(model.n_steps, n_envs, network.shape.actions).numpy()
    with np.errstate(over="ignore"):
        np.multiply(noise, np.exp(network.log_std), out=noise)
    rollout = model.rollout_buffer = Rollout(x, noise)
    cut_off: dict[tuple[int, int], Array] = {}
    """Steps and environments of truncated episodes, and their last observations."""
    space: Any = model.action_space
    low = np.tile(space.low, (n_envs, 1))  # equal shapes are faster
    high = np.tile(space.high, (n_envs, 1))
    acting_s = 0.0
    act = network.minibatch(n_envs).act
    count_episodes = update_info_buffer(model)
    attributes = vars(model)
    observations: Any = attributes[LAST_OBS]

    for step, actions in enumerate(rollout.actions):
        started = perf_counter()
        x[step, :, :-1] = observations.reshape(n_envs, -1)
        np.add(act(x[step]), actions, out=actions)
        check_finite(actions)
        acting_s += perf_counter() - started
        clipped_actions = np.maximum(actions, low)
        np.minimum(clipped_actions, high, out=clipped_actions)
        observations, rewards, dones, infos = env.step(clipped_actions)
        model.num_timesteps += n_envs
        if np.count_nonzero(dones):
            count_episodes(infos, dones)
            for index, last in truncated_episodes(infos, dones):
                cut_off[step, index] = np.array(last)  # an environment may reuse the array
        rollout.rewards[step] = rewards
        rollout.episode_starts[step] = attributes[LAST_EPISODE_STARTS]
        attributes[LAST_OBS] = observations
        attributes[LAST_EPISODE_STARTS] = dones

    x[-1, :, :-1] = observations.reshape(n_envs, -1)
    started = perf_counter()
    with np.errstate(over="ignore", invalid="ignore"):  # the NaN guard names what is not finite
        last_values = _evaluate(model, cut_off)
        evaluated = perf_counter()
        _estimate_advantages(rollout, last_values, dones, model.gamma, model.gae_lambda)
    model.seconds["policy_s"] += acting_s + evaluated - started
    model.seconds["gae_s"] += perf_counter() - evaluated


def _evaluate(model: FastPPO, cut_off: dict[tuple[int, int], Array]) -> Array:
    """Fill in values and log-probabilities, and add to the last reward of truncated episodes what
    they would have given further on. Return ``(n_envs,)`` values of the observations after the last
    step.
    """
    network = model.network
    rollout = model.rollout_buffer
    means, values = network.evaluate(rollout.x)
    z = (rollout.actions - means[:-1]) * np.exp(-network.log_std)
    rollout.log_probs[...] = np.square(z).sum(axis=2) * -0.5 - (
        network.log_std.sum() + z.shape[2] * LOG_SQRT_2PI
    )
    rollout.values[...] = values[:-1]
    if cut_off:
        steps, envs = zip(*cut_off, strict=True)
        x = np.ones((len(cut_off), 1, rollout.x.shape[2]), rollout.x.dtype)
        x[:, 0, :-1] = np.stack(list(cut_off.values())).reshape(len(cut_off), -1)
        _, bootstraps = network.evaluate(x)
        rollout.rewards[steps, envs] += model.gamma * bootstraps[:, 0]
    last_values: Array = values[-1]
    return last_values


def _estimate_advantages(
    rollout: Rollout, last_values: Array, dones: Array, gamma: float, gae_lambda: float
) -> None:
    """``RolloutBuffer.compute_returns_and_advantage`` with everything but the recursion done for
    all steps at once.
    """
    next_non_terminal = 1.0 - np.concatenate(
        [rollout.episode_starts[1:], dones[None].astype(np.float32)]
    )
    next_values = np.concatenate([rollout.values[1:], last_values[None]])
    advantages = rollout.rewards + gamma * next_values * next_non_terminal - rollout.values
    decays = gamma * gae_lambda * next_non_terminal
    later = np.zeros_like(last_values)
    for advantage, decay in zip(advantages[::-1], decays[::-1], strict=True):
        np.multiply(decay, later, out=decay)
        later = np.add(advantage, decay, out=advantage)
    rollout.advantages[...] = advantages
    rollout.returns[...] = advantages + rollout.values
