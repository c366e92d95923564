"""Many searches on a table of bodies, by several strategies: what the chosen bodies are truly worth.

Search number n is in the same world for all of them (:mod:`.landscape`), with the same seed of its
sampler. The figures are therefore compared in pairs.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from benchmarks.bodies import choosing, landscape
from benchmarks.bodies.landscape import Landscape, World
from benchmarks.bodies.simulated_search import Strategy, search
from orchestrator.analysis.statistics import RESAMPLES, quantiles, t_quantile
from orchestrator.core.processes.environment_variables import worker_thread_settings

FRESH_SEEDS = 5
"""Of a chosen body, trained beyond the budget."""
Z = 1.96
DRAWS = 10_000
"""Of signs, for a permutation test."""
AT_ONCE = 25
"""Searches that a process makes before it asks for more."""
Floats = npt.NDArray[np.float64]
WorldKind = Literal["resampled", "held out"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptunaSearch:
    """A search by Optuna alone."""

    pruner: Literal["wilcoxon", "hyperband"]
    seeds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The body that one search has chosen, in one of the ways."""

    true_value: float
    best_value: float
    """Of the best body of the table."""
    best_tried: float
    """Of the best body that the search has taken."""
    env_steps: int
    finished: int
    """Trials that were trained to their end."""
    mean: float = math.nan
    error: float = math.nan
    """The belief of the search in the true value."""
    fresh: tuple[float, float] = (math.nan, math.nan)
    """95 % interval by Student's t of the mean of fresh seeds."""

    @property
    def regret(self) -> float:
        return self.best_value - self.true_value

    @property
    def regret_of_tried(self) -> float:
        """What regret would be if the true values of the bodies that were tried were known."""
        return self.best_value - self.best_tried

    @property
    def is_in_belief(self) -> bool:
        return abs(self.true_value - self.mean) <= Z * self.error

    @property
    def is_in_fresh(self) -> bool:
        low, high = self.fresh
        return low <= self.true_value <= high


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Searches of one kind."""

    strategy: Strategy | OptunaSearch
    numbers: Sequence[int]
    budget: int
    """env_steps."""
    ways: Sequence[str]
    """Of choosing: names of :data:`~benchmarks.bodies.choosing.CHOICES`."""
    world: WorldKind = "resampled"
    trials: int | None = None
    """At most so many; None: as many as the budget pays."""


Results = Mapping[str, Sequence[Chosen]]
"""By way of choosing, in the order of the searches."""


@dataclass(slots=True, kw_only=True)
class Comparison:
    """Makes searches on one landscape, in several processes."""

    met: Landscape
    """As the table has it."""
    processes: int = 1
    _pool: ProcessPoolExecutor | None = field(default=None, init=False)

    def __enter__(self) -> Comparison:
        if self.processes > 1:
            os.environ.update(worker_thread_settings(1))
            self._pool = ProcessPoolExecutor(
                self.processes,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_use,
                initargs=(self.met,),
            )
        else:
            _use(self.met)
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def searched(self, task: Task) -> Results:
        parts = [
            replace(task, numbers=task.numbers[start : start + AT_ONCE])
            for start in range(0, len(task.numbers), AT_ONCE)
        ]
        done: Iterable[Results] = (
            map(_searched, parts) if self._pool is None else self._pool.map(_searched, parts)
        )
        together: dict[str, list[Chosen]] = {}
        for part in done:
            for way, chosen in part.items():
                together.setdefault(way, []).extend(chosen)
        return together


_landscapes: dict[WorldKind, Landscape] = {}
"""Of this process."""


def _use(met: Landscape) -> None:
    _landscapes["held out"] = met
    _landscapes["resampled"] = landscape.widened(met)


MAKE_WORLD: Mapping[WorldKind, Callable[[Landscape, int], World]] = {
    "resampled": landscape.resampled,
    "held out": landscape.held_out,
}
OPTUNAS_OWN = "its best trial"


def _searched(task: Task) -> Results:
    together: dict[str, list[Chosen]] = {}
    for number in task.numbers:
        world = MAKE_WORLD[task.world](_landscapes[task.world], number)
        for way, chosen in _one(world, task, number).items():
            together.setdefault(way, []).append(chosen)
    return together


def _one(world: World, task: Task, number: int) -> Mapping[str, Chosen]:
    if isinstance(task.strategy, OptunaSearch):
        return {OPTUNAS_OWN: _by_optuna(world, task.strategy, task.budget, number)}
    found = search(world, task.strategy, budget=task.budget, seed=number, trials=task.trials)
    results = {}
    for way in task.ways:
        choice = choosing.CHOICES[way](world.landscape, found)
        results[way] = Chosen(
            true_value=float(world.truth[choice.body]),
            best_value=world.best,
            best_tried=max(float(world.truth[body]) for body in found.bodies),
            env_steps=found.env_steps,
            finished=len(found.finished),
            mean=choice.mean,
            error=choice.error,
            fresh=_interval(
                landscape.fresh_values(world.landscape, number, choice.body, FRESH_SEEDS)
            ),
        )
    return results


def _by_optuna(world: World, how: OptunaSearch, budget: int, number: int) -> Chosen:
    from benchmarks.bodies import optuna_searches

    if how.pruner == "wilcoxon":
        found = optuna_searches.with_wilcoxon(world, budget=budget, seed=number, seeds=how.seeds)
    else:
        found = optuna_searches.with_hyperband(world, budget=budget, seed=number, seeds=how.seeds)
    return Chosen(
        true_value=float(world.truth[found.body]),
        best_value=world.best,
        best_tried=max(float(world.truth[body]) for body in found.bodies),
        env_steps=found.env_steps,
        finished=found.finished,
    )


def _interval(values: Floats) -> tuple[float, float]:
    middle = float(values.mean())
    error = float(values.std(ddof=1)) / math.sqrt(values.size)
    reach = t_quantile(0.975, values.size - 1) * error
    return middle - reach, middle + reach


# -- figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Of mean regrets, with its 95 % interval by a percentile bootstrap over searches."""

    middle: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.middle:.2f} ({self.low:.2f} – {self.high:.2f})"


