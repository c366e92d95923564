"""``supervisor-error.log``: tracebacks of errors that nobody expected, in the run directory."""

from __future__ import annotations

import time
import traceback

from orchestrator.core.files.atomic_files import no_follow
from orchestrator.core.paths import RunPaths


def record(paths: RunPaths, error: BaseException) -> str:
    """Append the traceback of ``error``. Returns a clause that says where it is."""
    try:
        with open(
            paths.error_log, "a", encoding="utf-8", errors="backslashreplace", opener=no_follow
        ) as file:
            when = time.strftime("%Y-%m-%d %H:%M:%S")
            file.write(f"{when}\n{''.join(traceback.format_exception(error))}\n")
    except OSError as why:
        return f"its traceback could not be written to {paths.error_log}: {why.strerror or why}"
    return f"its traceback is in {paths.error_log}"
