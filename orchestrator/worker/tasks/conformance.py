"""Check that a task fulfils the contract of :class:`Task`: once, when a simulation is made, not in
every step.

A violation, most likely in a user's own task, is one message with the method, its result and what
was expected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.core import task_names
from orchestrator.core.text import alternatives, joined
from orchestrator.worker.mjmodel.structure import Floats
from orchestrator.worker.runtime import failures
from orchestrator.worker.tasks import input_names, observation_limits
from orchestrator.worker.tasks.base import States, Task
from orchestrator.worker.tasks.observations import Observation
from orchestrator.worker.tasks.task_options import TaskError
from orchestrator.worker.tasks.terms import TaskOfTerms, Terms

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
    """The start of an episode.

    :raises TaskError: the result of ``initial_state``, ``sample_goal`` or ``push`` violates the
        contract.
    """
    model = task.model
    result = _call(task, "initial_state", lambda: task.initial_state(rng))
    if not isinstance(result, tuple) or len(result) != 2:
        raise _wrong(
            task,
            "initial_state",
            f"returns {_describe(result)}",
            "a tuple of two arrays, qpos and qvel",
        )
    qpos = _check_result(task, "initial_state", "qpos", result[0], (model.nq,))
    qvel = _check_result(task, "initial_state", "qvel", result[1], (model.nv,))
    sampled = _call(task, "sample_goal", lambda: task.sample_goal(rng))
    goal = _check_result(task, "sample_goal", "goal", sampled, (task.goal_size,))
    if task.push_period is not None:
        pushed = _call(task, "push", lambda: task.push(rng))
        _check_result(task, "push", "push", pushed, (model.nv,))
    return EpisodeStart(qpos=qpos, qvel=qvel, goal=goal)


def repeated_first(states: States) -> States:
    """The first environment of ``states``, :data:`ROWS` times."""
    return States(
        _repeated_first_row(states.qpos),
        _repeated_first_row(states.qvel),
        _repeated_first_row(states.goals),
        {name: _repeated_first_row(field) for name, field in states.fields.items()},
    )


def _repeated_first_row(values: NDArray[Any]) -> NDArray[Any]:
    return np.repeat(values[:1], ROWS, axis=0)


def check_step(task: Task, trial: States) -> None:
    """Check what ``task`` computes in a control step, and what is shown of it.

    :param trial: of :data:`ROWS` environments.
    :raises TaskError: a method of ``task`` raises, or its result violates the contract.
    """
    action = task.actions.taken(np.zeros((ROWS, len(task.actions.low))))
    ctrl = _call(task, "actions.ctrl", lambda: task.actions.ctrl(action))
    _check_result(task, "actions.ctrl", "ctrl", ctrl, (ROWS, task.model.nu))
    result = _call(
        task, "reward_and_terminated", lambda: task.reward_and_terminated(trial, action, trial)
    )
    if not isinstance(result, tuple) or len(result) != 2:
        raise _wrong(
            task,
            "reward_and_terminated",
            f"returns {_describe(result)}",
            "a tuple: rewards, terminated",
        )
    _check_result(task, "reward_and_terminated", "rewards", result[0], (ROWS,))
    _check_result(task, "reward_and_terminated", "terminated", result[1], (ROWS,), kind="b")
    measured = _call(task, "measure", lambda: task.measure(trial, action, trial))
    _check_result(task, "measure", "measures", measured, (ROWS, len(task.measures)))
    moved = _call(task, "distance_travelled", lambda: task.distance_travelled(trial, trial))
    if moved is not None:
        _check_result(task, "distance_travelled", "metres", moved, (ROWS,))
    _call(task, "goal_marker", lambda: task.goal_marker(trial.goals[0]))


def first_observation(task: Task, states: States) -> NDArray[Any]:
    """``(ROWS, …)`` the task's own observations.

    :param states: of :data:`ROWS` environments.
    :raises TaskError: ``observe`` or ``observation_names`` raises, or the result of the former
        violates the contract, or a term of which it consists does; or the task has terms that nothing
        observes.
    """
    if hasattr(task, "make_observation_terms") and not isinstance(task, TaskOfTerms):
        raise _wrong(
            task,
            "make_observation_terms",
            f"is called in classes derived from {alternatives(task_names.TASKS)} only",
            "observe() in its place, with observation_limits() and observation_names() where they are known",
        )
    if isinstance(task, TaskOfTerms) and type(task).observe is TaskOfTerms.observe:
        _check_terms(f"task {_class_name(task)}", task.observation_terms, states)
    array = _call(task, "observe", lambda: task.observe(states))
    expected = f"a float32 or float64 array of shape ({ROWS}, observation_size), a row for each environment"
    if (
        not isinstance(array, np.ndarray)
        or array.ndim != 2
        or len(array) != ROWS
        or not array.shape[1]
    ):
        raise _wrong(
            task, "observe", f"returns {_describe(array)} for {ROWS} environments", expected
        )
    if array.dtype not in (np.float32, np.float64):
        raise _wrong(task, "observe", f"returns {_describe(array)}", expected)
    if not np.isfinite(array).all():
        column = int((~np.isfinite(array)).any(axis=0).argmax())
        problem = f"gives {array[0, column]} in column {column} at the start"
        raise _wrong(task, "observe", problem, "finite numbers", is_certain=False)
    if any(
        np.shares_memory(array, own)
        for own in (states.qpos, states.qvel, states.goals, *states.fields.values())
    ):
        raise _wrong(
            task, "observe", "returns a view of the states", "a new array (.copy() makes one)"
        )
    again = _call(task, "observe", lambda: task.observe(states))
    if isinstance(again, np.ndarray) and np.shares_memory(array, again):
        raise _wrong(
            task,
            "observe",
            "returns the same array again",
            "a new array each time (.copy() makes one)",
        )
    size = array.shape[1]
    _call(task, "observation_names", lambda: input_names.of_full_observation(task, size))
    limits = _call(task, "observation_limits", lambda: observation_limits.of_full_observation(task))
    if isinstance(limits, np.ndarray) and limits.dtype.kind == "f":
        limits = np.where(np.isinf(limits), 0.0, limits)  # which is no bound
    if limits is not None:
        _check_result(task, "observation_limits", "bounds", limits, (2, size))
    return array


def first_observation_by(observation: Observation, states: States) -> NDArray[Any]:
    """``(ROWS, …)`` what ``observation`` gives in place of the task's own observations.

    :param states: of :data:`ROWS` environments.
    :raises TaskError: a term raises, or its values violate the contract.
    """
    _check_terms(_class_name(observation), observation.terms, states)
    return observation.observe(states)


def _check_terms(whose: str, terms: Terms, states: States) -> None:
    """:raises TaskError: a term raises, or its values violate the contract."""
    for term in terms.all:
        what = f"{whose}: the term {joined(term.names)}"
        try:
            values = term.values(states)
        except Exception as error:  # the user's code may raise anything
            text = (
                f"{what} raises {failures.describe(error)}; correct its function, which is given the states of {ROWS} "
                "environments"
            )
            raise TaskError(text, is_certain=False) from error
        shape = (ROWS, len(term.names))
        is_array = isinstance(values, np.ndarray) and values.dtype.kind == "f"
        if not is_array or values.shape != shape:
            expected = f"floating-point numbers of shape {shape}, a row for each environment and a column for each name"
            raise TaskError(f"{what} gives {_describe(values)}; expected {expected}")
        if not np.isfinite(values).all():
            text = (
                f"{what} gives numbers that are not finite at the start; expected finite ones: put another number in "
                "their place, or leave the term out"
            )
            raise TaskError(text, is_certain=False)


def _call(task: Task, method: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:  # the user's code may raise anything
        raise _wrong(
            task, method, f"raises {failures.describe(error)}", None, is_certain=False
        ) from error


def _check_result(
    task: Task, method: str, name: str, value: Any, shape: tuple[int, ...], kind: str = "f"
) -> NDArray[Any]:
    expected = f"{'booleans' if kind == 'b' else 'finite floating-point numbers'} of shape {shape}"
    if not isinstance(value, np.ndarray) or value.shape != shape or value.dtype.kind != kind:
        rows = f" for {ROWS} environments" if shape[:1] == (ROWS,) else ""
        raise _wrong(task, method, f"gives {_describe(value)} as {name}{rows}", expected)
    if not np.isfinite(value).all():
        raise _wrong(
            task,
            method,
            f"gives {name} that are not finite at the start",
            expected,
            is_certain=False,
        )
    return value


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} of shape {value.shape}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return "None" if value is None else f"a {type(value).__name__}"


def _class_name(of: object) -> str:
    return f"{type(of).__module__}:{type(of).__qualname__}"


def _wrong(
    task: Task, method: str, problem: str, expected: str | None, *, is_certain: bool = True
) -> TaskError:
    what = f"task {_class_name(task)}: {method} {problem}"
    return TaskError(
        what if expected is None else f"{what}; expected {expected}", is_certain=is_certain
    )
