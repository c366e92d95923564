"""The worker's tie to its supervisor: it does not outlive it, and it tells it how far it is.

Two independent ways make sure that no worker is ever left behind: the kernel's parent-death signal,
and a socket whose end-of-file means that the last process holding the other end is gone. The
same socket carries progress records outwards. Only the standard library is imported here: this runs
before anything heavy.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

from orchestrator.core.environment import CHANNEL_VARIABLE
from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.procfs import process_stat

_PR_SET_PDEATHSIG = 1


class Channel:
    """Our end of the socket. ``send`` never blocks."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._unsent = b""

    def send(self, line: bytes) -> bool:
        """Send a whole line; False when it was dropped because the supervisor does not keep up.

        Of a line that fits only in part the rest goes first next time, so that lines never mix.
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
        except BlockingIOError:
            return 0
        except OSError:  # the supervisor is gone: the watchdog is about to end us
            return 0

    def watch(self) -> None:
        """Wait for the end-of-file, then end the process group. Runs in a daemon thread."""
        while True:
            try:
                if not self._end.recv(4096):
                    break
            except OSError:
                break
        end_orphaned()


def attach() -> Channel | None:
    """Tie this process to its supervisor; None where there is no channel (started by hand).

    The descriptor is kept from children, and its variable taken out of the environment: a child
    that held it would keep neither promise.
    """
    _die_with_parent()
    number = os.environ.pop(CHANNEL_VARIABLE, None)
    if number is None:
        return None
    descriptor = int(number)
    os.set_inheritable(descriptor, False)
    channel = Channel(socket.socket(fileno=descriptor))
    threading.Thread(target=channel.watch, name="lifeline", daemon=True).start()
    return channel


def _die_with_parent() -> None:
    """Ask the kernel to kill us when the thread that started us ends. (If it ended before this, the channel tells.)"""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            print(f"worker: no parent-death signal: {os.strerror(ctypes.get_errno())}", file=sys.stderr)


def end_orphaned() -> None:
    """End this process and, where we lead it, its whole group, at once."""
    if os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(ExitCode.ORPHANED)


def end_superseded(next_attempt: Path) -> None:
    """End this process at once when the job's next attempt has begun: from then on the job's directory is not ours.

    So it is with one that was cut off or suspended for long, on a file system that it shares with the others.

    :param next_attempt: the folder that the supervisor makes before it launches that.
    """
    if os.path.exists(next_attempt):  # noqa: PTH110 - what cannot be looked at for the moment is no reason to end
        print(f"worker: attempt {next_attempt.name} of this job has begun, so that this one is over", flush=True)
        os._exit(ExitCode.ORPHANED)


def process_start() -> float:
    """When the kernel started this process, as :func:`time.monotonic` (to 10 ms); now, where it does not say."""
    now = time.monotonic()
    stat = process_stat("self")
    if stat is None:
        return now
    since_boot = stat.start_ticks / os.sysconf("SC_CLK_TCK")
    try:
        return now - max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot)
    except (OSError, AttributeError):
        return now
