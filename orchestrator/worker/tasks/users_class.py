"""Classes of the user that a job file names as ``"module:Class"``: tasks and observations."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TypeVar

from orchestrator.worker.runtime import failures, user_env
from orchestrator.worker.tasks.task_options import TaskError

KindT = TypeVar("KindT")


def load(name: str, base: type[KindT], what: str) -> type[KindT]:
    """The class ``name``, which is derived from ``base``.

    :param what: what names it, in messages: ``task "module:Class"``.
    :raises TaskError: there is no such class, it does not derive from ``base``, or its module cannot
        be imported.
    """
    try:
        kind = user_env.load(name)
    except user_env.EntryPointError as error:
        raise TaskError(f"{what}: {error}") from None
    except (Exception, SystemExit) as error:
        raise TaskError(
            f"{what}: importing its module raises {failures.describe(error)}"
        ) from error
    if not (isinstance(kind, type) and issubclass(kind, base)):
        expected = f"orchestrator.worker.tasks.{base.__name__}"
        raise TaskError(f"{what} is not a class derived from {expected}")
    return kind


@contextlib.contextmanager
def errors_told(what: str, doing: str, *, is_ours: bool) -> Iterator[None]:
    """Name the class in errors of the block, which makes or asks an object of it.

    :param what: as for :func:`load`.
    :param doing: what the block does, in messages: ``__init__``.
    :param is_ours: whether the class is none of the user's: an error of another kind is a fault of
        this program, and stays as it is.
    :raises ValueError: the robot does not fit the class.
    :raises TaskError: an error in the user's own class.
    """
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None
    except Exception as error:
        if is_ours:
            raise
        text = f"{what}: {doing} raises {failures.describe(error)}"
        raise TaskError(text, is_certain=False) from error
