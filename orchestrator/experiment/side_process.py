"""Processes of this program that work beside a supervisor, such as the searcher, and end with it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.core.parent_death import command_of_child
from orchestrator.core.regular_files import open_regular
from orchestrator.core.text import last_line
from orchestrator.executors.process import child_environment, end_group, has_ended, working_directory

LOG_BYTES = 4_000
"""So much of the end of its log is read to say why it has ended."""


@dataclass(slots=True, kw_only=True)
class SideProcess:
    """A child process in a session of its own, with its output added to a log. It may be started again.

    The kernel kills it with this process, and with the thread that has started it. Its standard input ends then, too:
    that is for whatever it has started itself.
    """

    arguments: Sequence[str]
    """Module of this program and its arguments."""
    run_dir: Path
    log: Path
    starts: int = field(default=0, init=False)
    _popen: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _started_at: float = field(default=0.0, init=False)
    _log_begin: int = field(default=0, init=False)
    """Size of the log when it was started."""

    def start(self, *more: str) -> None:
        """:param more: arguments after the others. :raises OSError: it cannot be started."""
        self.starts += 1
        self.end()
        self.log.parent.mkdir(exist_ok=True)
        with self.log.open("ab") as output:
            self._log_begin, self._started_at = output.tell(), time.monotonic()
            self._popen = subprocess.Popen(
                command_of_child(*self.arguments, *more),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                cwd=working_directory(self.run_dir),
                env=child_environment(),
                start_new_session=True,
            )

    @property
    def is_alive(self) -> bool:
        return self._popen is not None and self._popen.returncode is None and not has_ended(self._popen.pid)

    @property
    def exit_code(self) -> int | None:
        """None before it has ended, and before it is started."""
        return None if self.is_alive else self.end()

    @property
    def ran_s(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self._started_at

    def tell(self, message: bytes) -> None:
        """Write to its standard input. :raises OSError: it has ended."""
        assert self._popen is not None
        assert self._popen.stdin is not None
        os.write(self._popen.stdin.fileno(), message)

    def why_it_ended(self) -> str:
        """The last line that it has printed since it was started, or else its exit code."""
        output = b""
        with contextlib.suppress(OSError), open_regular(self.log) as file:
            file.seek(max(self._log_begin, os.fstat(file.fileno()).st_size - LOG_BYTES))
            output = file.read(LOG_BYTES)
        return last_line(output.decode(errors="replace"), f"its process ended with exit code {self.exit_code}")

    def end(self) -> int | None:
        """Kill it, if it still runs, and whatever it has started. Returns its exit code; None: it was never started."""
        if self._popen is None:
            return None
        assert self._popen.stdin is not None
        with contextlib.suppress(OSError):  # it ended before it read what was written
            self._popen.stdin.close()
        return end_group(self._popen)
