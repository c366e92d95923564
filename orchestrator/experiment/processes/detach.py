"""``run --detach``: the command forks. Its child goes on as the supervisor, in a session of its
own.

Until the first jobs run, the child prints to the terminal of the command: what is wrong is seen
there, as without ``--detach``. Then it leaves the terminal for a file, and the command returns. If
it ends before, the command ends with its exit code.
"""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass

from orchestrator.core.messages import JsonLine
from orchestrator.core.processes.child_process import send_signal
from orchestrator.core.processes.process_setup import STOP_SIGNALS

FORWARDED = (signal.SIGINT, signal.SIGTERM)
"""Signals that the waiting command passes on. It does not pass on SIGHUP: a closed terminal is what
it is about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Underway(JsonLine):
    """What the supervisor says when it has launched the first jobs."""

    pid: int
    run_dir: str
    log: str
    """Where its output is from now on."""
    running: int
    pending: int
    jobs: int


@dataclass(frozen=True, slots=True)
class WaitingCommand:
    """In the command that was typed: waits for its child."""

    pid: int
    reader: int

    def wait(self) -> Underway | int:
        """What the supervisor says when the first jobs run, or its exit code if it ends before."""
        with os.fdopen(self.reader, "rb") as pipe:
            line = pipe.readline()
        if line.endswith(b"\n"):
            return Underway.from_line(line)
        _, status = os.waitpid(self.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        return code if code >= 0 else 128 - code

    def forward(self, number: int, _frame: object) -> None:
        send_signal(self.pid, number)


@dataclass(slots=True)
class DetachedProcess:
    """In the child: its way to leave the terminal of the command."""

    writer: int

    def leave(self, log: int, underway: Underway) -> None:
        """Print to the file ``log`` from now on, and let the command return."""
        for descriptor in (1, 2):
            os.dup2(log, descriptor)
        with contextlib.suppress(BrokenPipeError):  # the command may be gone already
            os.write(self.writer, underway.to_line())
        os.close(self.writer)


def fork() -> WaitingCommand | DetachedProcess:
    """To be called before the first thread: what follows happens in two processes, each with the
    other's end.
    """
    reader, writer = os.pipe()
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # one that comes now is for both to see
    try:
        pid = os.fork()
        if pid:
            os.close(writer)
            command = WaitingCommand(pid, reader)
            for number in FORWARDED:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    signal.signal(number, command.forward)
            return command
        os.close(reader)
        os.setsid()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        return DetachedProcess(writer)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
