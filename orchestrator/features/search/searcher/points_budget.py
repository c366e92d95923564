"""Whether a search goes on with new points, by what it has spent. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.features.search.declaration.spec import SearchSpec
from orchestrator.features.search.history import History


@dataclass(frozen=True, slots=True, kw_only=True)
class SpentSteps:
    """env_steps of a search so far."""

    all: int
    of_seeds: int
    """Of further seeds, among them."""


def has_all_points(
    search: SearchSpec, history: History, count_steps: Callable[[], SpentSteps]
) -> bool:
    """Whether there will be no further trial: a part of the budget is used up, as far as it is not
    kept for further seeds.

    What these have taken is not counted before all of the budget is used up, so that more points
    follow where it is raised at the end.

    :param count_steps: that takes a while, and many searches need it not.
    """
    if search.trials is not None and len(history.asked) >= search.trials:
        return True
    most_s = search.max_time_s
    if most_s is not None and _is_spent(search, history.elapsed_s, history.points_s, most_s):
        return True
    most = search.max_env_steps
    if most is None:
        return False
    steps = count_steps()
    return _is_spent(search, steps.all, steps.all - steps.of_seeds, most)


def _is_spent(search: SearchSpec, together: float, of_points: float, most: float) -> bool:
    return together >= most or of_points >= search.share_of_points * most
