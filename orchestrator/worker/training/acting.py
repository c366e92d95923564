"""A policy that acts in a batch of environments step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.worker.training.algorithms import Model


class ActingPolicy:
    """Chooses the policy's most likely actions. A recurrent policy remembers its episodes."""

    def __init__(self, model: Model, n_envs: int) -> None:
        self._model = model
        self._n_envs = n_envs
        self.begin()

    def begin(self) -> None:
        """All environments begin a new episode."""
        self._state: Any = None
        self._begins: NDArray[np.bool_] = np.ones(self._n_envs, bool)

    def act(self, observations: Any) -> NDArray[Any]:
        """Actions ``(n_envs, …)`` for the environments' ``observations``; the environment may take
        them as they are.
        """
        actions, self._state = self._model.predict(
            observations, state=self._state, episode_start=self._begins, deterministic=True
        )
        return actions

    def see_ends(self, dones: NDArray[np.bool_]) -> None:
        """Take notice of the episodes that the latest actions have ended, so that the next begin.

        :param dones: ``(n_envs,)`` whether the environment's episode has ended.
        """
        self._begins = dones
