"""How often the belief of the estimate holds the true value of the trial that is estimated best: a
part of ``python -m benchmarks.search``.

Trials are random bodies of the tables, with one seed each, and random points of the functions of
the part ``choices``, with noise of several sizes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks import choices
from benchmarks.bodies import landscape
from benchmarks.bodies.compared_searches import Z, share
from benchmarks.bodies.searches_on_table import HELD, Extent, landscape_of_robot
from benchmarks.harness import Line
from orchestrator.features.search import gaussian_process

TRIALS = (8, 16, 28, 60)
NOISES = (0.2, 0.5, 1.0)
"""Of a value of a function, in its spreads."""
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """What a belief is formed from, and what is true."""

    places: Floats
    values: Floats
    truth: Floats


Make = Callable[[int, int], Trials]
"""Takes the number of the case, and how many trials."""


def beliefs(_repeats: int, extent: Extent) -> list[Line]:
    """:param extent: its searches are the cases of each line."""
    cases = range(extent.searches)
    return [
        _line(f"{what}, {trials} trials", [make(case, trials) for case in cases])
        for what, make in _worlds(extent)
        for trials in TRIALS
    ]


def _worlds(extent: Extent) -> Iterator[tuple[str, Make]]:
    for robot in extent.robots:
        met = landscape.widened(landscape_of_robot(robot))
        yield f"random bodies of the {robot}", functools.partial(of_bodies, met)
    for noise in NOISES:
        what = f"functions of six dimensions, noise {noise:g} of the spread"
        yield what, functools.partial(of_function, noise)


def of_bodies(met: landscape.Landscape, case: int, trials: int) -> Trials:
    """:param met: see :func:`~.landscape.widened`."""
    world = landscape.resampled(met, case)
    chance = np.random.default_rng([4, case])
    bodies = chance.choice(met.bodies, trials, replace=False)
    return Trials(
        places=met.places[bodies],
        values=np.array([world.value(int(body), 0) for body in bodies]),
        truth=world.truth[bodies],
    )


def of_function(noise: float, case: int, trials: int) -> Trials:
    tried = choices.function(case)
    chance = np.random.default_rng([8, case])
    places = chance.random((trials, len(choices.DIMENSIONS)))
    truth = tried.value(places)
    values = truth + noise * tried.spread * chance.standard_normal(trials)
    return Trials(places=places, values=values, truth=truth)


def _line(what: str, cases: Sequence[Trials]) -> Line:
    of_best = []
    of_all = []
    for trials in cases:
        belief = gaussian_process.belief(
            trials.places, [[value] for value in trials.values], trials.places
        )
        is_held = np.abs(trials.truth - belief.means) <= Z * belief.errors
        of_best.append(bool(is_held[belief.means.argmax()]))
        of_all.append(float(is_held.mean()))
    held = share(of_best)
    return Line(
        what=f"{what}: beliefs of 95 % in the best estimated that hold its true value",
        measured=f"{held:.0%} of {len(cases)}; of all trials {np.mean(of_all):.0%}",
        target=f"≥ {HELD:.0%}",
        good=held >= HELD,
        values=[held],
    )
