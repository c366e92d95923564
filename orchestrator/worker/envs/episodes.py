"""What a batch of environments returns: step results, and episodes that have ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from orchestrator.worker.tasks.actions import Floats
from orchestrator.worker.tasks.base import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """An episode that has just ended."""

    env: int
    terminal_observation: NDArray[Any]
    """``(observation_size,)``"""
    total_reward: float
    length: int
    """Control steps."""
    truncated: bool
    """Ended by the step limit alone."""
    measures: Mapping[str, float]
    """What the task measures besides the return; empty unless the simulation is ``measuring``."""


class StepResult(NamedTuple):
    observations: NDArray[Any]
    """``(n_envs, observation_size)`` of the task's own dtype; of the new episode where one has ended."""
    rewards: Floats
    """``(n_envs,)``"""
    done: NDArray[np.bool_]
    """``(n_envs,)``"""
    ended: Sequence[Episode]


class EpisodeMeasures:
    """The task's measures of the running episodes."""

    def __init__(self, task: Task, n_envs: int) -> None:
        self._measures = task.measures
        self._sums = np.zeros((n_envs, len(task.measures)))
        self._latest = np.zeros_like(self._sums)

    def add(self, values: Floats) -> None:
        """:param values: ``(n_envs, len(task.measures))``"""
        self._sums += values
        self._latest[:] = values

    def clear(self, envs: NDArray[np.intp]) -> None:
        self._sums[envs] = 0.0

    def result(self, env: int, length: int) -> dict[str, float]:
        by = {"sum": self._sums[env], "mean": self._sums[env] / length, "last": self._latest[env]}
        return {measure.name: float(by[measure.over_episode][i]) for i, measure in enumerate(self._measures)}
