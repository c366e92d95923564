"""Check that a task fulfils the contract of :class:`Task`: once, when a simulation is made, not in
every step.

A violation, most likely in a user's own task, is one message with the method, its result and what
was expected.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from orchestrator.core.text import joined
from orchestrator.worker.mjmodel.structure import Floats, Numbers
from orchestrator.worker.runtime import failures
from orchestrator.worker.tasks.base import States, Task
from orchestrator.worker.tasks.task_options import TaskError

ROWS = 3
"""Environments in the check: more than one, to tell a single result from one for each
environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeStart:
    """What a task draws when an episode starts."""

    qpos: Floats
    """``(nq,)``"""
    qvel: Floats
    """``(nv,)``"""
    goal: Floats
    """``(goal_size,)``"""


def first_state(task: Task, rng: np.random.Generator) -> EpisodeStart:
    """Draw the start of an episode.

    :raises TaskError: the result of ``initial_state``, ``sample_goal`` or ``push`` violates the
        contract.
    """
    model = task.model
    qpos, qvel = _pair(task, "initial_state", lambda: task.initial_state(rng))
    _check(task, "initial_state", qpos, (model.nq,))
    _check(task, "initial_state", qvel, (model.nv,))
    goal = _call(task, "sample_goal", lambda: task.sample_goal(rng))
    _check(task, "sample_goal", goal, (task.goal_size,))
    if task.push_period is not None:
        _check(task, "push", _call(task, "push", lambda: task.push(rng)), (model.nv,))
    return EpisodeStart(qpos=qpos, qvel=qvel, goal=goal)


def repeated_first(states: States) -> States:
    """Return the first environment of ``states``, :data:`ROWS` times."""
    return States(
        _repeated_first_row(states.qpos),
        _repeated_first_row(states.qvel),
        _repeated_first_row(states.goals),
        {name: _repeated_first_row(field) for name, field in states.fields.items()},
    )


def _repeated_first_row(values: Numbers) -> Numbers:
    return np.repeat(values[:1], ROWS, axis=0)


def check_step(task: Task, trial: States) -> None:
    """Check what ``task`` computes in a control step, and what is shown of it.

    :param trial: of :data:`ROWS` environments.
    :raises TaskError: a method of ``task`` raises, or its result violates the contract.
    """
    action = task.actions.taken(np.zeros((ROWS, len(task.actions.low))))
    ctrl = _call(task, "actions.ctrl", lambda: task.actions.ctrl(action))
    _check(task, "actions.ctrl", ctrl, (ROWS, task.model.nu))
    rewards, terminated = _pair(
        task, "reward_and_terminated", lambda: task.reward_and_terminated(trial, action, trial)
    )
    _check(task, "reward_and_terminated", rewards, (ROWS,))
    _check(task, "reward_and_terminated", terminated, (ROWS,), kind="b")
    measured = _call(task, "measure", lambda: task.measure(trial, action, trial))
    _check(task, "measure", measured, (ROWS, len(task.measures)))
    moved = _call(task, "distance_travelled", lambda: task.distance_travelled(trial, trial))
    if moved is not None:
        _check(task, "distance_travelled", moved, (ROWS,))
    _call(task, "violations", lambda: task.violations(trial))
    _call(task, "goal_marker", lambda: task.goal_marker(trial.goals[0]))


def first_observation(task: Task, states: States) -> Numbers:
    """``(ROWS, …)`` the task's own observations.

    :param states: of :data:`ROWS` environments.
    :raises TaskError: ``observe`` or a term of which it consists raises, or its result violates the
        contract.
    """
    _check_terms(task, states)
    array = _call(task, "observe", lambda: task.observe(states))
    size = array.shape[-1] if isinstance(array, np.ndarray) and array.ndim == 2 else "n"
    _check(task, "observe", array, (ROWS, size))
    if array.dtype not in (np.float32, np.float64) or not size:
        raise _wrong(task, "observe", _describe(array), "float32 or float64, at least one column")
    inputs = (states.qpos, states.qvel, states.goals, *states.fields.values())
    if any(np.shares_memory(array, own) for own in inputs):
        raise _wrong(task, "observe", "a view of the states", "a new array (.copy() makes one)")
    return array  # type: ignore[no-any-return]


def _check_terms(task: Task, states: States) -> None:
    """:raises TaskError: a term raises, or its values violate the contract."""
    for term in task.observation_terms.all:
        name = f"the term {joined(term.names)}"
        values = _call(task, name, functools.partial(term.values, states))
        _check(task, name, values, (ROWS, len(term.names)))


def _call(task: Task, method: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:  # the user's code may raise anything
        text = f"{_class_name(task)}: {method} raises {failures.describe(error)}"
        raise TaskError(text, is_certain=False) from error


def _pair(task: Task, method: str, call: Callable[[], Any]) -> tuple[Any, Any]:
    """Return the two results of a method."""
    result = _call(task, method, call)
    if not isinstance(result, tuple) or len(result) != 2:
        raise _wrong(task, method, _describe(result), "a tuple of two arrays")
    return result


def _check(task: Task, method: str, value: Any, shape: tuple[Any, ...], kind: str = "f") -> None:
    """:raises TaskError: ``value`` is no array of this shape and kind, or not finite."""
    numbers = "booleans" if kind == "b" else "finite floating-point numbers"
    expected = f"{numbers} of shape ({', '.join(map(str, shape))}{',' * (len(shape) == 1)})"
    if not isinstance(value, np.ndarray) or value.shape != shape or value.dtype.kind != kind:
        raise _wrong(task, method, _describe(value), expected)
    if not np.isfinite(value).all():
        column = int((~np.isfinite(value)).reshape(-1, shape[-1]).any(axis=0).argmax())
        problem = f"numbers that are not finite at the start, first in column {column}"
        raise _wrong(task, method, problem, expected, is_certain=False)


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} of shape {value.shape}"
    return f"a {type(value).__name__}"


def _class_name(task: Task) -> str:
    return f"task {type(task).__module__}:{type(task).__qualname__}"


def _wrong(
    task: Task, method: str, given: str, expected: str, *, is_certain: bool = True
) -> TaskError:
    text = f"{_class_name(task)}: {method} gives {given}; expected {expected}"
    if method in ("reward_and_terminated", "observe", "measure"):
        text += f" for {ROWS} environments"
    return TaskError(text, is_certain=is_certain)
