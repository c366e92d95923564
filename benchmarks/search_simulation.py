"""How long a search takes on many cores, and how much of them idles: by simulation, from measured
speeds.

A free core takes the next body at once; with generations it waits until all bodies of its
generation are trained.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence
from typing import NamedTuple

SPEEDS = {"quadruped": 15_005, "Ant-v5": 2_966}
"""env_steps/s of one core with everything included: docs/measurements/machine.md,
2026-11-21."""
START_S = 0.05
"""Of a forked worker, until its first env_step: ``import_s`` in ``exit.json``, measured by hand on
2026-11-21."""
BODIES = 4_000
"""In the search of Gupta et al. (2021), "Embodied intelligence via learning and evolution"."""
ENV_STEPS = 5_000_000
"""Of each of these bodies."""
SPREAD = 8.0
"""Ratio between the most and the least expensive of them, which is assumed here."""


class Outcome(NamedTuple):
    hours: float
    idle: float
    """Share of the cores' time until the last body is trained."""


def seconds_of_bodies(count: int, mean_s: float, spread: float, seed: int) -> list[float]:
    """Times of trainings, whose logarithms are spread evenly, with this mean."""
    chance = random.Random(seed)
    times = [math.exp(chance.uniform(0.0, math.log(spread))) for _ in range(count)]
    return [time * mean_s * count / sum(times) for time in times]


def simulate(times: Sequence[float], cores: int, generation: int | None = None) -> Outcome:
    """Train bodies with these ``times`` (s) in their order.

    :param generation: so many are waited for before the next are begun; None: no waiting.
    """
    free = [0.0] * cores
    for first in range(0, len(times), generation or len(times)):
        free = [max(free)] * cores if first else free
        for seconds in times[first : first + (generation or len(times))]:
            heapq.heappush(free, heapq.heappop(free) + seconds)
    end = max(free)
    return Outcome(end / 3600, 1 - sum(times) / (end * cores))


def makespan_ratio(times: Sequence[float], cores: int, generation: int) -> float:
    """Makespan in generations / without waiting."""
    return simulate(times, cores, generation).hours / simulate(times, cores).hours
