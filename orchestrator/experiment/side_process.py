"""Processes of this program that work beside a supervisor, such as the searcher, and end with
it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.core.exit_codes import how_it_ended
from orchestrator.core.files.own_files import kept_from_forks
from orchestrator.core.files.regular_files import open_regular
from orchestrator.core.processes.child_process import (
    child_environment,
    end_group,
    has_ended,
    spawn,
    working_directory,
)
from orchestrator.core.processes.parent_death import command_of_child
from orchestrator.core.text import last_line

LOG_BYTES = 4_000
"""So much of the end of its log is read to say why it has ended."""


@dataclass(slots=True, kw_only=True)
class SideProcess:
    """A child process in a session of its own, with its output added to a log. It may be started
    again.

    The kernel kills it with this process, and with the thread that has started it. Its standard
    input is a socket that ends then, too: this is for whatever it has started itself.
    """

    arguments: Sequence[str]
    """Module of this program and its arguments."""
    run_dir: Path
    log: Path
    _popen: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _channel: socket.socket | None = field(default=None, init=False)
    """The other end of its standard input."""
    _while_open: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, init=False)
    """Keeps the channel from processes that the program forks, which would hold it open when the
    program has ended."""
    _started_at: float = field(default=0.0, init=False)
    _log_begin: int = field(default=0, init=False)
    """Size of the log when it was started."""

    def start(self, *more: str) -> None:
        """:param more: arguments after the others. :raises OSError: it cannot be started."""
        self.end()
        self.log.parent.mkdir(exist_ok=True)
        with self.log.open("ab") as output:
            self._channel, standard_input = socket.socketpair()
            self._while_open.enter_context(kept_from_forks(self._channel.fileno()))
            self._channel.setblocking(False)
            self._log_begin = output.tell()
            self._started_at = time.monotonic()
            with standard_input:
                self._popen = spawn(
                    command_of_child(*self.arguments, *more),
                    folder=working_directory(self.run_dir),
                    environment=child_environment(),
                    stdin=standard_input.fileno(),
                    stdout=output,
                    stderr=output,
                )

    @property
    def is_alive(self) -> bool:
        return (
            self._popen is not None
            and self._popen.returncode is None
            and not has_ended(self._popen.pid)
        )

    @property
    def exit_code(self) -> int | None:
        """None before it has ended, and before it is started."""
        return None if self.is_alive else self.end()

    @property
    def ran_s(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self._started_at

    def tell(self, message: bytes) -> None:
        """Write to its standard input. :raises OSError: it has ended, or has read nothing for
        long.
        """
        assert self._channel is not None
        self._channel.sendall(message)

    def why_it_ended(self) -> str:
        """The last line that it has printed since it was started, or else its exit code or
        signal.
        """
        output = b""
        # It may not have begun to write, or the disk is full.
        with contextlib.suppress(OSError), open_regular(self.log) as file:
            file.seek(max(self._log_begin, os.fstat(file.fileno()).st_size - LOG_BYTES))
            output = file.read(LOG_BYTES)
        code = self.exit_code
        how = "exit code None" if code is None else how_it_ended(code)
        return last_line(output.decode(errors="replace"), f"its process ended with {how}")

    def end(self) -> int | None:
        """Kill it, if it still runs, and whatever it has started. Returns its exit code; None: it
        was never started.
        """
        if self._channel is not None:
            self._while_open.close()
            self._channel.close()
        return None if self._popen is None else end_group(self._popen)
