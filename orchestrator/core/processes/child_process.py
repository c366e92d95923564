"""Processes that this program starts: in a session of their own, in a folder that exists, and
reaped with their process group.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sysconfig
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeAlias

from orchestrator.core.front_end import inherited_front_end
from orchestrator.core.paths import current_directory
from orchestrator.core.processes import environment_variables as variables

PACKAGE_PARENT = str(Path(__file__).resolve().parents[3])
PACKAGE_IS_INSTALLED = PACKAGE_PARENT in (
    sysconfig.get_path("purelib"),
    sysconfig.get_path("platlib"),
)

Stream: TypeAlias = IO[bytes] | int
"""A file that is open, its descriptor, or a constant of :mod:`subprocess`."""


def spawn(
    command: Sequence[str],
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    stdin: Stream = subprocess.DEVNULL,
    stdout: Stream | None = subprocess.DEVNULL,
    stderr: Stream | None = subprocess.DEVNULL,
    inherited: Collection[int] = (),
    cpus: Collection[int] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process that leads a session of its own: Ctrl-C in a terminal does not reach it, and
    :func:`end_group` ends it with what it has started.

    :param folder: its working directory; None: that of this process.
    :param environment: all its variables; None: those of this process.
    :param stdout: None: that of this process, as with ``stderr``.
    :param inherited: descriptors that it inherits besides the standard streams.
    :param cpus: CPUs to which it and its children are confined; None: those of this process.
    :raises OSError: it cannot be started, or not be confined to ``cpus``.
    """
    popen = subprocess.Popen(
        command,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        cwd=folder,
        env=environment,
        pass_fds=tuple(inherited),
        start_new_session=True,
    )
    if cpus is not None:
        _confine(popen, cpus)
    return popen


def _confine(popen: subprocess.Popen[bytes], cpus: Collection[int]) -> None:
    """Confine a process that has just been started to ``cpus``; end it where that fails.

    :raises OSError: it cannot be confined to them.
    """
    try:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(popen.pid, cpus)
    except OSError:
        with popen:  # which closes its streams
            end_group(popen)
        raise


@dataclass(slots=True)
class ForkedProcess:
    """A child of this process that it has not started itself, with what is used here of
    :class:`subprocess.Popen`.
    """

    pid: int
    returncode: int | None = None

    def wait(self) -> int:
        if self.returncode is None:
            try:
                _, status = os.waitpid(self.pid, 0)
                self.returncode = os.waitstatus_to_exitcode(status)
            except ChildProcessError:
                # Other code in this process has reaped it. As Popen has it then:
                self.returncode = 0
        return self.returncode


def working_directory(substitute: Path) -> Path | None:
    """For a child process: None, so that it has that of this process; ``substitute`` where that has
    been removed.
    """
    return substitute if current_directory() is None else None


def has_ended(pid: int) -> bool:
    """Whether a child of this process has ended, without reaping it."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
    except ChildProcessError:  # other code in this process has reaped it
        return True


def end_group(popen: subprocess.Popen[bytes] | ForkedProcess) -> int:
    """Kill the process group that ``popen`` leads, and reap ``popen``. Returns the exit code. May
    be called again.
    """
    if popen.returncode is None:
        kill_group(popen.pid)  # before it is reaped: until then its pid is not reused
    return popen.wait()


def kill_group(leader: int) -> None:
    """Kill the process group that ``leader`` leads."""
    with contextlib.suppress(ProcessLookupError):  # all have ended, and somebody has reaped them
        os.killpg(leader, signal.SIGKILL)


def send_signal(pid: int, number: int) -> None:
    """Send a signal to a process, without reaping it as :meth:`subprocess.Popen.send_signal` may."""
    with contextlib.suppress(ProcessLookupError):  # it has ended, and somebody has reaped it
        os.kill(pid, number)


def child_environment(**more: str) -> dict[str, str]:
    """Of a process of this program that is no worker: one thread, and sets in the same order each
    time it is started.

    A user's function that makes robots and iterates over a set would otherwise make another one the
    next time.
    """
    settings = variables.worker_thread_settings(1)
    own = {**settings, **package_path(), **inherited_front_end(), "PYTHONHASHSEED": "0"}
    return {**os.environ, **own, **more}


def package_path() -> dict[str, str]:
    """PYTHONPATH for a child process, where this package is not installed."""
    if PACKAGE_IS_INSTALLED:
        return {}
    folders = [PACKAGE_PARENT]
    if of_this_process := os.environ.get("PYTHONPATH"):
        folders.append(of_this_process)
    return {"PYTHONPATH": os.pathsep.join(folders)}
