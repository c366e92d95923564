"""Which trial of a search on a table is chosen in the end, and what it is believed to be worth."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.bodies.landscape import Landscape
from benchmarks.bodies.simulated_search import Found, SimulatedTrial
from orchestrator.features.search import estimates
from orchestrator.features.search.history import Trial
from orchestrator.features.search.racing import Contender, shrunken


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A body, and a belief in its true value."""

    body: int
    mean: float
    error: float
    """Standard deviation; NaN where nothing is known of it."""


Choose = Callable[[Landscape, Found], Choice]


def best_seen(_landscape: Landscape, found: Found) -> Choice:
    """The best mean over the seeds that a trial had. Where none came to its end: the best at the
    highest rung."""
    finished = found.finished
    if not finished:
        last = max(found.trials, key=_progress)
        return Choice(body=last.body, mean=math.nan, error=math.nan)
    best = max(finished, key=lambda trial: trial.value)
    return Choice(body=best.body, mean=best.value, error=math.nan)


def best_shrunken(landscape: Landscape, found: Found) -> Choice:
    """The best of these means, each drawn to the mean of all by as much as it is noisy."""
    finished = found.finished
    if not finished:
        return best_seen(landscape, found)
    worth = shrunken([Contender(number=trial.number, values=trial.values) for trial in finished])
    number = max(worth, key=lambda number: worth[number].mean)
    best = worth[number]
    return Choice(body=found.trials[number].body, mean=best.mean, error=best.error)


def best_estimated(landscape: Landscape, found: Found) -> Choice:
    """The best by the model of this program; without enough trials for that the best seen."""
    finished = found.finished
    trials = [
        Trial(
            number=trial.number,
            point=landscape.point(trial.body),
            jobs=(),
            values=[trial.value],
            is_over=True,
        )
        for trial in finished
    ]
    of_model = estimates.estimates(landscape.space, trials) if finished else {}
    if not of_model:
        return best_seen(landscape, found)
    number = max(of_model, key=lambda number: of_model[number].mean)
    best = of_model[number]
    return Choice(body=found.trials[number].body, mean=best.mean, error=best.error)


CHOICES: Mapping[str, Choose] = {
    "the best seen": best_seen,
    "the best shrunken": best_shrunken,
    "the best estimated": best_estimated,
}


def _progress(trial: SimulatedTrial) -> tuple[int, float]:
    last = trial.reached[-1]
    return len(trial.reached), -math.inf if last is None else last
