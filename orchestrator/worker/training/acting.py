"""A policy that acts in a batch of environments step by step, as it did in training."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.worker.training import algorithms
from orchestrator.worker.training.algorithms import Model

STEPS_OF_EPISODES = 100_000
"""After how many steps new noise is drawn where a rollout is whole episodes."""


class ActingPolicy:
    """Chooses actions, with the exploration of training or without. A recurrent policy remembers
    its episodes.

    :param deterministic: whether actions are the policy's most likely ones.
    """

    def __init__(self, model: Model, n_envs: int, *, deterministic: bool) -> None:
        self._model = model
        self._n_envs = n_envs
        self._deterministic = deterministic
        self._steps = 0
        self.begin()

    def begin(self) -> None:
        """All environments begin a new episode."""
        self._state: Any = None
        self._begins: NDArray[np.bool_] = np.ones(self._n_envs, bool)

    def act(self, observations: Any) -> NDArray[Any]:
        """Actions ``(n_envs, …)`` for the environments' ``observations``; the environment may take
        them as they are.
        """
        if not self._deterministic:
            explore(self._model, self._steps, self._n_envs)
        self._steps += 1
        actions, self._state = self._model.predict(
            observations,
            state=self._state,
            episode_start=self._begins,
            deterministic=self._deterministic,
        )
        return actions if self._deterministic else algorithms.add_action_noise(self._model, actions)

    def see_ends(self, dones: NDArray[np.bool_]) -> None:
        """Take notice of the episodes that the latest actions have ended, so that the next begin.

        :param dones: ``(n_envs,)`` whether the environment's episode has ended.
        """
        self._begins = dones


def explore(model: Model, elapsed: int, n_envs: int) -> None:
    """Draw the noise of state-dependent exploration (gSDE) as often as in training; once where it
    counts episodes.
    """
    if not model.use_sde:
        return
    every = algorithms.steps_a_rollout(model) or STEPS_OF_EPISODES
    if model.sde_sample_freq > 0:
        every = min(model.sde_sample_freq, every)
    if elapsed % every == 0:
        model.policy.reset_noise(n_envs)  # type: ignore[operator]