def regrets(chosen: Sequence[Chosen]) -> Floats:
    return np.array([one.regret for one in chosen])


def regrets_of_tried(chosen: Sequence[Chosen]) -> Floats:
    return np.array([one.regret_of_tried for one in chosen])


def true_values(chosen: Sequence[Chosen]) -> Floats:
    return np.array([one.true_value for one in chosen])


def ratio_of_means(values: Floats, baseline: Floats) -> Ratio:
    """Searches of the same number stay together; of two unequal numbers of them the first ones
    count."""
    both = min(len(values), len(baseline))
    pairs = np.array([values[:both], baseline[:both]])
    low, high = quantiles(_ratios(pairs))
    return Ratio(middle=float(pairs[0].sum() / pairs[1].sum()), low=low, high=high)


def _ratios(pairs: Floats) -> Floats:
    chance = np.random.default_rng(0)
    ratios = np.empty(RESAMPLES)
    for place in range(RESAMPLES):
        sums = pairs[:, chance.integers(0, pairs.shape[1], pairs.shape[1])].sum(axis=1)
        ratios[place] = sums[0] / sums[1]
    return ratios


def share(flags: Iterable[bool]) -> float:
    return statistics.fmean(map(float, flags))


def p_of_pairs(values: Floats, baseline: Floats) -> float:
    """Two-sided permutation test of paired values: if both strategies were the same, each
    difference had either sign with equal probability."""
    both = min(len(values), len(baseline))
    differences = values[:both] - baseline[:both]
    observed = abs(differences.sum())
    chance = np.random.default_rng(0)
    beyond = 0
    for _ in range(DRAWS // 1_000):
        signs = chance.choice([-1.0, 1.0], (1_000, both))
        beyond += int((np.abs(signs @ differences) >= observed * (1 - 1e-12)).sum())
    return (1 + beyond) / (1 + DRAWS)
