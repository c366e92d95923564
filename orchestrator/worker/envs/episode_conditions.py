"""The conditions of episodes: what each has drawn, where its terrain lies, and where environments
are on a grid of evaluation.

It imports no MuJoCo, as environments without a built-in task start faster without.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.core.numbers.distributions import Distribution
from orchestrator.core.numbers.evaluation_grid import EvaluationGrid, GridPoint

DRAWN = "orchestrator.drawn"
"""Key of an environment's info that holds what an episode has drawn; no environment of a user has
it."""


@dataclass(frozen=True, slots=True)
class GridPlaces:
    """Where the environments of a batch are on a grid: as many consecutive ones at each of some
    points.

    Those of each point have the same random streams as those of any other.
    """

    grid: EvaluationGrid
    points: tuple[GridPoint, ...]
    at_each: int
    """Environments at each point."""

    def drawn_from(self, key: str, env: int) -> Distribution | None:
        """What environment ``env`` of the batch draws ``key`` from; None where the grid does not
        have it.
        """
        return self.points[env // self.at_each].drawn_from.get(key)


@dataclass(frozen=True, slots=True, kw_only=True)
class TerrainPlace:
    """Where the terrain of one environment lies in its running episode."""

    geom: int
    """Number of the geom that is the terrain."""
    x_m: float
    """Of this geom's middle, relative to the fixed body that has it."""
    y_m: float
