"""The worker's connection to its supervisor, which it never outlives.

Two independent mechanisms end an orphan: the kernel's parent-death signal, and a socket whose
end-of-file means that the last process holding the other end is gone. The same socket carries
progress records to the supervisor, and the supervisor's word :data:`GO`, for which a worker waits.
Only the standard library is imported here, because this runs before anything heavy.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from pathlib import Path

from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.processes.environment_variables import CHANNEL_VARIABLE, GO
from orchestrator.core.processes.parent_death import die_with_parent
from orchestrator.core.processes.process_setup import set_up_process
from orchestrator.core.processes.procfs import TICKS_PER_S, process_stat


class Channel:
    """The worker's end of the socket."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._unsent = b""

    def send(self, line: bytes) -> bool:
        """Send a whole line without blocking. Return whether it was sent: it is dropped if the supervisor
        does not keep up.

        The rest of a line that fitted only in part is sent first next time, so that lines never
        mix.
        """
        if self._unsent:
            self._unsent = self._unsent[self._write(self._unsent) :]
            if self._unsent:
                return False
        sent = self._write(line)
        if sent:
            self._unsent = line[sent:]
        return sent > 0

    def _write(self, data: bytes) -> int:
        try:
            return self._end.send(data, socket.MSG_DONTWAIT | getattr(socket, "MSG_NOSIGNAL", 0))
        # It would block, or the supervisor is gone and the watchdog is about to end this process.
        except OSError:
            return 0

    def watch(self) -> None:
        """Wait for the end-of-file in a daemon thread, then end this process at once, and its whole
        process group if it leads one.
        """
        with contextlib.suppress(OSError):  # a reset connection is an end, too
            while self._end.recv(4096):
                pass
        if os.getpgid(0) == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(ExitCode.ORPHANED)


def attach(*, awaits_go: bool = False) -> Channel | None:
    """Set up this process and connect it to its supervisor. Return the channel, or None if the process
    was started by hand.

    Children inherit neither the descriptor nor its variable: a child that held the socket would
    hide its end-of-file.

    :param awaits_go: return only when the supervisor has sent :data:`GO`, which it does once
        affinity and niceness of this process are set; before any thread starts, since a thread
        keeps what it has inherited.
    """
    set_up_process()
    die_with_parent()  # had it ended already, the channel tells
    number = os.environ.pop(CHANNEL_VARIABLE, None)
    if number is None:
        return None
    end = socket.socket(fileno=int(number))
    end.set_inheritable(False)
    if awaits_go:
        answer = b""
        with contextlib.suppress(OSError):  # the supervisor is gone
            answer = end.recv(len(GO))
        if answer != GO:  # it is gone, or could not set this process up
            os._exit(ExitCode.ORPHANED)
    channel = Channel(end)
    threading.Thread(target=channel.watch, name="lifeline", daemon=True).start()
    return channel


def end_if_superseded(next_attempt: Path) -> None:
    """End this process at once if the job's next attempt has begun, which owns the job directory from
    then on.

    That happens to a worker that was cut off or suspended for long, on a file system that nodes
    share.

    :param next_attempt: the folder that the supervisor creates before it launches the next attempt.
    """
    if os.path.exists(next_attempt):  # noqa: PTH110 - False, and no error, while the file system does not answer
        print(
            f"worker: attempt {int(next_attempt.name) + 1} of this job has begun; this attempt ends",
            flush=True,
        )
        os._exit(ExitCode.ORPHANED)


def process_start() -> float:
    """Return when this process was started, as :func:`time.monotonic` (to 10 ms), or the present if
    that is not known.
    """
    now = time.monotonic()
    stat = process_stat("self")
    if stat is None:
        return now
    since_boot = stat.start_ticks / TICKS_PER_S
    return now - max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot)
