"""``supervisor-error.log``: tracebacks of errors that nobody expected, in the run directory."""

from __future__ import annotations

import time
import traceback

from orchestrator.core.files.atomic_files import no_follow
from orchestrator.core.paths import RunPaths


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
