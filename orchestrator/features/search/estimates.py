"""What the points of a search are worth, estimated from the latest of them by a model.

The value of a trial is a draw: another seed gives another one. So the best value *seen* is mostly
that of a point that had luck. A Gaussian process (:mod:`.gaussian_process`) of the finished trials
takes neighbouring points as evidence for each other, and tells noise from differences between
points.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

from orchestrator.features.search.declaration.spec import Dimension, Direction, SearchSpec
from orchestrator.features.search.history import Trial, is_measured
from orchestrator.features.search.racing import Contender, Shrunken, by_belief

FEWEST = 8
"""Finished trials that a model is fitted to at least."""
MOST = 300
"""Trials that the model is fitted to at most, the latest: the cost grows with the third power of their
number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The value of a point, without the noise of its training."""

    mean: float
    error: float
    """Standard deviation of the model's belief."""


class BeliefFacts(TypedDict):
    mean: float
    error: float | None
    """Standard deviation; None where nothing is known of it."""


def belief_facts(found: Estimate | Shrunken | None) -> BeliefFacts | None:
    """What is believed of a trial, in JSON types."""
    return None if found is None else {"mean": found.mean, "error": found.error}


def shown_estimates(
    search: SearchSpec | None, trials: Iterable[Trial], numbers: Collection[int]
) -> Mapping[int, Estimate]:
    """Of the trials with these numbers, as they are shown beside values; empty also with several
    objectives, and with a race, where the seeds of each trial say what is believed of it.

    :param trials: all that are searched among.
    """
    if search is None or len(search.objectives) > 1 or search.race is not None:
        return {}
    finished = [trial for trial in trials if is_measured(trial)]
    of = [trial for trial in finished if trial.number in numbers]
    return estimates(search.space, finished, of)


def estimates(
    space: Sequence[Dimension], trials: Sequence[Trial], of: Sequence[Trial] | None = None
) -> Mapping[int, Estimate]:
    """The estimated first value of finished trials, by number; empty with fewer than
    :data:`FEWEST`, or where they have begun with different policies.

    :param trials: finished, none of which repeats another.
    :param of: those of them that are estimated; None: all.
    """
    in_order = sorted(trials, key=lambda trial: trial.number)
    fitted = in_order[-MOST:]
    estimated = in_order if of is None else of
    if not (estimated and _are_possible(trials)):
        return {}
    found = _modelled(
        [_place(space, trial) for trial in fitted],
        [_finite(trial.seed_values) for trial in fitted],
        [_place(space, trial) for trial in estimated],
    )
    return {trial.number: one for trial, one in zip(estimated, found, strict=True)}


def contender_estimates(
    space: Sequence[Dimension], contenders: Sequence[Contender], trials: Sequence[Trial]
) -> Mapping[int, Estimate]:
    """What contenders are worth, the larger the better, by the number of the trial; empty as that of
    :func:`estimates`, and with more than :data:`MOST`, of which the model would know only some.

    :param trials: of the search, by number.
    """
    raced = [trials[one.number] for one in contenders]
    if len(raced) > MOST or not _are_possible(raced):
        return {}
    places = [_place(space, trial) for trial in raced]
    found = _modelled(places, [one.values for one in contenders], places)
    return {trial.number: one for trial, one in zip(raced, found, strict=True)}


def _modelled(
    places: Sequence[Sequence[float]],
    values: Sequence[Sequence[float]],
    at: Sequence[Sequence[float]],
) -> list[Estimate]:
    """What noisy values at some places say of others: see :func:`.gaussian_process.belief`."""
    # Late: NumPy takes a while, and most that imports this module estimates nothing.
    import numpy as np
    from threadpoolctl import threadpool_limits

    from orchestrator.features.search import gaussian_process

    # More threads wait for each other where trainings have the cores: 300 trials took 21 s.
    with threadpool_limits(limits=1, user_api="blas"):
        belief = gaussian_process.belief(np.array(places), values, np.array(at))
    return [
        Estimate(mean=float(mean), error=float(error))
        for mean, error in zip(belief.means, belief.errors, strict=True)
    ]


def _finite(values: Sequence[float]) -> list[float]:
    """A seed may have no such value though its trial has one, which is a median."""
    return [value for value in values if math.isfinite(value)]


def ranked_by(
    found: Mapping[int, Estimate], trials: Iterable[Trial], direction: Direction
) -> list[Trial]:
    """Those of ``trials`` that have an estimate, the best first; equal ones stay in their order.

    :param found: by number.
    """
    return by_belief([trial for trial in trials if trial.number in found], found, direction)


def _are_possible(trials: Sequence[Trial]) -> bool:
    """Whether these finished trials have estimates."""
    starts_alike = len({trial.parent for trial in trials}) == 1
    return len(trials) >= FEWEST and starts_alike


def _place(space: Sequence[Dimension], trial: Trial) -> list[float]:
    """A point in the unit cube; each of several choices has an axis of its own."""
    found: list[float] = []
    for dimension in space:
        unit = dimension.unit(trial.point[dimension.key])
        if dimension.choices:
            chosen = int(unit * len(dimension.choices))
            found += [float(place == chosen) for place in range(len(dimension.choices))]
        else:
            found.append(unit)
    return found
