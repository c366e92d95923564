"""Which search finds the best of more bodies than a table has: a part of ``python -m
benchmarks.search``.

The landscapes are made from the tables by models (:mod:`.surrogate`), so that searches may have more
trainings than the tables admit.
"""

from __future__ import annotations

from benchmarks.bodies import surrogate
from benchmarks.bodies.searches_on_table import (
    Extent,
    figure,
    landscape_of_robot,
    of_landscape,
    plain_strategies,
)
from benchmarks.harness import Line

BODIES = 2_048
"""Of a landscape."""


def searches_on_surrogates(_repeats: int, extent: Extent) -> list[Line]:
    lines = []
    for robot in extent.robots:
        met = landscape_of_robot(robot)
        for model in surrogate.MODELS:
            made = surrogate.surrogate(met, BODIES, model)
            name = f"{robot} by {model}"
            explained = figure(
                f"{name}: R² for bodies that the model was not shown (of {met.reliability:.2f})",
                made.explained,
            )
            known = plain_strategies(extent.samplers)
            lines += [explained, *of_landscape(name, made.landscape, extent, known)]
    return lines
