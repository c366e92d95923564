"""Checks and look-ups that the rollouts of all learners make after an action or a step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def check_finite(actions: NDArray[Any]) -> None:
    """Check the actions of a step. :raises ValueError: one is not finite."""
    numbers = actions.ravel()
    # The fastest form of isfinite().all().
    if not math.isfinite(numbers.dot(numbers)) and not np.isfinite(numbers).all():
        raise ValueError(f"an action of the policy is not finite: {actions}")


def truncated_episodes(
    infos: Sequence[Mapping[str, Any]], dones: NDArray[Any]
) -> Iterator[tuple[int, Any]]:
    """Yield the index of each environment whose episode was cut off by a time limit, with the
    episode's last observation.
    """
    for index in map(int, dones.nonzero()[0]):
        observation = infos[index].get("terminal_observation")
        if observation is not None and infos[index].get("TimeLimit.truncated", False):
            yield index, observation
