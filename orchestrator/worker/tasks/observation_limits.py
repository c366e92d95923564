"""Bounds to which a task clips what it observes: a policy that is exported clips, too."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from orchestrator.worker.mjmodel.structure import Floats
from orchestrator.worker.tasks import input_names
from orchestrator.worker.tasks.base import Task
from orchestrator.worker.tasks.task_options import Range


def limits(size: int, columns: slice, bounds: Range) -> Floats:
    """``(2, size)`` lower and upper bounds of observations, of which ``columns`` alone have any."""
    found = np.array([np.full(size, -np.inf), np.full(size, np.inf)])
    found[:, columns] = np.array(bounds)[:, None]
    return found


def of_task(task: Task, size: int) -> NDArray[np.float64] | None:
    """``(2, size)`` the bounds of what a policy observes of ``task`` at once; None where nothing is
    clipped, or it is not known.

    :param size: how many observations there are.
    """
    if task.observed_by is not None:
        found: Floats | None = task.observed_by.limits
    elif input_names.is_overridden(task, "observation_limits"):
        found = None
    else:
        found = task.observation_limits()
    if found is None or found.shape != (2, size) or np.isinf(found).all():
        return None
    return found.astype(np.float64)
