"""The template process: it has imported what workers import, and forks one on order, in
milliseconds.

A forked worker is a child of this process, as one that is exec'ed: it is watched, killed and reaped
in the same way, and lives on when its template is killed. An order that is not carried out leaves
no process, and says why.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from orchestrator.core.messages import ForkAnswer, ForkOrder
from orchestrator.core.paths import current_directory
from orchestrator.core.processes.child_process import (
    ForkedProcess,
    has_ended,
    kill_group,
    send_signal,
    spawn,
    working_directory,
)
from orchestrator.core.processes.environment_variables import TOKEN_VARIABLE
from orchestrator.core.processes.readable import readable
from orchestrator.executors import worker_process
from orchestrator.executors.launcher import Launch
from orchestrator.executors.worker_process import Started

TEMPLATE_COMMAND = (sys.executable, "-m", "orchestrator.worker.template")
TOKEN_BYTES = 512
"""Length of the template's token, in whose place a forked worker writes its own."""
IMPORT_PATIENCE_S = 60.0
"""How long launches wait for a template that imports its packages; after that, workers are exec'ed
until it has.

They wait because an exec'ed worker would make the same imports, which take at least as long beside
those of the template. The limit is for imports that hang."""
FORK_PATIENCE_S = 2.0
"""A template that does not fork a worker within this time is replaced: a fork takes some 8 ms of an
idle core."""
KILL_PATIENCE_S = 2.0
"""How long the end of a killed process is waited for; one that waits for a file system that hangs
does not end."""
MOST_FAILURES = 3
"""After so many failures in a row, or hangs altogether, no further template is started."""
CHUNK = 1 << 16
ANY_LAUNCH = Launch(job_id="", number=0, job_dir=Path("/"), cpus=(), gpus=(), threads=1)
"""What the template is started for; each worker's own environment is part of its order."""


