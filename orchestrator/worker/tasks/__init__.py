"""Tasks by name. A new built-in one is a module here and a row in
``orchestrator/core/task_names.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mujoco

from orchestrator.core import task_names
from orchestrator.core.numbers.changing_numbers import END, TrainingMoment
from orchestrator.core.task_names import AUTO
from orchestrator.worker.mjspec.spec_elements import suggestion
from orchestrator.worker.runtime import failures, user_env
from orchestrator.worker.tasks import observations
from orchestrator.worker.tasks.balance import Balance
from orchestrator.worker.tasks.base import States, Task, load_built_in
from orchestrator.worker.tasks.forward import Forward
from orchestrator.worker.tasks.reach import Reach
from orchestrator.worker.tasks.stand import Stand
from orchestrator.worker.tasks.task_choice import choose
from orchestrator.worker.tasks.task_options import CommonOptions, TaskError, read_options
from orchestrator.worker.tasks.terms import Term
from orchestrator.worker.tasks.track import Track

__all__ = [
    "AUTO",
    "Balance",
    "CommonOptions",
    "Forward",
    "Reach",
    "Stand",
    "States",
    "Task",
    "Term",
    "Track",
    "choose",
    "make_task",
]


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
        observations.attach(task)
        _ = task.observation_terms  # makes and checks them
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None
    except Exception as error:
        text = f"{what}: making it raises {failures.describe(error)}"
        raise TaskError(text, is_certain=False) from error
    return task


def find_task(name: str) -> type[Task]:
    """Return the class named ``"forward"``, ``"gymnasium:Ant-v5"`` or, the user's own,
    ``"package.module:Class"``.

    :raises TaskError: there is no such class, it or its ``Options`` do not derive from those of the
        program, or its module cannot be imported.
    """
    if name in task_names.BUILT_IN:
        return load_built_in(name)
    what = f'task "{name}"'
    if ":" not in name or name.startswith("gymnasium:"):
        hint = suggestion(name, [AUTO, *task_names.BUILT_IN])
        raise TaskError(f'unknown {what}{hint}; write your own as "package.module:Class"')
    try:
        kind: Any = user_env.load(name)
    except (Exception, SystemExit) as error:
        text = f"{what} cannot be imported: {failures.describe(error)}"
        raise TaskError(text) from error
    is_task = isinstance(kind, type) and issubclass(kind, Task)
    if not is_task or "__dataclass_fields__" not in vars(kind.Options):
        raise TaskError(
            f"{what} is not a class derived from orchestrator.worker.tasks.Task, whose Options, if it has any, derive "
            "from those of the class that it is derived from, with @dataclass(frozen=True, kw_only=True) above them"
        )
    return kind  # type: ignore[no-any-return]
