"""The process of a command that needs a job's policy: ``play`` and ``export`` run in one.

On failure the last line of standard error says why; the exit code is that of the error, such as 2
for what another command line would avoid, otherwise 1.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from orchestrator.core.errors import OrchestratorError
from orchestrator.worker.runtime import failures, supervisor_connection


def run(command: Callable[[], None]) -> NoReturn:
    """Run ``command`` and end the process, together with the one that started it at the latest."""
    supervisor_connection.attach()
    sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    code = 0
    try:
        command()
    except Exception as error:  # also of the robot, the policy or the user's environment
        code = 1
        message = failures.describe(error)
        if isinstance(error, OrchestratorError):
            code = error.exit_code
            message = str(error)
        print(" ".join(message.split()), file=sys.stderr)
    with contextlib.suppress(OSError):  # nobody reads any more
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)  # a normal exit would wait for the threads of the user's code and of a window
