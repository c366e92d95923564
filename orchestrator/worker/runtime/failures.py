"""Exceptions that end an attempt; the exit code and the message of any exception."""

from __future__ import annotations

import sysconfig
import traceback
from collections import deque
from pathlib import Path

from orchestrator.core.errors import UsageError, is_disk_full
from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.text import shortened

_TRACEBACK_LINES = 40
_LONGEST_MESSAGE = 500
_LONGEST_CHAIN = 20
"""Exceptions, each the cause of the one before, that are searched for the user's own code."""
_PACKAGE = str(Path(__file__).parents[2])


class Diverged(Exception):
    """Physics, rewards, observations, losses or parameters are no longer finite."""


class RankLostError(Exception):
    """The other ranks did not start, or do not answer any more."""


class CheckpointError(Exception):
    """A checkpoint that is not damaged cannot be loaded; the message says which, why, and what to
    do.
    """


class GpuMemoryError(Exception):
    """The GPU, or the share of it that the job has, has no memory left; the message says what to
    do.
    """


class MissingPackageError(UsageError):
    """A package of an optional extra is not installed; the message says which, and how to install
    it.
    """


class Interrupted(Exception):
    """The attempt stopped on request, at a whole checkpoint."""


class ReachedRung(Exception):
    """The training has come to where it is compared with others, at a whole checkpoint."""


def classify(error: BaseException) -> tuple[ExitCode, str, str]:
    """Exit code, one-line message, and the last lines of the traceback, for whatever ended the
    attempt.

    No part of a message is copied whole: it may be as large as the memory allows.
    """
    if isinstance(error, Interrupted | ReachedRung):
        return (
            ExitCode.INTERRUPTED if isinstance(error, Interrupted) else ExitCode.PAUSED,
            str(error),
            "",
        )
    parts = traceback.TracebackException.from_exception(error).format()
    trace = "\n".join(
        deque((line for part in parts for line in shortened(part).splitlines()), _TRACEBACK_LINES)
    )
    if _has_full_disk_as_cause(error):
        return ExitCode.DISK_FULL, f"no space left on the disk: {shortened(str(error))}", trace
    if isinstance(error, CheckpointError | GpuMemoryError | MissingPackageError):
        return ExitCode.ERROR, shortened(str(error)), trace
    if isinstance(error, RankLostError | Diverged):
        return (
            ExitCode.DIVERGED if isinstance(error, Diverged) else ExitCode.RANK_LOST,
            shortened(str(error)),
            trace,
        )
    return ExitCode.ERROR, describe(error), trace


def describe(error: BaseException) -> str:
    """Type, message and place of an error in one line; the place is in the user's own code where
    there is any.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__}: {error.msg} ({error.filename}:{error.lineno})"
    text = " ".join(shortened(str(error)).split())
    if len(text) > _LONGEST_MESSAGE:  # torch prints whole tensors; the traceback has all of it
        text = text[:_LONGEST_MESSAGE] + " …"
    return f"{type(error).__name__}{': ' if text else ''}{text} ({_place(error)})"


def _has_full_disk_as_cause(error: BaseException) -> bool:
    """Whether ``error``, or one that it was raised from, is that of a full disk: libraries raise
    their own in its place.
    """
    cause: BaseException | None = error
    while cause is not None:
        if is_disk_full(cause):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _place(error: BaseException) -> str:
    """``file:line`` of the last frame of the user's own code, in ``error`` or in what caused it;
    else of any code.
    """
    chain: list[traceback.StackSummary] = []
    cause: BaseException | None = error
    while cause is not None and len(chain) < _LONGEST_CHAIN:
        chain.append(traceback.extract_tb(cause.__traceback__))
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    own = [frame for frames in chain for frame in reversed(frames) if _is_users(frame.filename)]
    if not (frame := next(iter([*own, *chain[0][-1:]]), None)):
        return "no traceback"
    return f"{frame.filename}:{frame.lineno}"


def _is_users(file: str) -> bool:
    libraries = (*{*sysconfig.get_paths().values()} - {sysconfig.get_path("data")}, _PACKAGE, "<")
    return not file.startswith(libraries) and not {"site-packages", "dist-packages"} & {
        *Path(file).parts
    }
