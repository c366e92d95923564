"""Which trial of a search on a table is chosen in the end, and what it is believed to be worth."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.bodies.landscape import Landscape
from benchmarks.bodies.simulated_search import Found
from orchestrator.features.search import estimates
from orchestrator.features.search.declaration.spec import Direction
from orchestrator.features.search.estimates import ranked_by
from orchestrator.features.search.history import Trial
from orchestrator.features.search.racing import contenders, shrunken
from orchestrator.features.search.trials import best

DIRECTION: Direction = "maximize"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A body, and a belief in its true value."""

    body: int
    mean: float
    error: float
    """Standard deviation; NaN where nothing is known of it."""


Choose = Callable[[Landscape, Found], Choice]


def best_seen(_landscape: Landscape, found: Found) -> Choice:
    """That of the command ``best`` where there is no race. Where none came to its end: the best at
    the highest rung."""
    finished = best(found.trials, [DIRECTION])
    if not finished:
        last = max(found.trials, key=_progress)
        return Choice(body=found.body(last), mean=math.nan, error=math.nan)
    first = finished[0]
    assert first.values
    return Choice(body=found.body(first), mean=first.values[0], error=math.nan)


def best_shrunken(landscape: Landscape, found: Found) -> Choice:
    """The best mean over the seeds, each drawn to the mean of all by as much as it is noisy: the
    first that ``best`` shows in a search with a race."""
    worth = shrunken(contenders(found.history.asked, DIRECTION, is_known=_has_ended))
    if not worth:
        return best_seen(landscape, found)
    number = max(worth, key=lambda number: worth[number].mean)
    leader = worth[number]
    body = found.body(found.history.trials[number])
    error = math.nan if leader.error is None else leader.error
    return Choice(body=body, mean=leader.mean, error=error)


def best_estimated(landscape: Landscape, found: Found) -> Choice:
    """That of ``best --by estimate``; without enough trials for that the best seen."""
    finished = best(found.trials, [DIRECTION])
    of_model = estimates.estimates(landscape.space, finished)
    ranked = ranked_by(of_model, finished, DIRECTION)
    if not ranked:
        return best_seen(landscape, found)
    first = of_model[ranked[0].number]
    return Choice(body=found.body(ranked[0]), mean=first.mean, error=first.error)


CHOICES: Mapping[str, Choose] = {
    "the best seen": best_seen,
    "the best shrunken": best_shrunken,
    "the best estimated": best_estimated,
}


def _has_ended(trial: Trial) -> bool:
    return trial.is_over


def _progress(trial: Trial) -> tuple[int, float]:
    last = trial.reached[-1]
    return len(trial.reached), -math.inf if last is None else last
