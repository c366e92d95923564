"""Simulate searches on a table of bodies, and compare samplers by their regret.

A sampler proposes a point of the unit cube; the nearest body of the table that was not tried yet is
"trained": its value is drawn from those of its seeds. The regret of a search is how much worse the
chosen body truly is than the best one of the table. Trainings follow each other, all to their end.

The four trainings of a body are taken to be all that can come of it, each as probable as the
others: a further seed is a draw with replacement, and the true value is their mean. Their deviations
are widened by √(4/3), so that a draw has the unbiased variance of a seed.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from scipy.stats import qmc

from benchmarks.bodies.table import SPACES, Floats, Table

MOST_SEEDS = 16
"""Of a body in one search."""
FINAL_ROUNDS = (1, 1, 2)
"""Further seeds of each finalist; after each round the better half goes on."""
RESAMPLES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Landscape:
    """The bodies of a table of which every seed was trained."""

    places: Floats
    """``(bodies, dimensions)``, in the unit cube."""
    values: Floats
    """``(bodies, seeds)``, widened."""

    @property
    def truth(self) -> Floats:
        mean: Floats = self.values.mean(axis=1)
        return mean


def landscape(robot: str, table: Table, measure: str = "eval_mean") -> Landscape:
    values = table.measure(measure)
    whole = np.isfinite(values).all(axis=1)
    values = values[whole]
    means = values.mean(axis=1, keepdims=True)
    seeds = values.shape[1]
    columns = [
        [limits.unit(float(value)) for value in table.points[whole, column]]
        for column, limits in enumerate(SPACES[robot].values())
    ]
    return Landscape(
        places=np.array(columns).T,
        values=means + math.sqrt(seeds / (seeds - 1)) * (values - means),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A finished training of a new body."""

    place: Floats
    value: float
    attributes: Mapping[str, Any]
    """What the sampler keeps with the trial."""


class Sampler(Protocol):
    def ask(self, trials: Sequence[Trial]) -> tuple[Floats, Mapping[str, Any]]:
        """Return the next point, and what is to be kept with its trial."""


class RandomPoints:
    def __init__(self, dimensions: int, seed: int) -> None:
        self._dimensions = dimensions
        self._chance = np.random.default_rng(seed)

    def ask(self, trials: Sequence[Trial]) -> tuple[Floats, Mapping[str, Any]]:
        return self._chance.random(self._dimensions), {}


class SobolPoints:
    def __init__(self, dimensions: int, seed: int) -> None:
        self._points = qmc.Sobol(dimensions, scramble=True, rng=seed).random_base2(10)

    def ask(self, trials: Sequence[Trial]) -> tuple[Floats, Mapping[str, Any]]:
        return self._points[len(trials)], {}


class OptunaPoints:
    """A sampler of Optuna, asked through a study that is made anew from the trials."""

    def __init__(self, name: str, options: Mapping[str, Any], dimensions: int, seed: int) -> None:
        self._name = name
        self._options = options
        self._keys = [str(dimension) for dimension in range(dimensions)]
        self._seed = seed

    def ask(self, trials: Sequence[Trial]) -> tuple[Floats, Mapping[str, Any]]:
        import optuna

        distributions: dict[str, optuna.distributions.BaseDistribution] = {
            key: optuna.distributions.FloatDistribution(0.0, 1.0) for key in self._keys
        }
        seed = 10_000 * self._seed + len(trials)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # experimental samplers
            sampler = getattr(optuna.samplers, self._name)(seed=seed, **self._options)
            study = optuna.create_study(direction="maximize", sampler=sampler)
            study.add_trials(
                optuna.trial.create_trial(
                    params=dict(zip(self._keys, map(float, trial.place), strict=True)),
                    distributions=distributions,
                    value=trial.value,
                    system_attrs=dict(trial.attributes),
                )
                for trial in trials
            )
            asked = study.ask(distributions)
        point = np.array([asked.params[key] for key in self._keys])
        return point, study.trials[-1].system_attrs


