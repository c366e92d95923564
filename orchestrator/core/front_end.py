"""How messages name what a user can do: as the command line or as Python spells it.

A message is made where a mistake is found, by code that the command and the Python functions share.
So it does not write an option out, but asks for its spelling here: ``--on-change=restart`` of the
command ``run`` is ``on_change="restart"`` in a Python program. Commands in backticks are to be typed in
a terminal, and stay as they are.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

VARIABLE = "ORCHESTRATOR_FRONT_END"
"""An environment variable: ``python`` in a process that works for a Python program, so that its
messages name arguments of Python; unset: in one that works for a command."""
_FLAGS_WITH_OTHER_NAMES = {"overrides": "set"}
"""Arguments of Python whose option has another name."""

_PYTHON = "python"
_IS_INHERITED = os.environ.get(VARIABLE) == _PYTHON
"""Whether a Python program, or a process that works for one, has started this process."""

_python_calls: set[object] = set()
"""Calls from Python that are going on, in all threads: more than the calling one make messages."""


@contextlib.contextmanager
def python_program() -> Iterator[None]:
    """Messages that are made in the block, in any thread of this process, are for a Python
    program.
    """
    call = object()
    _python_calls.add(call)
    try:
        yield
    finally:
        _python_calls.remove(call)


def is_python() -> bool:
    """Whether a Python program has asked for what goes on; otherwise it was a command."""
    return _IS_INHERITED or bool(_python_calls)


def inherited_front_end() -> dict[str, str]:
    """Environment variables by which a child process makes messages as this one does."""
    return {VARIABLE: _PYTHON} if is_python() else {}


def option(name: str, value: str | int | bool | None = None, *, sign: str = " ") -> str:
    """An option of ``run`` as the user gives it: ``--max-parallel 2``, ``max_parallel=2``.

    :param name: as an argument in Python: ``max_parallel``.
    :param value: True: it is set (``--fresh``, ``fresh=True``); None: the option is named without a
        value.
    :param sign: what stands between an option and its value on the command line.
    """
    if is_python():
        return name if value is None else f"{name}={_in_quotes(value)}"
    flag = f"--{_FLAGS_WITH_OTHER_NAMES.get(name, name).replace('_', '-')}"
    return flag if value is None or value is True else f"{flag}{sign}{value}"


def _in_quotes(value: str | int | bool) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def override(key: str) -> str:
    """A setting of all jobs as the user gives it: ``--set ppo.n_steps``,
    ``overrides["ppo.n_steps"]``.
    """
    return f'overrides["{key}"]' if is_python() else f"--set {key}"


def repeat_call() -> str:
    """What resumes a run: ``run the same command again``, ``make the same call again``."""
    return "make the same call again" if is_python() else "run the same command again"
