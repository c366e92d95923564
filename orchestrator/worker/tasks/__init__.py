"""Tasks by name. A new built-in one is a module here and a row in
``orchestrator/core/task_names.py``.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import mujoco

from orchestrator.core import task_names
from orchestrator.core.numbers.changing_numbers import END, TrainingMoment
from orchestrator.core.task_names import AUTO
from orchestrator.worker.tasks import observations, users_class
from orchestrator.worker.tasks.balance import Balance
from orchestrator.worker.tasks.base import Measure, States, Task, load_built_in
from orchestrator.worker.tasks.forward import Forward
from orchestrator.worker.tasks.observations import Observation
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
    "Observation",
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
    """The task ``name`` for this robot.

    :param moment: when, for options that change over the training.
    :raises TaskError: no such task, an unknown or wrong option, or an error in the user's own task.
    :raises ValueError: the robot does not fit the task.
    """
    if name == AUTO:
        name = choose(model).task
    kind = find_task(name)
    task_options = read_options(name, kind.Options, options or {}, moment)
    what = f'task "{name}"'
    is_ours = name in TASKS
    with users_class.errors_told(what, "__init__", is_ours=is_ours):
        task = kind(model, task_options)
    if not hasattr(task, "max_episode_steps"):
        raise TaskError(f"{what}: its __init__ does not call super().__init__(model, options)")
    try:
        observations.attach(task)
    except TaskError as error:
        raise TaskError(f"{what}: {error}", is_certain=error.is_certain) from error
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None
    with users_class.errors_told(what, "make_observation_terms", is_ours=is_ours):
        _ = task.observation_terms  # makes and checks them
    return task


def find_task(name: str) -> type[Task]:
    """The class named ``"forward"``, ``"gymnasium:Ant-v5"`` or, the user's own,
    ``"package.module:Class"``.

    :raises TaskError: there is no such class, it does not derive from :class:`Task`, or its module
        cannot be imported.
    """
    if name in TASKS:
        return TASKS[name]
    family, colon, _ = name.partition(":")
    if not colon:
        raise TaskError(
            f'unknown task "{name}"; there is: {AUTO}, {", ".join(sorted(TASKS))}, "gymnasium:Ant-v5" and others '
            'of gymnasium, and your own as "package.module:Class"'
        )
    if family == "gymnasium":
        gymnasium_tasks = importlib.import_module("orchestrator.worker.tasks.gymnasium_tasks")
        return gymnasium_tasks.find(name)  # type: ignore[no-any-return]
    return _users_task(name)


def _users_task(name: str) -> type[Task]:
    """The class ``"package.module:Class"``.

    :raises TaskError: as :func:`find_task`.
    """
    kind: type[Task] = users_class.load(name, Task, f'task "{name}"')
    _check_options_class(name, kind)
    return kind


def _check_options_class(name: str, kind: type[Task]) -> None:
    """:raises TaskError: ``Options`` of the user's class lacks those of the built-in class that it
    is derived from, or is no dataclass of its own.
    """
    options: object = kind.Options
    built_in: type[Task] = next(
        base for base in kind.__mro__ if base.__module__.startswith("orchestrator.")
    )
    is_derived = isinstance(options, type) and issubclass(options, built_in.Options)
    if is_derived and "__dataclass_fields__" in vars(options):
        return
    needed = f"{built_in.__name__}.Options"
    if built_in is Task:
        needed = "orchestrator.worker.tasks.CommonOptions"
    raise TaskError(
        f'task "{name}": its Options is not a class derived from {needed} with '
        "@dataclass(frozen=True, kw_only=True) above it"
    )