def _optuna(name: str, **options: Any) -> Callable[[int, int], Sampler]:
    return lambda dimensions, seed: OptunaPoints(name, options, dimensions, seed)


SAMPLERS: Mapping[str, Callable[[int, int], Sampler]] = {
    "random": RandomPoints,
    "sobol": SobolPoints,
    "tpe": _optuna("TPESampler", multivariate=True),
    "cmaes": _optuna("CmaEsSampler"),
    "gp": _optuna("GPSampler", deterministic_objective=False),
}
"""Name → makes a sampler from the number of dimensions and a seed."""


@dataclass(slots=True, kw_only=True)
class _World:
    """What one search meets: in each world the seeds of a body have other values."""

    landscape: Landscape
    drawn: Any
    """``(bodies, MOST_SEEDS)``: seeds of the table, in the order in which the search gets them."""

    def value(self, body: int, seed: int) -> float:
        return float(self.landscape.values[body, self.drawn[body, seed]])


def regret(
    land: Landscape, sampler: str, number: int, *, trainings: int, finalists: int = 0
) -> float:
    """Return the regret of search ``number``; all samplers meet the same world at that number.

    :param trainings: of all bodies, with the further seeds of finalists.
    :param finalists: so many of the best get further seeds at the end, by halving.
    """
    bodies, dimensions = land.places.shape
    chance = np.random.default_rng([1, number])
    drawn = chance.integers(0, land.values.shape[1], (bodies, MOST_SEEDS))
    world = _World(landscape=land, drawn=drawn)
    source = SAMPLERS[sampler](dimensions, number)
    free = np.ones(bodies, bool)
    trials: list[Trial] = []
    tried: list[int] = []
    for _ in range(min(bodies, trainings - final_cost(finalists))):
        point, attributes = source.ask(trials)
        distances = ((land.places - point) ** 2).sum(axis=1)
        body = int(np.where(free, distances, np.inf).argmin())
        free[body] = False
        tried.append(body)
        value = world.value(body, 0)
        trials.append(Trial(place=land.places[body], value=value, attributes=attributes))
    chosen = _chosen(world, {b: [t.value] for b, t in zip(tried, trials, strict=True)}, finalists)
    return float(land.truth.max() - land.truth[chosen])


def final_cost(finalists: int) -> int:
    """Return the trainings that the rounds of the final take."""
    return sum(seeds * _in_round(finalists, place) for place, seeds in enumerate(FINAL_ROUNDS))


def _in_round(finalists: int, place: int) -> int:
    return finalists and max(2, finalists >> place)


def _chosen(world: _World, values: dict[int, list[float]], finalists: int) -> int:
    """Return the body with the best mean, after the final if there is one."""

    def mean(body: int) -> float:
        return float(np.mean(values[body]))

    left = sorted(values, key=mean, reverse=True)
    if finalists:
        for place, seeds in enumerate(FINAL_ROUNDS):
            left = left[: _in_round(finalists, place)]
            for body in left:
                before = len(values[body])
                values[body] += [world.value(body, seed) for seed in range(before, before + seeds)]
            left.sort(key=mean, reverse=True)
    return left[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Mean regret, divided by that of random points without a final in the same worlds."""

    middle: float
    low: float
    high: float
    """``low`` and ``high``: a 95 % interval by a bootstrap over searches."""

    def __str__(self) -> str:
        return f"{self.middle:.2f} ({self.low:.2f} – {self.high:.2f})"


def compare(
    land: Landscape, sampler: str, *, searches: int, trainings: int, finalists: int = 0
) -> Ratio:
    numbers = range(searches)
    reference = np.array([regret(land, "random", one, trainings=trainings) for one in numbers])
    regrets = np.array(
        [regret(land, sampler, one, trainings=trainings, finalists=finalists) for one in numbers]
    )
    resampled = np.random.default_rng(0).integers(0, searches, (RESAMPLES, searches))
    ratios = regrets[resampled].mean(axis=1) / reference[resampled].mean(axis=1)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return Ratio(middle=float(regrets.mean() / reference.mean()), low=float(low), high=float(high))
