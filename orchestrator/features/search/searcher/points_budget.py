"""Whether a search goes on with new points, by what it has spent. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.features.search.declaration.spec import SearchSpec
from orchestrator.features.search.history import History


def has_all_points(
    search: SearchSpec, history: History, count_env_steps: Callable[[], int]
) -> bool:
    """Whether there will be no further trial: a part of the budget is used up, as far as it is not
    kept for further seeds.

    What these have taken is not counted, so that more points follow where a budget is raised at the
    end. Of the time they have the share that they have of the env_steps.

    :param count_env_steps: of all jobs of the search; that takes a while, and most searches need it
        not.
    """
    if search.trials is not None and len(history.asked) >= search.trials:
        return True
    return _has_spent_env_steps(search, history, count_env_steps) or _has_spent_time(
        search, history, count_env_steps
    )


def _has_spent_env_steps(
    search: SearchSpec, history: History, count_env_steps: Callable[[], int]
) -> bool:
    most = search.max_env_steps
    if most is None:
        return False
    return count_env_steps() - _of_seeds(history) >= search.share_of_points * most


def _has_spent_time(
    search: SearchSpec, history: History, count_env_steps: Callable[[], int]
) -> bool:
    if search.max_time_s is None:
        return False
    of_points_s = history.elapsed_s
    if of_seeds := _of_seeds(history):
        of_points_s *= 1.0 - of_seeds / count_env_steps()
    return of_points_s >= search.share_of_points * search.max_time_s


def _of_seeds(history: History) -> int:
    """env_steps of further seeds that have ended."""
    return sum(one.env_steps for one in history.further)
