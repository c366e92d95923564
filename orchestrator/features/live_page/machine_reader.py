"""The process that looks at the experiments of all users for `serve --all-users`.

    python -m orchestrator.features.live_page.machine_reader

answers each line with a line of :class:`MachineLook`. It has a single thread, so that it may fork for
each user as `list --all-users` does; a server has several.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from dataclasses import dataclass

from orchestrator.core.errors import OrchestratorError
from orchestrator.core.messages import JsonLine
from orchestrator.core.processes.child_process import end_group, package_path, spawn
from orchestrator.experiment.from_outside import machine_runs
from orchestrator.experiment.from_outside.machine_runs import LateUsers, MachineRuns

COMMAND = (sys.executable, "-P", "-m", "orchestrator.features.live_page.machine_reader")
"""``-P``: nothing is imported from the current folder, which may be another user's."""
ASK = b"\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineLook(JsonLine):
    """What the process has found."""

    found: MachineRuns
    cpu_s: float
    """CPU seconds of the process, and of those that it has started, for this look."""


class MachineReader:
    """The process as the server sees it; it is started at the first look."""

    def __init__(self) -> None:
        self._popen: subprocess.Popen[bytes] | None = None

    def look(self) -> MachineLook:
        """:raises OrchestratorError: the process has ended, or has answered wrongly; the next look
        starts another one.
        """
        try:
            popen = self._popen or self._start()
            assert popen.stdin is not None
            assert popen.stdout is not None
            popen.stdin.write(ASK)
            popen.stdin.flush()
            line = popen.stdout.readline()
        except (OSError, ValueError):  # ValueError: another thread has closed it
            line = b""
        if not line:
            raise self._replaced("has ended")
        try:
            return MachineLook.from_line(line)
        except ValueError as error:
            raise self._replaced(f"has answered wrongly ({error})") from error

    def _replaced(self, what: str) -> OrchestratorError:
        """End the process. Returns an error that says what it has done."""
        self.close()
        process = "the process that looks at the experiments of all users"
        return OrchestratorError(f"{process} {what}; another one is started")

    def _start(self) -> subprocess.Popen[bytes]:
        self._popen = spawn(
            COMMAND,
            environment={**os.environ, **package_path()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None,
        )
        return self._popen

    def close(self) -> None:
        """End the process, also while another thread looks. May be called again."""
        popen, self._popen = self._popen, None
        if popen is None:
            return
        end_group(popen)
        for stream in (popen.stdin, popen.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):  # what it has not read
                stream.close()


def _cpu_s() -> float:
    return sum(os.times()[:4])


def main() -> None:
    late = LateUsers()
    for _ in sys.stdin.buffer:
        before_s = _cpu_s()
        found = machine_runs.all_runs(late)
        look = MachineLook(found=found, cpu_s=_cpu_s() - before_s)
        sys.stdout.buffer.write(look.to_line())
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
