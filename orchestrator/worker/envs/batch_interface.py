"""What a batch of environments takes and gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NotRequired, Required, TypedDict

import numpy as np
from numpy.typing import NDArray

from orchestrator.core.worker_spec import OnDivergence
from orchestrator.worker.mjmodel.structure import Floats


class BatchSettings(TypedDict, total=False):
    """How a batch of environments is made, whatever its robot and task."""

    n_envs: Required[int]
    seed: Required[int | Sequence[int]]
    """The generator of environment i is a function of (seed, i) alone."""
    measuring: bool
    """Whether ended episodes report the task's measures."""
    first_env: int
    """Number of the first environment here: ranks share one numbering, on which seeds depend."""
    on_divergence: OnDivergence
    """Without it, divergence raises too, but the message does not name the key."""
    n_threads: int
    """Threads that step the environments, at most one for each; 1 by default. The bits do not
    depend on it."""
    nominal: bool
    """Whether nothing is drawn, whatever ``randomize`` says: the robot of the file, without
    disturbances."""
    autoreset: bool
    """Whether a new episode starts as soon as one ends; otherwise at :meth:`Simulation.reset`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """An episode that has just ended."""

    env: int
    terminal_observation: NDArray[Any]
    """``(observation_size,)``"""
    total_reward: float
    length: int
    """Length in control steps."""
    truncated: bool
    """Whether the step limit alone ended it."""
    measures: Mapping[str, float]
    """Measures of the task by name; empty unless the simulation is ``measuring``."""
    divergence: str = ""
    """How physics diverged, if that ended it."""
    drawn: Mapping[str, float] = field(default_factory=dict)
    """Properties of the robot that were drawn for it; empty unless the simulation is
    ``measuring``."""


class StepResult(NamedTuple):
    observations: NDArray[Any]
    """``(n_envs, observation_size)`` of the task's own dtype; of the new episode where one has
    ended."""
    rewards: Floats
    """``(n_envs,)``"""
    done: NDArray[np.bool_]
    """``(n_envs,)``"""
    ended: Sequence[Episode]


class EffortState(TypedDict):
    """Sums of the running episodes, ``(n_envs,)`` each."""

    energy_j: Floats
    squared_torques: Floats
    distance_m: Floats


class MeasuredState(TypedDict):
    """What has been measured of the running episodes so far."""

    sums: Floats
    """``(n_envs, n_measures)`` of the task's own measures."""
    effort: EffortState


class SimulationState(TypedDict):
    """Everything that the next steps depend on; checkpoints hold it under these keys."""

    physics: Floats
    """``(n_envs, state)`` rows of MuJoCo's ``mjSTATE_INTEGRATION``."""
    fields: dict[str, NDArray[Any]]
    """Fields of ``MjData`` that the task reads → ``(n_envs, …)``."""
    goals: Floats
    """``(n_envs, goal_size)``"""
    generators: list[Any]
    """The states of the generators of NumPy, one for each environment."""
    episode_lengths: NDArray[np.int64]
    """``(n_envs,)`` control steps of the running episodes."""
    episode_returns: Floats
    """``(n_envs,)`` sums of their rewards so far."""
    history: NotRequired[NDArray[Any]]
    """``(n_envs, steps, size)`` the latest observations; only where several are given together."""
    measured: NotRequired[MeasuredState]
    """Only where episodes are measured."""
