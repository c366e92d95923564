"""Starts the process of a supervisor."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
from pathlib import Path

from orchestrator.core import errors
from orchestrator.core.errors import OrchestratorError, SupervisorError
from orchestrator.core.processes.child_process import (
    child_environment,
    end_group,
    spawn,
    working_directory,
)
from orchestrator.server.settings import CLIENT_VARIABLE, ReadyLine, RunSettings

COMMAND = (sys.executable, "-m", "orchestrator.server")


class SupervisorProcess:
    """A supervisor that this process has started. It imports its packages at once; :meth:`begin`
    lets it lock its run directory. While it is not detached, it stops when this process ends.
    """

    def __init__(self, run_dir: Path | None = None) -> None:
        """:param run_dir: None: it is set before :meth:`begin`."""
        self.run_dir = run_dir or Path()
        self._has_begun = False
        self._popen = spawn(
            COMMAND,
            folder=working_directory(Path("/")),
            environment=child_environment(**{CLIENT_VARIABLE: str(os.getpid())}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None,
        )

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def has_ended(self) -> bool:
        return self._popen.poll() is not None

    def begin(self, settings: RunSettings) -> str:
        """Let it lock the run directory. Return its key.

        :raises OrchestratorError: the run directory cannot be used.
        """
        assert self._popen.stdin is not None
        settings = dataclasses.replace(settings, run_dir=str(self.run_dir))
        self._has_begun = True
        with contextlib.suppress(BrokenPipeError):  # it has ended, which is seen next
            self._popen.stdin.write(settings.to_line())
            self._popen.stdin.flush()
        try:
            return self._read_answer()
        except KeyboardInterrupt:
            self._close_pipes()  # it stops, and removes a new run directory
            self._popen.wait()
            raise

    def raise_error(self) -> None:
        """Raise the error with which it has ended after it had begun, if it has told one."""
        self._read_answer()

    def _read_answer(self) -> str:
        """Return its key, or an empty text if it has ended without an answer."""
        assert self._popen.stdout is not None
        line = self._popen.stdout.readline()
        if not line:
            return ""
        ready = ReadyLine.from_line(line)
        if ready.error:
            self._popen.wait()
            raise error_named(ready.kind, ready.error)
        return ready.holder

    def let_go(self) -> None:
        """Leave a detached supervisor on its own."""
        self._close_pipes()
        self._popen.returncode = 0  # it is not waited for

    def wait(self) -> int:
        return self._popen.wait()

    def close(self) -> None:
        """End a supervisor that has not begun; one that has begun stops by itself."""
        self._close_pipes()
        if not self._has_begun:
            end_group(self._popen)

    def _close_pipes(self) -> None:
        for stream in (self._popen.stdin, self._popen.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


def error_named(kind: str, message: str) -> OrchestratorError:
    """Return the error that the supervisor had, by the name of its class."""
    found = getattr(errors, kind, SupervisorError)
    if found is errors.SpecError:
        found = errors.UsageError
    error: OrchestratorError = found(message)
    return error
