"""What searches on a table of bodies meet: bodies in the unit cube, and what a training of each
gives.

With four seeds a body, the mean of them is not the value of the body: a search that trains all four
would judge by the very numbers that it is judged by. Two ways around that:

- :func:`resampled`: the four trainings of a body *are* all that can come of it, each as probable as
  the others. Every seed of a search is a draw from them, with replacement, so that there may be any
  number of seeds; the true value is the mean of the four, exactly. Their deviations from it are
  widened by √(4/3), so that their variance is the unbiased one of a seed.
- :func:`held_out`: a search draws from two of the seeds, in a random order, and the mean of the
  others is the true value. It has errors, but none that favours any search.

Neither knows the true values of the bodies that were trained: the differences between the means of
four seeds are larger than those between true values (:attr:`Landscape.reliability`), and rougher.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from benchmarks.table_of_bodies import Table
from orchestrator.features.search.declaration.spec import Dimension

MOST_SEEDS = 8
"""Of a body, that one search can train."""
ALIKE = 16
"""Bodies that are nearly as good are taken to be as noisy."""
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Landscape:
    """The bodies of a table that were trained with all seeds."""

    space: tuple[Dimension, ...]
    places: Floats
    """``(bodies, dimensions)``, in the unit cube."""
    rungs: tuple[int, ...]
    """env_steps, rising; the last one is the end of the training."""
    returns: Floats
    """``(bodies, seeds, rungs)``: what trainings are compared by at rungs, returns or a measure of
    their episodes; NaN where no episode had ended."""
    values: Floats
    """``(bodies, seeds)``, at the end."""

    @property
    def bodies(self) -> int:
        return len(self.places)

    @property
    def seeds(self) -> int:
        return int(self.values.shape[1])

    @property
    def env_steps(self) -> int:
        """Of one training to its end."""
        return self.rungs[-1]

    @property
    def means(self) -> Floats:
        """``(bodies,)``: over the seeds."""
        means: Floats = self.values.mean(axis=1)
        return means

    @property
    def noise(self) -> float:
        """Standard deviation of one seed, pooled over the bodies."""
        return float(np.sqrt(self.values.var(axis=1, ddof=1).mean()))

    @property
    def spread(self) -> float:
        """Standard deviation of the means of the bodies."""
        return float(self.means.std(ddof=1))

    @property
    def reliability(self) -> float:
        """The share of the variance between means that is of the bodies, and not of their seeds."""
        return 1.0 - self.noise**2 / self.seeds / self.spread**2

    def at_rung(self, env_steps: int) -> int:
        """The column of ``returns``. :raises ValueError: the table has no such rung."""
        return self.rungs.index(env_steps)

    def point(self, body: int) -> dict[str, float]:
        pairs = zip(self.space, self.places[body], strict=True)
        return {dimension.key: dimension.at(float(unit)) for dimension, unit in pairs}


def of_table(
    table: Table,
    space: Sequence[Dimension],
    measure: str = "eval_mean",
    *,
    rungs_by: str | None = None,
) -> Landscape:
    """Bodies of which a training has failed are left out.

    :param space: the dimensions of the table's job file.
    :param rungs_by: see :meth:`.Table.rung_measure`; only bodies that have it are taken. None:
        returns, of all bodies.
    """
    values = table.measure(measure).astype(np.float64)
    at_rungs = table.returns if rungs_by is None else table.rung_measure(rungs_by)
    is_whole = np.isfinite(values).all(axis=1) & np.isfinite(at_rungs).any(axis=(1, 2))
    columns = [_units(dimension, table.points[:, place]) for place, dimension in enumerate(space)]
    return Landscape(
        space=tuple(space),
        places=np.column_stack(columns)[is_whole],
        rungs=tuple(int(rung) for rung in table.rungs),
        returns=at_rungs[is_whole].astype(np.float64),
        values=values[is_whole],
    )


def _units(dimension: Dimension, values: npt.NDArray[np.float32]) -> list[float]:
    """Where values of a range lie in it; their last digits may be beyond its ends."""
    within = np.clip(values.astype(np.float64), dimension.low, dimension.high)
    return [dimension.unit(float(value)) for value in within]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class World:
    """What one search meets: which trainings of the table its seeds are."""

    landscape: Landscape
    drawn: npt.NDArray[np.int64]
    """``(bodies, seeds)``: of each body, the seeds of the table in the order in which the search
    has them."""
    truth: Floats
    """``(bodies,)``: the true values."""

    @property
    def most_seeds(self) -> int:
        """Of one body."""
        return int(self.drawn.shape[1])

    @property
    def best(self) -> float:
        return float(self.truth.max())

    def value(self, body: int, seed: int) -> float:
        """At the end of a training. :param seed: the number of seeds of this body before it."""
        return float(self.landscape.values[body, self.drawn[body, seed]])

    def mean_return(self, body: int, seed: int, env_steps: int) -> float | None:
        """At a rung; None where no episode had ended."""
        rung = self.landscape.at_rung(env_steps)
        found = float(self.landscape.returns[body, self.drawn[body, seed], rung])
        return found if math.isfinite(found) else None


def resampled(landscape: Landscape, number: int) -> World:
    """The world of search ``number`` where trainings are drawn with replacement.

    :param landscape: see :func:`widened`.
    """
    chance = np.random.default_rng([1, number])
    return World(
        landscape=landscape,
        drawn=chance.integers(0, landscape.seeds, (landscape.bodies, MOST_SEEDS)),
        truth=landscape.means,
    )


def held_out(landscape: Landscape, number: int) -> World:
    """The world of search ``number`` with half of the seeds; the mean of the others is the
    truth.
    """
    chance = np.random.default_rng([2, number])
    order = chance.permuted(np.tile(np.arange(landscape.seeds), (landscape.bodies, 1)), axis=1)
    half = landscape.seeds // 2
    others = np.take_along_axis(landscape.values, order[:, half:], axis=1)
    return World(landscape=landscape, drawn=order[:, :half], truth=others.mean(axis=1))


def fresh_values(landscape: Landscape, number: int, body: int, seeds: int) -> Floats:
    """What further trainings of a body give, after search ``number`` in its resampled world: its
    mean, with the noise of those :data:`ALIKE` bodies whose means are nearest to its own. Four
    values alone are too few for a test of intervals, which expect noise without gaps.

    :param landscape: see :func:`widened`.
    """
    chance = np.random.default_rng([3, number, body])
    means = landscape.means
    alike = np.abs(means - means[body]).argsort(kind="stable")[:ALIKE]
    noise = (landscape.values[alike] - means[alike, None]).ravel()
    values: Floats = means[body] + chance.choice(noise, seeds)
    return values


def widened(landscape: Landscape) -> Landscape:
    """The same with deviations between seeds as large as those of further seeds: trainings drawn
    from so few have a variance that is too small.
    """
    factor = math.sqrt(landscape.seeds / (landscape.seeds - 1))
    return replace(
        landscape,
        returns=_stretched(landscape.returns, factor),
        values=_stretched(landscape.values, factor),
    )


def foretold(landscape: Landscape, known: Floats) -> float:
    """Rank correlation of what one seed of a body has with the value by its other seeds, the mean
    over seeds.

    :param known: ``(bodies, seeds)``; NaN is the worst.
    """
    from scipy.stats import spearmanr

    others = (landscape.values.sum(axis=1, keepdims=True) - landscape.values) / (
        landscape.seeds - 1
    )
    ranked = np.where(np.isfinite(known), known, -np.inf)
    found = [
        spearmanr(ranked[:, seed], others[:, seed]).statistic for seed in range(known.shape[1])
    ]
    return float(np.mean(found))


def _stretched(values: Floats, factor: float) -> Floats:
    """Deviations from the mean over the seeds, axis 1, times ``factor``; NaN stays."""
    known = np.isfinite(values)
    counts = known.sum(axis=1, keepdims=True)
    sums = np.where(known, values, 0.0).sum(axis=1, keepdims=True)
    means = sums / np.maximum(counts, 1)
    stretched: Floats = means + factor * (values - means)
    return stretched
