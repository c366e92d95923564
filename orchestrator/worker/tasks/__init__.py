"""Tasks by name. A new one is a file with a ``load(model, options)`` and a line in ``TASKS``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import mujoco

from orchestrator.worker.tasks import balance, forward
from orchestrator.worker.tasks.base import States, Task

__all__ = ["TASKS", "States", "Task", "make_task"]

TASKS: Mapping[str, Callable[[mujoco.MjModel, Mapping[str, Any]], Task]] = {
    "balance": balance.load,
    "forward": forward.load,
}


def make_task(name: str, model: mujoco.MjModel, options: Mapping[str, Any] | None = None) -> Task:
    """The task ``name`` for this robot.

    :raises ValueError: no such task, an unknown or wrong option, or a robot that does not fit the task.
    """
    if name not in TASKS:
        raise ValueError(f'unknown task "{name}"; there is: {", ".join(sorted(TASKS))}')
    return TASKS[name](model, options or {})
