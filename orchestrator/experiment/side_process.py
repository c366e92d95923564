"""Processes of this program that work beside a supervisor, such as the searcher, and end with it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.core.environment import worker_thread_settings
from orchestrator.core.regular_files import open_regular
from orchestrator.core.text import last_line
from orchestrator.executors.process import end_group, package_path, working_directory

LOG_BYTES = 4_000
"""So much of the end of its log is read to say why it has ended."""


def started(arguments: Sequence[str], run_dir: Path, log: Path) -> subprocess.Popen[bytes]:
    """A child process in a session of its own, with a pipe as standard input and its output added to ``log``.

    :param arguments: module of this program and its arguments.
    :raises OSError: it cannot be started.
    """
    log.parent.mkdir(exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            cwd=working_directory(run_dir),
            env={**os.environ, **worker_thread_settings(1), **package_path(), "PYTHONHASHSEED": "0"},
            start_new_session=True,
        )


def last_words(log: Path, exit_code: int | None) -> str:
    """The last line that a process has printed into ``log``, or else its exit code."""
    output = b""
    with contextlib.suppress(OSError), open_regular(log) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_BYTES))
        output = file.read(LOG_BYTES)
    return last_line(output.decode(errors="replace"), f"its process ended with exit code {exit_code}")


@dataclass(slots=True, kw_only=True)
class SideProcess:
    """A child process that :func:`started` starts, and starts again.

    Its standard input ends when this process does, in whatever way, and it has to end then.
    """

    arguments: Sequence[str]
    """Module of this program and its arguments."""
    run_dir: Path
    log: Path
    starts: int = field(default=0, init=False)
    _popen: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def start(self) -> None:
        """:raises OSError: it cannot be started."""
        self.starts += 1
        self.end()  # with whatever the one before has started
        self._popen = started(self.arguments, self.run_dir, self.log)

    @property
    def is_alive(self) -> bool:
        return self._popen is not None and self._popen.poll() is None

    @property
    def exit_code(self) -> int | None:
        """None before it has ended, and before it is started."""
        return None if self._popen is None else self._popen.poll()

    def tell(self, message: bytes) -> None:
        """Write to its standard input. :raises OSError: it has ended."""
        assert self._popen is not None
        assert self._popen.stdin is not None
        self._popen.stdin.write(message)
        self._popen.stdin.flush()

    def why_it_ended(self) -> str:
        return last_words(self.log, self.exit_code)

    def end(self) -> None:
        """Kill what still runs of it. May be called again."""
        if self._popen is not None:
            assert self._popen.stdin is not None
            with contextlib.suppress(OSError):  # it ended before it read what was written
                self._popen.stdin.close()
            end_group(self._popen)
