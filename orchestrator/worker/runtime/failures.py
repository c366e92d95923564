"""Exceptions that end an attempt; the exit code and the message of any exception."""

from __future__ import annotations

import sysconfig
import traceback
from collections import deque
from pathlib import Path

from orchestrator.core.errors import UsageError, is_disk_full
from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.processes.address_space import with_address_limit
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


class AlgorithmError(UsageError):
    """What ``algo`` names is no algorithm, or cannot be imported; the message says why."""


class Interrupted(Exception):
    """The attempt stopped on request, at a whole checkpoint."""


class ReachedRung(Exception):
    """The training has come to where it is compared with others, at a whole checkpoint."""


def classify(error: BaseException) -> tuple[ExitCode, str, str]:
    """Exit code, one-line message, and the last lines of the traceback, for whatever ended the
    attempt.

    No part of a message is copied whole: it may be as large as the memory allows.
    """
    if isinstance(error, Interrupted):
        return ExitCode.INTERRUPTED, str(error), ""
    if isinstance(error, ReachedRung):
        return ExitCode.PAUSED, str(error), ""
    message = shortened(str(error))
    trace = _end_of_traceback(error)
    if _has_full_disk_as_cause(error):
        return ExitCode.DISK_FULL, f"no space left on the disk: {message}", trace
    if isinstance(error, Diverged):
        return ExitCode.DIVERGED, message, trace
    if isinstance(error, RankLostError):
        return ExitCode.RANK_LOST, message, trace
    if isinstance(error, CheckpointError | GpuMemoryError | AlgorithmError):
        return ExitCode.ERROR, message, trace
    return ExitCode.ERROR, describe(error), trace


def _end_of_traceback(error: BaseException) -> str:
    """The last lines of the traceback. Of a long message in it, the end is left out."""
    lines: deque[str] = deque(maxlen=_TRACEBACK_LINES)
    for part in traceback.TracebackException.from_exception(error).format():
        lines.extend(shortened(part).splitlines())
    return "\n".join(lines)


def describe(error: BaseException) -> str:
    """Type, message and place of an error in one line; the place is in the user's own code where
    there is any.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__}: {error.msg} ({error.filename}:{error.lineno})"
    text = " ".join(shortened(str(error)).split())
    if len(text) > _LONGEST_MESSAGE:  # torch prints whole tensors; the traceback has all of it
        text = text[:_LONGEST_MESSAGE] + " …"
    return with_address_limit(
        f"{type(error).__name__}{': ' if text else ''}{text} ({_place(error)})"
    )


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
    candidates = [*own, *chain[0][-1:]]
    if not candidates:
        return "no traceback"
    return f"{candidates[0].filename}:{candidates[0].lineno}"


def _is_users(file: str) -> bool:
    """Whether ``file`` is of no library, of this package, or made up (``<string>``)."""
    folders = set(sysconfig.get_paths().values())
    folders.discard(sysconfig.get_path("data"))  # the whole installation, perhaps /usr
    if file.startswith((*folders, _PACKAGE, "<")):
        return False
    return not {"site-packages", "dist-packages"}.intersection(Path(file).parts)
