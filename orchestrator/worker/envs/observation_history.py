"""The latest observations of each environment: ``history`` of ``task_options``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


class ObservationHistory:
    """What a policy is given together: the latest ``steps`` observations of each environment, the
    newest first. When an episode begins, all are its first one.

    :param example: ``(n_envs, size)`` observations.
    """

    def __init__(self, example: NDArray[Any], steps: int) -> None:
        n_envs, size = example.shape
        self.latest = np.zeros((n_envs, steps, size), example.dtype)
        """The newest first."""

    def add(self, newest: NDArray[Any]) -> NDArray[Any]:
        """:param newest: ``(n_envs, size)``
        :return: ``(n_envs, steps · size)``, a new array.
        """
        self.latest[:, 1:] = self.latest[:, :-1]  # NumPy copies where they overlap
        self.latest[:, 0] = newest
        return self.together()

    def begin(self, envs: NDArray[np.intp], first: NDArray[Any]) -> NDArray[Any]:
        """Episodes begin in ``envs``.

        :param first: ``(len(envs), size)``
        :return: ``(len(envs), steps · size)``, a new array.
        """
        self.latest[envs] = first[:, None]
        return self.latest[envs].reshape(len(envs), -1)

    def together(self) -> NDArray[Any]:
        """``(n_envs, steps · size)``, a new array."""
        return self.latest.reshape(len(self.latest), -1).copy()


def names_over_steps(names: Sequence[str], steps: int) -> list[str]:
    """The names of ``steps`` observations that are given together."""
    found = list(names)
    for ago in range(1, steps):
        found += [f"{name} {ago} {'step' if ago == 1 else 'steps'} ago" for name in names]
    return found
