"""Exceptions that end an attempt; the exit code and the message of any exception."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path
from typing import ClassVar

from orchestrator.core.errors import UsageError, is_disk_full
from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.processes.address_space import with_address_limit
from orchestrator.core.text import shortened

_TRACEBACK_LINES = 40
_LONGEST_MESSAGE = 500
_LONGEST_CHAIN = 20
"""Exceptions, each the cause of the one before, that are searched."""
_OUT_OF_GPU_MEMORY = ("CUDA out of memory", "CUDA error: out of memory", "ALLOC_FAILED")
"""In the messages of torch's OutOfMemoryError, and of CUDA and its libraries where memory is not
allocated by torch."""
_PACKAGE = str(Path(__file__).parents[2])


class AttemptEnd(Exception):
    """Ends an attempt. The message says all that there is to say."""

    code: ClassVar[ExitCode] = ExitCode.ERROR


class Diverged(AttemptEnd):
    """Physics, rewards, observations, losses or parameters are no longer finite."""

    code = ExitCode.DIVERGED


class RankLostError(AttemptEnd):
    """The other ranks did not start, or do not answer any more."""

    code = ExitCode.RANK_LOST


class CheckpointError(AttemptEnd):
    """A checkpoint that is not damaged cannot be loaded."""


class AlgorithmError(UsageError):
    """What ``algo`` names is no algorithm, or cannot be imported; the message says why."""


class Interrupted(AttemptEnd):
    """The attempt stopped on request, at a whole checkpoint."""

    code = ExitCode.INTERRUPTED


class ReachedRung(AttemptEnd):
    """The training has come to where it is compared with others, at a whole checkpoint."""

    code = ExitCode.PAUSED


def classify(error: BaseException) -> tuple[ExitCode, str, str]:
    """Return exit code, message and the last lines of the traceback for what ended the attempt.

    No part of a message is copied whole: it may be as large as the memory allows.
    """
    parts = traceback.TracebackException.from_exception(error).format()
    lines = [line for part in parts for line in shortened(part).splitlines()]
    trace = "\n".join(lines[-_TRACEBACK_LINES:])
    message = shortened(str(error))
    if any(map(is_disk_full, _chain(error))):  # libraries raise their own errors from it
        return ExitCode.DISK_FULL, f"no space left on the disk: {message}", trace
    if isinstance(error, AttemptEnd):
        is_failure = not isinstance(error, Interrupted | ReachedRung)
        return error.code, message, trace if is_failure else ""
    if any(text in message for text in _OUT_OF_GPU_MEMORY):
        message = (
            f"the GPU memory of the job is used up: {message}; raise resources.gpus if it is below 1, end other "
            "programs on the GPU (nvidia-smi lists them), or lower batch_size, n_envs or net_arch"
        )
        return ExitCode.ERROR, message, trace
    return ExitCode.ERROR, describe(error), trace


def describe(error: BaseException) -> str:
    """Return type, message and place of an error in one line."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__}: {error.msg} ({error.filename}:{error.lineno})"
    # Torch prints whole tensors; the traceback has all of it.
    text = " ".join(shortened(str(error)).split())[:_LONGEST_MESSAGE]
    # Libraries hide the error of a memory limit behind their own.
    return with_address_limit(
        f"{type(error).__name__}: {text} ({_place(error)})", [str(cause) for cause in _chain(error)]
    )


def _chain(error: BaseException) -> list[BaseException]:
    """Return ``error`` and what it was raised from or while handling."""
    chain = [error]
    while len(chain) < _LONGEST_CHAIN:
        cause = chain[-1].__cause__ or chain[-1].__context__
        if cause is None:
            break
        chain.append(cause)
    return chain


def _place(error: BaseException) -> str:
    """Return ``file:line`` of the last frame of the user's own code, else of any code."""
    frames = [
        frame
        for cause in _chain(error)
        for frame in reversed(traceback.extract_tb(cause.__traceback__))
    ]
    if not frames:
        return "no traceback"
    place = next((frame for frame in frames if _is_users(frame.filename)), frames[0])
    return f"{place.filename}:{place.lineno}"


def _is_users(file: str) -> bool:
    """Return whether ``file`` is of no library, nor of this package, nor made up (``<string>``)."""
    if file.startswith((sysconfig.get_path("stdlib"), _PACKAGE, "<")):
        return False
    return not {"site-packages", "dist-packages"}.intersection(Path(file).parts)
