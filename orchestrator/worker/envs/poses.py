"""The pose of a robot at one moment, to be drawn at once or later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from orchestrator.worker.envs.episode_conditions import TerrainPlace

if TYPE_CHECKING:
    import mujoco

    from orchestrator.worker.envs.simulation import Simulation


@dataclass(frozen=True, slots=True)
class Pose:
    """The state of a robot at one moment."""

    state: NDArray[np.float64]
    """MuJoCo's ``mjSTATE_INTEGRATION``."""
    marker: tuple[float, ...] | None = None
    """x, y and z of its goal in world coordinates, in metres."""
    ground: TerrainPlace | None = None
    """As :meth:`Simulation.ground`."""


def pose_of(simulation: Simulation, env: int) -> Pose:
    """The current pose of one environment of a built-in task."""
    marker = simulation.task.goal_marker(simulation.states.goals[env])
    return Pose(
        state=simulation.physics(env),
        marker=None if marker is None else tuple(marker),
        ground=simulation.ground(env),
    )


def pose_of_data(model: mujoco.MjModel, data: mujoco.MjData) -> Pose:
    """The current pose of ``data``, a copy."""
    import mujoco

    state = np.empty(mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_INTEGRATION))
    mujoco.mj_getState(model, data, state, mujoco.mjtState.mjSTATE_INTEGRATION)
    return Pose(state=state)
