"""Which sampler, and which choice among its trials, finds a good point although values are noisy: a
part of ``python -m benchmarks.search``.

Searches on functions with six dimensions, whose noise is as large as their spread over random
points: as that of one seed of a body. Each has as many trainings, one after another. What counts is
the true value of the point that is chosen in the end.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.harness import Line
from orchestrator.analysis.statistics import RESAMPLES, quantiles
from orchestrator.features.search import estimates
from orchestrator.features.search.declaration.spec import Dimension, SearchSpec
from orchestrator.features.search.history import Trial
from orchestrator.features.search.searcher import samplers
from orchestrator.features.search.searcher.samplers import TrialOutcome

DIMENSIONS = tuple(Dimension(key=f"d{place}") for place in range(6))
TRAININGS = 60
FUNCTIONS = 30
"""Different ones, a third of them of each kind."""
SAMPLES = 4_000
"""Random points by which the spread of a function is measured, and its best value found."""
SAMPLERS = ("random", "cmaes", "tpe", "gp")
BASELINE = "random, the best seen"
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function of points ``(points, 6)`` in the unit cube."""

    value: Callable[[Floats], Floats]
    spread: float
    """Standard deviation over random points."""
    best: float


def function(number: int) -> Function:
    """Smooth with one peak, the same with waves, or with edges: in turn."""
    chance = np.random.default_rng([7, number])
    peak = chance.random(6)
    weights = 2.0 * chance.random(6)
    waves = chance.normal(size=(6, 3))
    kind = number % 3

    def value(points: Floats) -> Floats:
        away = points - peak
        if kind == 2:
            edges: Floats = -np.abs(away * weights).max(axis=-1)
            return edges
        smooth: Floats = -(away**2 * weights).sum(axis=-1)
        if kind == 1:
            smooth += 0.3 * np.sin(4.0 * points @ waves).sum(axis=-1)
        return smooth

    sampled = value(np.concatenate([chance.random((SAMPLES, 6)), peak[None]]))
    return Function(value=value, spread=float(sampled.std()), best=float(sampled.max()))


def searched(tried: Function, sampler: str, seed: int) -> list[Trial]:
    """The trials of a search."""
    spec = SearchSpec(
        space=DIMENSIONS,
        sampler=sampler,
        seed=seed,
        objectives=("value",),
        directions=("maximize",),
        trials=TRAININGS,
    )
    asked = samplers.make(spec)
    noise = random.Random(seed)
    trials = []
    for number in range(TRAININGS):
        point = asked.ask(number)
        seen = float(tried.value(place_of(point))) + noise.gauss(0.0, tried.spread)
        asked.tell(number, point, TrialOutcome(values=(seen,)))
        trials.append(Trial(number=number, point=point, jobs=(), values=[seen], is_over=True))
    return trials


def place_of(point: Mapping[str, float]) -> Floats:
    return np.array([point[dimension.key] for dimension in DIMENSIONS])


def regrets(number: int, sampler: str) -> dict[str, float]:
    """By how many spreads the chosen point is worse than the best one, by way of choosing."""
    tried = function(number)
    trials = searched(tried, sampler, number)
    of_model = estimates.estimates(DIMENSIONS, trials)
    seen = max(trials, key=_seen)
    estimated = max(trials, key=lambda trial: of_model[trial.number].mean)
    chosen = {"the best seen": seen, "the best estimated": estimated}
    return {
        how: (tried.best - float(tried.value(place_of(trial.point)))) / tried.spread
        for how, trial in chosen.items()
    }


def _seen(trial: Trial) -> float:
    assert trial.values
    return trial.values[0]


def choices(_repeats: int) -> list[Line]:
    """Regret of each sampler and way of choosing, against that of random points of which the best
    seen is taken."""
    found: dict[str, list[float]] = {}
    for sampler in SAMPLERS:
        for number in range(FUNCTIONS):
            for how, regret in regrets(number, sampler).items():
                found.setdefault(f"{sampler}, {how}", []).append(regret)
    return [_line(name, values, found[BASELINE]) for name, values in found.items()]


def _line(name: str, values: Sequence[float], baseline: Sequence[float]) -> Line:
    ratio = statistics.fmean(values) / statistics.fmean(baseline)
    low, high = interval_of_ratio(values, baseline)
    is_baseline = name == BASELINE
    measured = "1" if is_baseline else f"{ratio:.2f} ({low:.2f} – {high:.2f})"
    return Line(
        what=f"{TRAININGS} noisy trainings on {len(values)} functions; {name}: regret / that of {BASELINE}",
        measured=measured,
        target="",
        good=True,
        values=[ratio],
    )


def interval_of_ratio(values: Sequence[float], baseline: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the ratio of means, by a percentile bootstrap over functions."""
    functions = np.random.default_rng(0).integers(0, len(values), (RESAMPLES, len(values)))
    sums = np.array([values, baseline])[:, functions].sum(axis=-1)
    return quantiles(sums[0] / sums[1])
