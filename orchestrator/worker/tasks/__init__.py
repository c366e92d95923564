"""Tasks by name. A new built-in one is a file with a subclass of :class:`Task` and a line in ``TASKS``."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import mujoco

from orchestrator.worker import user_env
from orchestrator.worker.tasks.balance import Balance
from orchestrator.worker.tasks.base import Measure, States, Task, read_options
from orchestrator.worker.tasks.forward import Forward

__all__ = ["TASKS", "Measure", "States", "Task", "make_task"]

TASKS: Mapping[str, type[Task]] = {
    "balance": Balance,
    "forward": Forward,
}


def make_task(name: str, model: mujoco.MjModel, options: Mapping[str, Any] | None = None) -> Task:
    """The task ``name`` for this robot.

    :raises ValueError: no such task, an unknown or wrong option, or a robot that does not fit the task.
    """
    kind = find_task(name)
    chosen = read_options(name, kind.Options, options or {})
    try:
        return kind(model, chosen)
    except ValueError as error:
        raise ValueError(f'task "{name}": {error}') from None


def find_task(name: str) -> type[Task]:
    """The class behind ``"forward"``, ``"gymnasium:Ant-v5"`` or the user's own ``"package.module:Class"``.

    :raises ValueError: there is none of this name, or it is no :class:`Task`.
    """
    if name in TASKS:
        return TASKS[name]
    family, colon, _ = name.partition(":")
    if not colon:
        raise ValueError(
            f'unknown task "{name}"; there is: {", ".join(sorted(TASKS))}, "gymnasium:Ant-v5" and its like, '
            'and your own as "package.module:Class"'
        )
    if family == "gymnasium":
        presets = importlib.import_module("orchestrator.worker.tasks.presets")
        return presets.find(name)  # type: ignore[no-any-return]
    try:
        found = user_env.load(name)
    except user_env.EntryPointError as error:
        raise ValueError(f'task "{name}": {error}') from None
    if not (isinstance(found, type) and issubclass(found, Task)):
        wrong = f'task "{name}" is not a class derived from orchestrator.worker.tasks.Task'
        raise ValueError(wrong)  # noqa: TRY004 - what the user named is wrong, not what our caller passed
    return found
