"""What a batch of environments takes and gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Required, TypedDict

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


class SimulationState(TypedDict):
    """Everything that the next steps depend on; checkpoints hold it under these keys."""

    arrays: dict[str, NDArray[Any]]
    """``"physics"``, ``(n_envs, state)`` rows of MuJoCo's ``mjSTATE_INTEGRATION``, and others."""
    generators: list[Any]
    """The states of the generators of NumPy, one for each environment."""
    episode_lengths: NDArray[np.int64]
    """``(n_envs,)`` control steps of the running episodes."""
    sums: dict[str, Floats]
    """``(n_envs,)`` each, what was measured of the running episodes; empty where nothing was."""


def restore_arrays(own: Mapping[str, NDArray[Any]], saved: Mapping[str, NDArray[Any]]) -> None:
    """Copy ``saved`` into ``own``.

    :raises ValueError: names or shapes differ.
    """
    for name in sorted(own.keys() | saved.keys()):
        expected = own[name].shape if name in own else "none"
        found = saved[name].shape if name in saved else "none"
        if found != expected:
            raise ValueError(
                f"the saved state has {name} of shape {found}, expected {expected}: it is of another robot, task or "
                "number of environments"
            )
    for name, array in own.items():
        array[:] = saved[name]