@dataclass(slots=True, kw_only=True)
class WorkerTemplate:
    """Starts the template process when it is first needed, and again when it was lost; it ends with
    this process.

    :param command: the command of the template, to which the number of its socket is appended.
    :param token: of this supervisor; every process with it is killed when the supervisor is gone.
    """

    command: Sequence[str]
    token: str
    _popen: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _control: socket.socket | None = field(default=None, init=False)
    _environment: Mapping[str, str] = field(default_factory=dict, init=False)
    """That of the running template."""
    _wait_until: float = field(default=0.0, init=False)
    """Until then launches wait for the imports of the running template (monotonic seconds)."""
    _is_ready: bool = field(default=False, init=False)
    _failures: int = field(default=0, init=False)
    """Templates that have ended since a worker was last forked."""
    _hangs: int = field(default=0, init=False)
    """Each has made the supervisor wait."""
    _kills: int = field(default=0, init=False)
    """Templates that others have killed, not yet returned by :meth:`take_kills`."""
    _refused: str | None = field(default=None, init=False)
    """Why no template is started any more."""

    def prepare(self, added: Mapping[str, str | None]) -> bool:
        """Start a template where there is none. Returns at once whether :meth:`fork` would not wait
        for its imports.

        :param added: variables set in its environment; None removes one.
        """
        self._look_after(added)
        return self._is_ready or self._refused is not None or time.monotonic() >= self._wait_until

    def wait(self, timeout_s: float) -> None:
        """Until the template has imported its packages, or has ended; where none imports, for the
        whole time.
        """
        awaited = [] if self._control is None or self._is_ready else [self._control]
        if readable(awaited, timeout_s):
            self._take_answer()  # else the next call would not wait for anything

    def fork(
        self, launch: Launch, log: IO[bytes], *, token: str, added: Mapping[str, str | None]
    ) -> Started | str:
        """Fork a worker, which then waits for a byte on its channel. Returns why it has to be
        exec'ed, if it has to.

        Where :meth:`prepare` was not called before, it waits until the template has imported its
        packages.
        """
        if (why := self._make_ready(added)) is not None:
            return why
        variables = worker_process.worker_environment(
            launch, 0, channel=None, token=token, added=added
        )
        ours = self._order(launch, log, variables)
        found = _await_worker(ours)
        if isinstance(found, _NoneReady) and (found.pid is None or found.hangs):
            self._replace_process(hangs=found.hangs)
        if isinstance(found, _NoneReady) and found.pid is None:
            found = _await_worker(ours)  # one that it has forked last
        if isinstance(found, _Ready):
            self._failures = 0
            return ForkedProcess(found.pid), ours
        ours.close()
        if isinstance(found, _Refused):
            return f"the template process: {found.problem}"
        if found.pid is None:
            return "the template process has ended or hangs"
        send_signal(found.pid, signal.SIGKILL)
        _reap(found.pid)
        return "the process that was forked has ended or hangs"

    def _order(self, launch: Launch, log: IO[bytes], variables: Mapping[str, str]) -> socket.socket:
        """Order a worker from a template that is ready. Returns our end of the channel of the
        worker, on which template and worker answer.
        """
        assert self._control is not None
        changed = {
            name: variables.get(name)
            for name in variables.keys() | self._environment.keys()
            if variables.get(name) != self._environment.get(name)
        }
        order = ForkOrder(
            arguments=(str(launch.job_dir), str(launch.number)),
            environment=changed,
            directory=str(current_directory() or launch.job_dir),
            parent=os.getpid(),
        )
        ours, theirs = socket.socketpair()
        with theirs, contextlib.suppress(OSError):  # it has ended; the channel says so, too
            socket.send_fds(self._control, [order.to_line()], [log.fileno(), theirs.fileno()])
        return ours

    def take_kills(self) -> int:
        """Number of templates that others have killed since the last call, as the kernel does when
        memory runs out.
        """
        if self._popen is not None and has_ended(self._popen.pid):
            self._replace_process()
        kills = self._kills
        self._kills = 0
        return kills

    def close(self) -> None:
        """Kill the template process. May be called again."""
        if self._popen is None or self._control is None:
            return
        kill_group(self._popen.pid)
        # The next process that is started reaps it.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(KILL_PATIENCE_S)
        _reap(-self._popen.pid)  # workers that were forked and have no session yet
        self._control.close()
        self._popen = None
        self._control = None
        self._is_ready = False

    def _make_ready(self, added: Mapping[str, str | None]) -> str | None:
        """Start a template where there is none, and wait for its imports. Returns why no worker
        can be forked now; None if one can.
        """
        self._look_after(added)
        if self._control is not None and not self._is_ready:
            readable([self._control], max(0.0, self._wait_until - time.monotonic()))
            self._take_answer()
        if self._refused is not None:
            return f"the template process: {self._refused}"
        if self._is_ready:
            return None
        if self._control is None:
            return "the template process has ended"
        return "the template process is still importing its packages"

    def _look_after(self, added: Mapping[str, str | None]) -> None:
        """Start a template where there is none, and take note of its answer if it has imported its
        packages.
        """
        if self._popen is None:
            if self._refused is None:
                self._start(added)
            return
        if not self._is_ready:
            self._take_answer()

    def _take_answer(self) -> None:
        """Take note of what the template says of its imports, if it has said it, and of its end."""
        assert self._control is not None
        self._control.setblocking(False)
        try:
            line = self._control.recv(CHUNK)
        except BlockingIOError:
            return
        except ConnectionResetError:
            line = b""
        if not line:
            self._replace_process()
            return
        self._refused = ForkAnswer.from_line(line).problem
        self._is_ready = self._refused is None
        self._control.settimeout(FORK_PATIENCE_S)
        if self._refused is not None:
            self.close()

    def _start(self, added: Mapping[str, str | None]) -> None:
        variables = worker_process.worker_environment(
            ANY_LAUNCH, 0, channel=None, token=self.token, added=added
        )
        mark = "template".ljust(TOKEN_BYTES - len(self.token) - 1, "-")
        self._environment = {**variables, TOKEN_VARIABLE: f"{self.token}/{mark}"}
        try:
            self._popen, self._control = self._spawn()
        except OSError as error:
            self._refused = f"it could not be started ({error})"
        else:
            self._wait_until = time.monotonic() + IMPORT_PATIENCE_S

    def _spawn(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        """A new template process, and our end of its socket.

        :raises OSError: it could not be started, or no descriptor is left.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                popen = spawn(
                    [*self.command, str(theirs.fileno())],
                    folder=working_directory(Path("/")),
                    environment=self._environment,
                    inherited=[theirs.fileno()],
                )
        except OSError:
            ours.close()
            raise
        return popen, ours

    def _replace_process(self, *, hangs: bool = False) -> None:
        """Replace a template that has ended or hangs, unless that has happened too often."""
        template = self._popen
        self.close()
        if hangs:
            self._hangs += 1
        else:
            self._failures += 1
            self._kills += template is not None and template.returncode == -signal.SIGKILL
        if self._hangs >= MOST_FAILURES:
            self._refused = f"it hung {MOST_FAILURES} times"
        elif self._failures >= MOST_FAILURES:
            self._refused = f"it ended {MOST_FAILURES} times in a row"


@dataclass(frozen=True, slots=True)
class _Ready:
    """A worker was forked, and waits for a byte on its channel."""

    pid: int


@dataclass(frozen=True, slots=True)
class _Refused:
    """The template forks no worker."""

    problem: str | None


@dataclass(frozen=True, slots=True)
class _NoneReady:
    """The template, or the worker that it has forked, has ended or hangs."""

    pid: int | None
    """Of the worker; None where nothing is known of one."""
    hangs: bool
    """Whether neither has ended."""


def _await_worker(channel: socket.socket) -> _Ready | _Refused | _NoneReady:
    """What has become of an order, by what template and worker say on the channel of the worker, as
    far as they do in time.
    """
    pid: int | None = None
    until = time.monotonic() + FORK_PATIENCE_S
    while True:
        channel.settimeout(max(0.0, until - time.monotonic()))
        try:
            chunk = channel.recv(CHUNK)
        except (BlockingIOError, TimeoutError):
            return _NoneReady(pid, hangs=True)
        except OSError:  # both have ended
            return _NoneReady(pid, hangs=False)
        if not chunk:
            return _NoneReady(pid, hangs=False)
        last = ForkAnswer.from_line(chunk.splitlines()[-1])
        if last.pid is None:
            return _Refused(last.problem)
        if last.is_ready:
            return _Ready(last.pid)
        pid = last.pid


def _reap(target: int) -> None:
    """Reap a child that was killed, or with a negative number those of a process group, as far as
    they end in time.
    """
    until = time.monotonic() + KILL_PATIENCE_S
    with contextlib.suppress(ChildProcessError):  # there is none any more
        while time.monotonic() < until:
            if os.waitpid(target, os.WNOHANG)[0] == 0:
                time.sleep(0.001)
