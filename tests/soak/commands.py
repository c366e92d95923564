"""Commands that the campaign starts, and every process that descends from them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from orchestrator.core.paths import RunPaths
from orchestrator.core.processes.child_process import package_path, spawn
from orchestrator.core.processes.environment_variables import TOKEN_VARIABLE
from orchestrator.core.processes.procfs import text_of
from orchestrator.machine.process_tree import with_descendants
from tests.soak.experiment import RUN_DIR

POLL_S = 0.02
LEFT_WITHIN_S = 10.0
"""How soon no process may be left when a command has ended or its processes were killed."""
LIMIT_S = 300.0
"""How long a command may take that trains for a few seconds."""
LOG = "output.log"
VARIABLE = "SOAK_TOKEN"
"""Marks every process of the campaign."""

Role: TypeAlias = Literal["supervisor", "worker", "rank", "orphan reaper", "template process"]
Output: TypeAlias = Literal["log", "terminal", "pipe"]


class OverdueError(Exception):
    """A command did not end in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """Starts commands of this program, and knows their processes by a variable in their
    environment.
    """

    temporary: Path
    """Where they have their temporary files."""
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    _started: list[subprocess.Popen[bytes]] = field(default_factory=list, init=False)

    def start(self, folder: Path, *arguments: str, output: Output = "log") -> CommandRun:
        environment = {
            **os.environ,
            **package_path(),
            VARIABLE: self.token,
            "TMPDIR": str(self.temporary),
        }
        command = [sys.executable, "-m", "orchestrator", *arguments]
        run = CommandRun(command, folder, environment, output)
        self._started.append(run.popen)
        return run

    def processes(self) -> dict[int, str]:
        """Pid → what it is, for every process that has not ended."""
        pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
        marked = [pid for pid in pids if _variables(pid).get(VARIABLE) == self.token]
        commands = {pid: _content(pid, "cmdline").replace("\0", " ").strip() for pid in marked}
        return {pid: f"{command} (pid {pid})" for pid, command in commands.items()}

    def await_end(self) -> list[str]:
        """Return the processes that are left after :data:`LEFT_WITHIN_S`; they are killed."""
        deadline = time.monotonic() + LEFT_WITHIN_S
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        self.kill()
        return list(left.values())

    def kill(self) -> list[str]:
        """Kill every process. Returns those that cannot be killed."""
        deadline = time.monotonic() + LEFT_WITHIN_S
        while (left := self.processes()) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(OSError):  # it has ended, or runs as another user
                    os.kill(pid, signal.SIGKILL)
            time.sleep(POLL_S)
        while self._started:
            with contextlib.suppress(subprocess.TimeoutExpired):  # it is one of those that are left
                self._started.pop().wait(max(0.0, deadline - time.monotonic()))
        return list(left.values())


class CommandRun:
    """A command in a session of its own. Its output goes to a log, at once or when :meth:`read` is
    called.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        environment: dict[str, str],
        output: Output,
    ) -> None:
        self.paths = RunPaths(folder / RUN_DIR)
        self.log = folder / LOG
        self._begun = time.monotonic()
        self._unread: int | None = None
        self._reader: threading.Thread | None = None
        with os.fdopen(self._open_output(output), "ab") as out:
            self.popen = spawn(
                command, folder=folder, environment=environment, stdout=out, stderr=out
            )

    def _open_output(self, output: Output) -> int:
        """A descriptor of the log, or the writing end of a terminal, or of a pipe that is full."""
        if output == "log":
            return os.open(self.log, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o666)
        if output == "terminal":
            self._unread, out = pty.openpty()
        else:
            self._unread, out = os.pipe()
            os.write(out, b"\n" * fcntl.fcntl(out, fcntl.F_SETPIPE_SZ, 4096))
        return out

    def read(self) -> None:
        """Begin to read what was not read so far."""
        if self._unread is not None and self._reader is None:
            self._reader = threading.Thread(target=self._pass_on, args=[self._unread], daemon=True)
            self._reader.start()

    def _pass_on(self, unread: int) -> None:
        ended = contextlib.suppress(OSError)  # EIO: nobody has the terminal open any more
        with self.log.open("ab") as log, os.fdopen(unread, "rb", buffering=0) as file, ended:
            while chunk := file.read(1 << 16):
                log.write(chunk)

    def pause(self, seconds: float = POLL_S) -> None:
        """:raises OverdueError: the command takes too long."""
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            if time.monotonic() - self._begun > LIMIT_S:
                raise OverdueError(f"A command did not end within {LIMIT_S:g} s.")
            time.sleep(min(POLL_S, left_s))

    def wait(self) -> int:
        """Wait for the end of the command; returns its exit code. Raises as :meth:`pause` does."""
        while self.popen.poll() is None:
            self.pause()
        self.read()
        if self._reader is not None:
            self._reader.join(LEFT_WITHIN_S)
        return self.popen.returncode

    def output(self) -> str:
        """What all commands in this folder have printed, as far as it was read."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def pids(self, role: Role) -> list[int]:
        """The processes with that role, ordered by job and rank."""
        if role == "supervisor":
            return [self.popen.pid]
        matches: list[tuple[str, int]] = []
        for pid in with_descendants(self.popen.pid)[1:]:
            # Behind the token of the supervisor: job, number of the attempt, and the rank where
            # there are several.
            _, *attempt = _variables(pid).get(TOKEN_VARIABLE, "").split("/")
            kind = {1: "template process", 2: "worker", 3: "rank"}.get(len(attempt))
            if not attempt and "orphan_reaper" in _content(pid, "cmdline"):
                kind = "orphan reaper"
            if kind == role:
                matches.append(("/".join(attempt), pid))
        return [pid for _, pid in sorted(matches)]


def iterations(paths: RunPaths) -> Counter[str]:
    """``job_id`` → the iterations that it has finished, in all sessions."""
    finished = Counter[str]()
    for table in paths.jobs.glob("*/progress.csv"):
        finished[table.parent.name] = table.read_bytes().count(b"\n") - 1  # without the header
    return finished


def _variables(pid: int) -> dict[str, str]:
    return dict(variable.partition("=")[::2] for variable in _content(pid, "environ").split("\0"))


def _content(pid: int, name: str) -> str:
    """A file of ``/proc/PID``; empty for a zombie, and where the process is gone or another
    user's.
    """
    return text_of(Path(f"/proc/{pid}/{name}")) or ""
