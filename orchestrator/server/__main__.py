"""The process of a supervisor: ``python -m orchestrator.server``.

A client starts it, and writes one line of :class:`RunSettings` when it has read the job file; until
then the process imports its packages and leaves nothing behind. It answers with one line, and
prints to ``supervisor.log`` from then on.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
from pathlib import Path

from orchestrator.core.errors import OrchestratorError
from orchestrator.core.files.atomic_files import opened_log
from orchestrator.core.paths import RunPaths
from orchestrator.core.processes.process_setup import set_up_process
from orchestrator.examination.examining_process import Child
from orchestrator.experiment.run_end import exit_code_of
from orchestrator.server.settings import CLIENT_VARIABLE, ReadyLine, RunSettings


class Lifeline:
    """Tells whether the client that started this process is gone: by the pipe to it, and because a
    fork of the client may hold that pipe, by its process as well.
    """

    def __init__(self, client_pid: int) -> None:
        self._is_gone = False
        self._watched = [0]
        try:
            self._watched.append(os.pidfd_open(client_pid))
        except ProcessLookupError:
            self._is_gone = True
        except OSError:  # this system has no pidfds: the pipe alone tells
            return

    def is_broken(self) -> bool:
        readable, _, _ = select.select(self._watched, [], [], 0)
        if self._is_gone or set(readable) - {0}:
            return True
        return 0 in readable and not os.read(0, 1 << 16)

    def await_line(self) -> bytes:
        """Return the line that the client writes, or nothing if it ends before."""
        if self._is_gone:
            return b""
        readable, _, _ = select.select(self._watched, [], [])
        return sys.stdin.buffer.readline() if 0 in readable else b""


def main() -> int:
    """Run the supervisor. Return the exit code of the process."""
    set_up_process()
    with Child() as warm:  # it imports MuJoCo while this process imports the supervisor
        from orchestrator.server.process import run

        client_pid = int(os.environ.pop(CLIENT_VARIABLE, os.getppid()))
        line = Lifeline(client_pid).await_line()
        if not line:
            return 0  # the client had nothing to run
        settings = RunSettings.from_line(line)
        answer = os.fdopen(os.dup(1), "wb")

        def begun(paths: RunPaths, holder: str) -> None:
            log = opened_log(paths.supervisor_log, print)
            answer.write(ReadyLine(holder=holder).to_line())
            answer.flush()
            for descriptor in (1, 2):
                os.dup2(log, descriptor)

        try:
            return run(Path(settings.run_dir), settings, warm, begun, Lifeline(settings.client_pid))
        except KeyboardInterrupt:
            return 130
        except OrchestratorError as error:
            with contextlib.suppress(OSError):
                answer.write(ReadyLine(error=str(error), kind=type(error).__name__).to_line())
                answer.flush()
            return exit_code_of(error)


if __name__ == "__main__":
    sys.exit(main())
