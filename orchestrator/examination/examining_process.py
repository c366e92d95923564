"""One process that examines robots, as who asks it sees it."""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import IO

from orchestrator.core.exit_codes import how_it_ended
from orchestrator.core.files.temporary_folder import TemporaryFolder
from orchestrator.core.messages import ExaminationAnswer, ExaminationRequest
from orchestrator.core.processes.address_space import with_address_limit
from orchestrator.core.processes.child_process import (
    child_environment,
    end_group,
    has_ended,
    spawn,
    working_directory,
)
from orchestrator.core.processes.parent_death import command_of_child
from orchestrator.core.processes.readable import readable
from orchestrator.core.text import last_line


class Child:
    """One examining process, in a session of its own: the processes that it starts end with it.

    It imports MuJoCo at once, the slowest part of an examination.
    """

    def __init__(self) -> None:
        self._deadline = math.inf
        self._limit_s = math.inf
        self._search_path: str | None = None
        self._text = b""
        self._err: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed on exit
        self._folder = TemporaryFolder()
        self._popen = spawn(
            command_of_child("orchestrator.worker.robots.preflight_child"),
            folder=working_directory(Path(self._folder.name)),
            # It is removed even when the process is killed.
            environment=child_environment(TMPDIR=self._folder.name),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._err,
        )

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it. May be called again."""
        end_group(self._popen)
        for file in (self._popen.stdin, self._popen.stdout, self._err):
            if file is not None:
                with contextlib.suppress(BrokenPipeError):  # what it has not read
                    file.close()
        self._folder.cleanup()

    def fileno(self) -> int:
        assert self._popen.stdout is not None
        return self._popen.stdout.fileno()

    def suits(self, request: ExaminationRequest) -> bool:
        """Whether the user's modules it may have imported come from the search path of
        ``request``.
        """
        return request.search_path is None or self._search_path in (None, request.search_path)

    def ask(self, request: ExaminationRequest, time_limit_s: float) -> None:
        self._limit_s = time_limit_s
        self._deadline = time.monotonic() + time_limit_s
        self._search_path = request.search_path or self._search_path
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended; :meth:`answer` says why
            self._popen.stdin.write(request.to_line())
            self._popen.stdin.flush()

    def answer(self, *, can_be_read: bool) -> ExaminationAnswer | None:
        """Return the answer, or one with the cause ``process`` if there will be none; None while
        there is neither.
        """
        ended = has_ended(self._popen.pid)
        if ended and not can_be_read:  # it may have answered and ended since
            can_be_read = bool(readable([self]))
        if can_be_read:
            self._text += os.read(self.fileno(), 1 << 20)
        line, newline, rest = self._text.partition(b"\n")
        if newline:
            self._text = rest
            return ExaminationAnswer.from_line(line)
        is_late = time.monotonic() > self._deadline
        if not (ended or is_late):
            return None
        returncode = end_group(self._popen)
        problem = f"examining it took more than {self._limit_s:g} s"
        if ended:
            self._err.seek(0)
            last = last_line(self._err.read()[-2000:].decode(errors="replace"), "")
            reason = f": {last}" if last else ""
            ended_with = f"examining it ended with {how_it_ended(returncode)}{reason}"
            problem = with_address_limit(ended_with)
        return ExaminationAnswer(
            problem=problem, cause="process", is_late=not ended, process_exits=True
        )
