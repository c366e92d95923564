"""The process of a pool's supervisor, as the program sees it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO

from orchestrator.core import errors
from orchestrator.core.errors import OrchestratorError, SpecError, SupervisorError, UsageError
from orchestrator.core.files.own_files import kept_from_forks
from orchestrator.core.processes.child_process import (
    end_group,
    package_path,
    spawn,
    working_directory,
)
from orchestrator.core.text import last_line
from orchestrator.features.pool.pool_supervisor import NO_MORE, PoolReport
from orchestrator.machine.slots import MaxParallel

LOOK_EVERY_S = 0.1
COMMAND = (sys.executable, "-m", "orchestrator.features.pool.pool_supervisor")


class SupervisorProcess:
    """Starts the supervisor of a pool, and waits until it answers.

    :param folder: its working directory where that of this process has been removed.
    :raises OrchestratorError: it has ended without a beginning; of the kind that it said, such as
        ``UsageError`` where the run directory cannot be used.
    """

    def __init__(self, run_dir: Path, max_parallel: MaxParallel, folder: Path) -> None:
        self._run_dir = run_dir
        # Ctrl-C is for this process, which decides what becomes of it.
        self._popen = spawn(
            [*COMMAND, str(run_dir), str(max_parallel or 0)],
            folder=working_directory(folder),
            environment={**os.environ, **package_path()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None,
        )
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._stdin = self._popen.stdin
        self._while_open = contextlib.ExitStack()
        """Keeps its standard input from processes that the program forks, which would hold it open
        when it is closed here."""
        self._while_open.enter_context(kept_from_forks(self._stdin.fileno()))
        self._stdout = self._popen.stdout
        try:
            report, said = _first_report(self._stdout)
            self.holder = report.holder
            """Names it in requests."""
            if not self.holder:
                raise self._error(said)
        except BaseException:
            end_group(self._popen)
            self.close()
            raise

    @property
    def has_ended(self) -> bool:
        return self._popen.poll() is not None

    def end(self, *, stops: Callable[[], bool]) -> None:
        """Wait for its end, which comes when no job is left, or soon after ``stops``. May be called
        again.
        """
        if not stops():
            with contextlib.suppress(BrokenPipeError):  # it has ended already
                self._stdin.write(NO_MORE)
                self._stdin.flush()
        while not self.has_ended:
            if stops():
                self._close_input()
            with contextlib.suppress(subprocess.TimeoutExpired):  # it may have to stop meanwhile
                self._popen.wait(LOOK_EVERY_S)

    def _close_input(self) -> None:
        self._while_open.close()  # before: the number may be that of another file soon
        with contextlib.suppress(BrokenPipeError):  # it has ended without reading all
            self._stdin.close()

    def hurry(self) -> None:
        """Make it kill its workers now, if it stops already."""
        self._popen.send_signal(signal.SIGTERM)

    def why_it_ended(self) -> OrchestratorError:
        """To be asked when it has ended without being asked to."""
        # A process that it has started may live a little longer, and keep its output open.
        os.set_blocking(self._stdout.fileno(), False)
        return self._error(self._stdout.read() or b"")

    def close(self) -> None:
        self._close_input()
        self._stdout.close()

    def _error(self, said: bytes) -> OrchestratorError:
        code = self._popen.wait()
        with contextlib.suppress(ValueError):  # it has said nothing, or printed something else
            report = PoolReport.from_line(said)
            kind = getattr(errors, report.kind, SupervisorError)
            if kind is SpecError:  # which is made of problems, and not of a text
                kind = UsageError
            return kind(report.error)
        what = "the supervisor of the pool was stopped"
        if code < 0:
            name = signal.strsignal(-code)
            what = f"the supervisor of the pool was killed by signal {-code} ({name})"
        if log := last_line(said.decode(errors="replace"), ""):
            what = f"{what}: {log}"
        advice = f"A new pool with run_dir={str(self._run_dir)!r} resumes it when the same robots are submitted again."
        return SupervisorError(f"{what}. {advice}")


def _first_report(output: IO[bytes]) -> tuple[PoolReport, bytes]:
    """The first report, and its line. What Python runs before a program, such as ``sitecustomize``, may
    print lines of its own. Where there is none, an empty report, and all that was printed.
    """
    said = b""
    for line in output:
        said += line
        with contextlib.suppress(ValueError):
            return PoolReport.from_line(line), line
    return PoolReport(), said
