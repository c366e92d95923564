"""Tasks by name. A new built-in one is a module here and a row in
``orchestrator/core/task_names.py``.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import mujoco

from orchestrator.core import task_names
from orchestrator.core.numbers.changing_numbers import END, TrainingMoment
from orchestrator.core.task_names import AUTO
from orchestrator.worker.runtime import failures, user_env
from orchestrator.worker.tasks import observations
from orchestrator.worker.tasks.balance import Balance
from orchestrator.worker.tasks.base import Measure, States, Task, load_built_in
from orchestrator.worker.tasks.forward import Forward
from orchestrator.worker.tasks.reach import Reach
from orchestrator.worker.tasks.stand import Stand
from orchestrator.worker.tasks.task_choice import choose
from orchestrator.worker.tasks.task_options import CommonOptions, TaskError, read_options
from orchestrator.worker.tasks.terms import Term
from orchestrator.worker.tasks.track import Track

__all__ = [
    "AUTO",
    "TASKS",
    "Balance",
    "CommonOptions",
    "Forward",
    "Measure",
    "Reach",
    "Stand",
    "States",
    "Task",
    "Term",
    "Track",
    "choose",
    "make_task",
]


TASKS: Mapping[str, type[Task]] = {
    name: load_built_in(task) for name, task in task_names.TASKS.items()
}
"""The built-in tasks by name."""


def make_task(
    name: str,
    model: mujoco.MjModel,
    options: Mapping[str, Any] | None = None,
    moment: TrainingMoment = END,
) -> Task:
    """Return the task ``name`` for this robot.

    :param moment: when, for options that change over the training.
    :raises TaskError: no such task, an unknown or wrong option, or an error in the user's own task.
    :raises ValueError: the robot does not fit the task.
    """
    if name == AUTO:
        name = choose(model).task
    kind = find_task(name)
    task_options = read_options(name, kind.Options, options or {}, moment)
    what = f'task "{name}"'
    try:
        task = kind(model, task_options)
        if not hasattr(task, "max_episode_steps"):
            raise TaskError("its __init__ does not call super().__init__(model, options)")
        observations.attach(task)
        _ = task.observation_terms  # makes and checks them
    except TaskError as error:
        raise TaskError(f"{what}: {error}", is_certain=error.is_certain) from error
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None
    except Exception as error:
        if name in TASKS:
            raise
        text = f"{what}: making it raises {failures.describe(error)}"
        raise TaskError(text, is_certain=False) from error
    return task


def find_task(name: str) -> type[Task]:
    """Return the class named ``"forward"``, ``"gymnasium:Ant-v5"`` or, the user's own,
    ``"package.module:Class"``.

    :raises TaskError: there is no such class, it does not derive from :class:`Task`, or its module
        cannot be imported.
    """
    rows = {**task_names.TASKS, **task_names.GYMNASIUM_TASKS}
    if name in rows:
        return load_built_in(rows[name])
    what = f'task "{name}"'
    if ":" not in name or name.startswith("gymnasium:"):
        near = difflib.get_close_matches(name, rows, n=1)
        hint = f'did you mean "{near[0]}"? ' if near else ""
        raise TaskError(
            f'unknown {what}; {hint}there is: {AUTO}, {", ".join(rows)}, and your own as "package.module:Class"'
        )
    try:
        kind: Any = user_env.load(name)
    except user_env.EntryPointError as error:
        raise TaskError(f"{what}: {error}") from None
    except (Exception, SystemExit) as error:
        text = f"{what}: importing its module raises {failures.describe(error)}"
        raise TaskError(text) from error
    if not (isinstance(kind, type) and issubclass(kind, Task)):
        raise TaskError(f"{what} is not a class derived from orchestrator.worker.tasks.Task")
    _check_options_class(what, kind)
    return kind


def _check_options_class(what: str, kind: type[Task]) -> None:
    """:raises TaskError: ``Options`` of the user's class lacks those of the built-in class that it
    is derived from, or is no dataclass of its own.
    """
    options: object = kind.Options
    built_in = next(base for base in kind.__mro__ if base.__module__.startswith("orchestrator."))
    needed = built_in.Options  # type: ignore[attr-defined]
    is_derived = isinstance(options, type) and issubclass(options, needed)
    if not is_derived or "__dataclass_fields__" not in vars(options):
        raise TaskError(
            f"{what}: its Options is not a class derived from {needed.__name__} with "
            "@dataclass(frozen=True, kw_only=True) above it"
        )
