"""``supervisor-error.log``: tracebacks of errors that nobody expected, in the run directory."""

from __future__ import annotations

import contextlib
import time
import traceback
from dataclasses import dataclass, field
from typing import TypeAlias

from orchestrator.core.files.atomic_files import no_follow
from orchestrator.core.paths import RunPaths

Kind: TypeAlias = "tuple[type[BaseException], tuple[tuple[str, int], ...]]"
"""What makes errors the same: their class, and the files and lines of their traceback. Their texts
may differ, for example by the name of a job."""


@dataclass(slots=True)
class _RecordedError:
    where: str
    """A clause that says where the traceback of the first one is."""
    count: int = 1


@dataclass(slots=True, kw_only=True)
class ErrorLog:
    """Records each different error once: an error may come with every event of thousands of
    jobs.
    """

    paths: RunPaths
    _recorded: dict[Kind, _RecordedError] = field(default_factory=dict, init=False)

    def record(self, error: BaseException) -> str:
        """Append the traceback of ``error`` unless one like it is there. Returns a clause that says
        where it is.
        """
        kind = _kind(error)
        if (known := self._recorded.get(kind)) is not None:
            known.count += 1
            return known.where
        try:
            where = _append(self.paths, _traceback(error))
        except OSError as why:
            return _not_written(self.paths, why)  # there may be room for the next one like it
        self._recorded[kind] = _RecordedError(where)
        return where

    def record_counts(self) -> None:
        """Append how often errors came that have come more than once. To be called at the end."""
        lines = [
            f"{_description(kind)}: {known.count:,} times in all"
            for kind, known in self._recorded.items()
            if known.count > 1
        ]
        if lines:
            with contextlib.suppress(OSError):  # each error itself is there
                _append(self.paths, "\n".join(lines))


def record(paths: RunPaths, error: BaseException) -> str:
    """Append the traceback of ``error``. Returns a clause that says where it is."""
    try:
        return _append(paths, _traceback(error))
    except OSError as why:
        return _not_written(paths, why)


def _traceback(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def _append(paths: RunPaths, text: str) -> str:
    """Returns a clause that says where ``text`` is. :raises OSError: it cannot be written."""
    with open(
        paths.error_log, "a", encoding="utf-8", errors="backslashreplace", opener=no_follow
    ) as file:
        when = time.strftime("%Y-%m-%d %H:%M:%S")
        file.write(f"{when}\n{text}\n")
    return f"its traceback is in {paths.error_log}"


def _not_written(paths: RunPaths, why: OSError) -> str:
    return f"its traceback could not be written to {paths.error_log}: {why.strerror or why}"


def _kind(error: BaseException) -> Kind:
    frames = traceback.walk_tb(error.__traceback__)
    return type(error), tuple((frame.f_code.co_filename, line) for frame, line in frames)


def _description(kind: Kind) -> str:
    error, frames = kind
    if not frames:
        return error.__name__
    file, line = frames[-1]
    return f"{error.__name__} in {file}, line {line}"
