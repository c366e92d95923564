"""Values drawn from the distributions of a job file, or those of a grid of evaluation."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from orchestrator.core.numbers.changing_numbers import TrainingMoment
from orchestrator.core.numbers.distributions import (
    NORMAL_WIDTH,
    Distribution,
    check_disturbance,
    read_drawn,
)
from orchestrator.worker.envs.episode_conditions import GridPlaces
from orchestrator.worker.envs.randomization.randomized_fields import (
    GRID_TABLE,
    TABLE,
    RandomizeError,
)
from orchestrator.worker.mjmodel.structure import Floats


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


def of_each(
    key: str, randomize: Mapping[str, str], grid: GridPlaces | None, n_envs: int
) -> list[Distribution]:
    """What each environment draws the disturbance ``key`` from; empty where nothing is drawn.

    :raises RandomizeError: ``randomize`` has no distribution there that fits the key.
    """
    if grid is not None:
        of_grid = [grid.drawn_from(key, env) for env in range(n_envs)]
        of_points = [source for source in of_grid if source is not None]
        if of_points:  # a key of the grid has a value at every point
            return of_points
    if key not in randomize:
        return []
    try:
        # Job files are checked before, but not what a program gives.
        distribution = read_drawn(randomize[key])
        check_disturbance(key, distribution)
    except ValueError as error:
        raise refusal(key, randomize, str(error)) from None
    return [distribution] * n_envs


def refusal(key: str, randomize: Mapping[str, str], reason: str) -> RandomizeError:
    """The error for a key of ``randomize``, or else of the grid of an evaluation."""
    return RandomizeError(f"{TABLE if key in randomize else GRID_TABLE}.{key}: {reason}")
