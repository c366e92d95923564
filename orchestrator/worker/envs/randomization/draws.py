"""Values drawn from the distributions of a job file."""

from __future__ import annotations

import math

import numpy as np

from orchestrator.core.distributions import NORMAL_WIDTH, Distribution
from orchestrator.worker.tasks.actions import Floats


def draw(distribution: Distribution, rng: np.random.Generator, progress: float) -> float:
    """One value drawn from ``rng``, which advances.

    :param progress: the share of the training that is over, from 0 to 1.
    """
    kind, numbers = distribution.kind, distribution.numbers(progress)
    if kind == "choice":
        return numbers[int(rng.integers(len(numbers)))]
    if kind == "loguniform":
        low, high = map(math.log, numbers)
        return math.exp(rng.uniform(low, high))
    return float(draw_many(distribution, rng, 1, progress)[0])


def draw_many(distribution: Distribution, rng: np.random.Generator, count: int, progress: float) -> Floats:
    """``(count,)`` values, of a distribution that is neither ``choice`` nor ``loguniform``."""
    first, second = distribution.numbers(progress)
    if distribution.kind == "normal":
        return first + second * rng.standard_normal(count).clip(-NORMAL_WIDTH, NORMAL_WIDTH)
    return first + (second - first) * rng.random(count)
