"""Speed of a changed robot as a multiple of the original's, in short slices that take turns."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.worker.envs.batch_interface import SimulationState
from orchestrator.worker.envs.simulation import Simulation
from orchestrator.worker.mjmodel.structure import Floats

SLICE_S = 0.004
"""CPU seconds of a slice: far more than the clock's resolution, far less than the time between
disturbances."""
MOST_STEPS = 50
"""Control steps of a slice at most, so that its states stay those of the task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedSlice:
    """A state of all environments, and actions from there."""

    state: SimulationState
    actions: Floats
    """``(control steps, n_envs, actions)``"""

    def seconds(self, simulation: Simulation) -> float:
        """CPU seconds that ``simulation`` takes for it.

        :raises PhysicsDiverged: a state is not finite.
        """
        simulation.set_state(self.state)
        begun = time.thread_time()
        for actions in self.actions:
            simulation.step(actions)
        return time.thread_time() - begun


def state_rows(
    states: Sequence[SimulationState], rows: Sequence[tuple[int, int]]
) -> SimulationState:
    """One state of as many environments as there are ``rows``: each names one of ``states`` and an
    environment.
    """

    def rows_of(values: Sequence[NDArray[Any]]) -> NDArray[Any]:
        return np.stack([values[state][env] for state, env in rows])

    found: SimulationState = {
        "physics": rows_of([state["physics"] for state in states]),
        "fields": {
            name: rows_of([state["fields"][name] for state in states])
            for name in states[0]["fields"]
        },
        "goals": rows_of([state["goals"] for state in states]),
        "generators": [states[state]["generators"][env] for state, env in rows],
        "episode_lengths": rows_of([state["episode_lengths"] for state in states]),
        "episode_returns": rows_of([state["episode_returns"] for state in states]),
    }
    if "history" in states[0]:
        found["history"] = rows_of([state["history"] for state in states])
    return found


def steps_of_slice(seconds_per_step: float) -> int:
    """Control steps that take about :data:`SLICE_S`."""
    return max(1, min(MOST_STEPS, math.ceil(SLICE_S / max(seconds_per_step, 1e-9))))


@dataclass(slots=True)
class SpeedComparison:
    """A changed robot beside the original: both take the same slices in turn."""

    original: Simulation
    changed: Simulation
    ratios: list[float] = field(default_factory=list)
    """Speed-up in each slice."""

    def compare(self, piece: SpeedSlice) -> None:
        """Add one more ratio.

        :raises PhysicsDiverged: as :meth:`SpeedSlice.seconds`.
        """
        if len(self.ratios) % 2:
            before = piece.seconds(self.original)
            after = piece.seconds(self.changed)
        else:
            after = piece.seconds(self.changed)
            before = piece.seconds(self.original)
        self.ratios.append(before / max(after, 1e-9))


def random_actions(simulation: Simulation, rng: np.random.Generator, steps: int) -> Floats:
    """``(steps, n_envs, actions)`` uniform within the bounds of the task's actions; ±1 where they
    have none.
    """
    actions = simulation.task.actions
    low = np.nan_to_num(actions.low, posinf=1.0, neginf=-1.0)
    high = np.nan_to_num(actions.high, posinf=1.0, neginf=-1.0)
    return rng.uniform(low, high, (steps, simulation.n_envs, len(low)))
