"""Bounds to which a task clips what it observes: a policy that is exported clips, too."""

from __future__ import annotations

import numpy as np

from orchestrator.worker.mjmodel.structure import Floats
from orchestrator.worker.tasks import input_names
from orchestrator.worker.tasks.base import Task
from orchestrator.worker.tasks.task_options import Range


def limits(size: int, columns: slice, bounds: Range) -> Floats:
    """``(2, size)`` lower and upper bounds of observations, of which ``columns`` alone have any."""
    found = np.array([np.full(size, -np.inf), np.full(size, np.inf)])
    found[:, columns] = np.array(bounds)[:, None]
    return found


def of_task(task: Task) -> Floats | None:
    """``(2, n)`` the bounds of what a policy observes of ``task`` at once; None where nothing is
    clipped, or it is not known.
    """
    observed_by = task.observed_by
    found = of_full_observation(task) if observed_by is None else observed_by.limits
    return None if found is None or np.isinf(found).all() else found


def why_unknown(task: Task) -> str | None:
    """Why nobody knows how what a policy observes of ``task`` is clipped, and how to say it; None
    where it is known.
    """
    maker: object = task
    cure = "say the bounds with observation_limits()"
    if task.observed_by is not None:
        if task.observed_by.limits is not None:
            return None
        maker = task.observed_by
        cure = "let the limit of its terms do it instead"
    elif not input_names.is_overridden(task, "observation_limits"):
        return None
    name = f"{type(maker).__module__}:{type(maker).__qualname__}"
    return f"{name} has an observe() of its own; if that clips, {cure}, or clip what the file gets"


def of_full_observation(task: Task) -> Floats | None:
    """``(2, n)`` the bounds that ``task`` gives of its own observations."""
    is_overridden = input_names.is_overridden(task, "observation_limits")
    return None if is_overridden else task.observation_limits()
