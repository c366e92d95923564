"""Check that a task fulfils the contract of :class:`Task`: once, when a simulation is made, not in
every step.

A violation, most likely in a user's own task, is one message with the method, its result and what
was expected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from orchestrator.core.text import joined
from orchestrator.worker.mjmodel.structure import Floats, Numbers
from orchestrator.worker.runtime import failures
from orchestrator.worker.tasks.base import States, Task
from orchestrator.worker.tasks.task_options import TaskError

ROWS = 3
"""Environments in the check: more than one, to tell a single result from one for each
environment."""


class EpisodeStart(NamedTuple):
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
    rest = np.zeros(task.model.nv)
    start = (np.zeros(task.model.nq), rest)
    qpos, qvel = _call(task, "initial_state", start, task.initial_state, rng)
    goal = _call(task, "sample_goal", np.zeros(task.goal_size), task.sample_goal, rng)
    if task.push_period is not None:
        _call(task, "push", rest, task.push, rng)
    return EpisodeStart(qpos=qpos, qvel=qvel, goal=goal)


def repeated_first(states: States) -> States:
    """Return the first environment of ``states``, :data:`ROWS` times."""
    first = np.zeros(ROWS, np.intp)
    fields = {name: field[first] for name, field in states.fields.items()}
    return States(states.qpos[first], states.qvel[first], states.goals[first], fields)


def check_step(task: Task, trial: States) -> None:
    """Check what ``task`` computes in a control step.

    :param trial: of :data:`ROWS` environments.
    :raises TaskError: a method of ``task`` raises, or its result violates the contract.
    """
    action = task.actions.taken(np.zeros((ROWS, len(task.actions.low))))
    step = (trial, action, trial)
    numbers = np.zeros(ROWS)
    rewards = (numbers, np.zeros(ROWS, bool))
    measures = np.zeros((ROWS, len(task.measures)))
    ctrl = np.zeros((ROWS, task.model.nu))
    _call(task, "actions.ctrl", ctrl, task.actions.ctrl, action)
    _call(task, "reward_and_terminated", rewards, task.reward_and_terminated, *step)
    _call(task, "measure", measures, task.measure, *step)
    moved = _result(task, "distance_travelled", task.distance_travelled, trial, trial)
    if moved is not None:
        _check(task, "distance_travelled", moved, numbers)


def first_observation(task: Task, states: States) -> Numbers:
    """``(ROWS, …)`` the task's own observations.

    :param states: of :data:`ROWS` environments.
    :raises TaskError: ``observe`` or a term of which it consists raises, or its result violates the
        contract.
    """
    for term in task.observation_terms.all:
        name = f"the term {joined(term.names)}"
        _call(task, name, np.zeros((ROWS, len(term.names))), term.values, states)
    observed = _result(task, "observe", task.observe, states)
    size = np.shape(observed)[-1] if np.ndim(observed) == 2 else 1
    _check(task, "observe", observed, np.zeros((ROWS, size or 1)))
    inputs = (states.qpos, states.qvel, states.goals, *states.fields.values())
    if any(np.shares_memory(observed, own) for own in inputs):
        text = f"{_class_name(task)}: observe gives a view of the states; expected a new array (.copy() makes one)"
        raise TaskError(text)
    return observed  # type: ignore[no-any-return]


def _call(
    task: Task, name: str, example: Any, function: Callable[..., Any], *arguments: Any
) -> Any:
    """Return what a function of ``task`` gives, which must be arrays as in ``example``."""
    result = _result(task, name, function, *arguments)
    _check(task, name, result, example)
    return result


def _result(task: Task, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception as error:  # the user's code may raise anything
        text = f"{_class_name(task)}: {name} raises {failures.describe(error)}"
        raise TaskError(text, is_certain=False) from error


def _check(task: Task, name: str, result: Any, example: Any) -> None:
    """:raises TaskError: ``result`` is not of the shape and kind of ``example``, or not finite."""
    given = _describe(result)
    text = f"{_class_name(task)}: {name} gives {given}"
    if given != _describe(example):
        raise TaskError(f"{text}; expected {_describe(example)}")
    for array in result if isinstance(result, tuple) else (result,):
        if not np.isfinite(array).all():
            column = int(np.argwhere(~np.isfinite(array))[0, -1])
            text += f", of which number {column} is not finite at the start"
            raise TaskError(text, is_certain=False)


def _describe(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_describe, value))})"
    if not isinstance(value, np.ndarray):
        return f"a {type(value).__name__}"
    kind = {"f": "floating-point numbers", "b": "booleans"}.get(value.dtype.kind, value.dtype.name)
    return f"{kind} of shape {value.shape}"


def _class_name(task: Task) -> str:
    return f"task {type(task).__module__}:{type(task).__qualname__}"
