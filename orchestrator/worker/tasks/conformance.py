"""Whether a task keeps to the contract of :class:`Task`: asked once, when a simulation is made, not in every step.

A task of the user's own is code that nobody has run before; what is wrong with it is said in one message that
names the method, what it gave and what was expected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.worker.runtime import exit_record
from orchestrator.worker.tasks.actions import Floats
from orchestrator.worker.tasks.base import States, Task

ROWS = 3
"""Environments in the trial: more than one, so that a result for all of them together is told from one for each."""


def first_state(task: Task, rng: np.random.Generator) -> tuple[Floats, Floats, Floats]:
    """``(qpos, qvel, goal)`` of an episode's start.

    :raises ValueError: what ``initial_state``, ``sample_goal`` or ``push`` gives is not as agreed.
    """
    model = task.model
    found = _call(task, "initial_state", lambda: task.initial_state(rng))
    if not isinstance(found, tuple) or len(found) != 2:
        raise _wrong(task, "initial_state", f"returns {_what(found)}", "a tuple of two arrays, qpos and qvel")
    qpos = _checked(task, "initial_state", "qpos", found[0], (model.nq,))
    qvel = _checked(task, "initial_state", "qvel", found[1], (model.nv,))
    drawn = _call(task, "sample_goal", lambda: task.sample_goal(rng))
    goal = _checked(task, "sample_goal", "goal", drawn, (task.goal_size,))
    if task.push_period is not None:
        _checked(task, "push", "push", _call(task, "push", lambda: task.push(rng)), (model.nv,))
    return qpos, qvel, goal


def first_observation(task: Task, states: States) -> NDArray[Any]:
    """``(ROWS, observation_size)`` of ``states``' first environment, over and over.

    :raises ValueError: what a method of ``task`` gives is not as agreed, or it raises.
    """
    trial = States(
        np.repeat(states.qpos[:1], ROWS, axis=0),
        np.repeat(states.qvel[:1], ROWS, axis=0),
        np.repeat(states.goals[:1], ROWS, axis=0),
        {name: np.repeat(field[:1], ROWS, axis=0) for name, field in states.fields.items()},
    )
    observation: NDArray[Any] = _checked_observation(task, trial)
    action = task.actions.taken(np.zeros((ROWS, len(task.actions.low))))
    ctrl = _call(task, "actions.ctrl", lambda: task.actions.ctrl(action))
    _checked(task, "actions.ctrl", "ctrl", ctrl, (ROWS, task.model.nu))
    found = _call(task, "reward_and_terminated", lambda: task.reward_and_terminated(trial, action, trial))
    if not isinstance(found, tuple) or len(found) != 2:
        raise _wrong(task, "reward_and_terminated", f"returns {_what(found)}", "a tuple: rewards, terminated")
    _checked(task, "reward_and_terminated", "rewards", found[0], (ROWS,))
    _checked(task, "reward_and_terminated", "terminated", found[1], (ROWS,), kind="b")
    measured = _call(task, "measure", lambda: task.measure(trial, action, trial))
    _checked(task, "measure", "measures", measured, (ROWS, len(task.measures)))
    _call(task, "goal_marker", lambda: task.goal_marker(trial.goals[0]))
    return observation


def _checked_observation(task: Task, states: States) -> NDArray[Any]:
    found = _call(task, "observe", lambda: task.observe(states))
    expected = f"a float32 or float64 array of shape ({ROWS}, observation_size), a row for each environment"
    if not isinstance(found, np.ndarray) or found.ndim != 2 or len(found) != ROWS or not found.shape[1]:
        raise _wrong(task, "observe", f"returns {_what(found)} for {ROWS} environments", expected)
    if found.dtype not in (np.float32, np.float64):
        raise _wrong(task, "observe", f"returns {_what(found)}", expected)
    if not np.isfinite(found).all():
        column = int((~np.isfinite(found)).any(axis=0).argmax())
        raise _wrong(task, "observe", f"gives {found[0, column]} in column {column} at the start", "finite numbers")
    if any(np.shares_memory(found, own) for own in (states.qpos, states.qvel, states.goals, *states.fields.values())):
        raise _wrong(task, "observe", "returns a view of the states", "a new array (.copy() makes one)")
    return found


def _call(task: Task, method: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:  # whatever the user's code raises is theirs to know
        raise _wrong(task, method, f"raises {exit_record.describe(error)}", None) from error


def _checked(task: Task, method: str, name: str, found: Any, shape: tuple[int, ...], kind: str = "f") -> NDArray[Any]:
    expected = f"{'booleans' if kind == 'b' else 'finite floating-point numbers'} of shape {shape}"
    if not isinstance(found, np.ndarray) or found.shape != shape or found.dtype.kind != kind:
        rows = f" for {ROWS} environments" if shape[:1] == (ROWS,) else ""
        raise _wrong(task, method, f"gives {_what(found)} as {name}{rows}", expected)
    if not np.isfinite(found).all():
        raise _wrong(task, method, f"gives {name} that are not finite at the start", expected)
    return found


def _what(found: Any) -> str:
    if isinstance(found, np.ndarray):
        return f"an array of {found.dtype} of shape {found.shape}"
    if isinstance(found, tuple):
        return f"a tuple of {len(found)}"
    return "None" if found is None else f"a {type(found).__name__}"


def _wrong(task: Task, method: str, found: str, expected: str | None) -> ValueError:
    kind = type(task)
    where = f"task {kind.__module__}:{kind.__qualname__}: {method} {found}"
    return ValueError(where if expected is None else f"{where}; expected {expected}")
