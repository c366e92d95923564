"""What episodes draw: distributions of a job file, or values of a grid of evaluation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.core.numbers.changing_numbers import TrainingMoment
from orchestrator.core.numbers.distributions import (
    NORMAL_WIDTH,
    Distribution,
    disturbance,
    parse_distribution,
)
from orchestrator.worker.envs.episode_conditions import GridPlaces
from orchestrator.worker.envs.randomization.randomized_fields import (
    GRID_TABLE,
    TABLE,
    RandomizeError,
)
from orchestrator.worker.mjmodel.structure import Floats

if TYPE_CHECKING:
    from orchestrator.worker.envs.simulation import Simulation


class EpisodeDraws:
    """Draws from the streams of a simulation's environments.

    :param randomize: as of the job.
    :param grid: its keys replace those of ``randomize``.
    """

    def __init__(
        self, simulation: Simulation, randomize: Mapping[str, str], grid: GridPlaces | None
    ) -> None:
        self._simulation = simulation
        self._grid = grid
        sources = {
            key: parse_distribution(text)
            for key, text in randomize.items()
            if disturbance(key) is not None
        }
        for axis in grid.grid.axes if grid is not None else ():
            if disturbance(axis.key) is not None:
                sources[axis.key] = axis.range
        self.sources: dict[str, Distribution] = dict(sorted(sources.items()))
        """Key → what is drawn from. At first those of :data:`DISTURBANCES`."""
        self.values: dict[str, NDArray[Any]] = {}
        """Key → ``(n_envs,)`` what the running episodes have drawn."""

    def source(self, key: str, env: int | np.intp) -> Distribution:
        """Return what environment ``env`` draws ``key`` from."""
        of_grid = None if self._grid is None else self._grid.drawn_from(key, int(env))
        return of_grid or self.sources[key]

    def draw(self, key: str, env: int | np.intp) -> float:
        simulation = self._simulation
        return draw(self.source(key, env), simulation.generators[env], simulation.moment)

    def draw_many(self, key: str, env: int | np.intp, count: int) -> Floats:
        """Return ``(count,)`` values of noise."""
        simulation = self._simulation
        rng = simulation.generators[env]
        return draw_many(self.source(key, env), rng, count, simulation.moment)

    def keep(self, key: str, env: int | np.intp, source: str | None = None) -> float:
        """Draw the value that the episode of ``env`` has of ``key``.

        :param source: the key that it is drawn from, if another one.
        """
        value = self.draw(source or key, env)
        self.values[key][env] = value
        return value

    def refusal(self, key: str, reason: str) -> RandomizeError:
        """The error for a key of ``randomize`` or of the grid."""
        is_of_grid = self._grid is not None and self._grid.drawn_from(key, 0) is not None
        return RandomizeError(f"{GRID_TABLE if is_of_grid else TABLE}.{key}: {reason}")


def draw(distribution: Distribution, rng: np.random.Generator, moment: TrainingMoment) -> float:
    """One value drawn from ``rng``, which advances."""
    kind = distribution.kind
    numbers = distribution.numbers(moment)
    if kind == "choice":
        return numbers[int(rng.integers(len(numbers)))]
    if kind == "loguniform":
        low, high = map(math.log, numbers)
        return math.exp(rng.uniform(low, high))
    return float(draw_many(distribution, rng, 1, moment)[0])


def draw_many(
    distribution: Distribution, rng: np.random.Generator, count: int, moment: TrainingMoment
) -> Floats:
    """``(count,)`` values, of a distribution that is neither ``choice`` nor ``loguniform``."""
    first, second = distribution.numbers(moment)
    if distribution.kind == "normal":
        return first + second * rng.standard_normal(count).clip(-NORMAL_WIDTH, NORMAL_WIDTH)
    return first + (second - first) * rng.random(count)
