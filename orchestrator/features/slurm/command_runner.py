"""Commands of Slurm, each run beside the supervisor's loop: a controller that is down lets them
hang for a minute.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.core.processes.child_process import end_group, spawn
from orchestrator.core.text import last_line

PATIENCE_S = 60.0
NOT_STARTED = "cannot be started now"
TRANSIENT = (
    "contact",
    "timed out",
    "temporar",
    "did not answer",
    "connect",
    "not responding",
    "standby mode",
    NOT_STARTED,
)
"""What errors say when there is no answer of the controller, rather than a refusal."""
IGNORED = ("SBATCH_", "SQUEUE_", "SCANCEL_", "SACCT_", "SLURM_CLUSTERS")
"""How variables begin that would change what is asked: sbatch prefers them to its script, and
squeue hides jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandAnswer:
    returncode: int
    output: str
    errors: str

    @property
    def problem(self) -> str:
        """The last line of its errors."""
        return last_line(self.errors, f"exit code {self.returncode}").removeprefix(
            "sbatch: error: "
        )

    @property
    def is_transient(self) -> bool:
        """Whether the controller did not answer, rather than refuse."""
        text = self.errors.lower()
        return any(words in text for words in TRANSIENT)


class SlurmCommand:
    """A command that runs, for at most ``patience_s``."""

    def __init__(self, *command: str, patience_s: float = PATIENCE_S) -> None:
        self.began = time.monotonic()
        self._command = command
        self._patience_s = patience_s
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(IGNORED)
        }
        self._popen: subprocess.Popen[bytes] | None = None
        self._problem = ""
        try:
            self._start(environment)
        except OSError as error:  # such as no process or file descriptor left
            self._problem = f"{command[0]}: {NOT_STARTED}: {error}"

    def _start(self, environment: Mapping[str, str]) -> None:
        """:raises OSError: it cannot be started."""
        with contextlib.ExitStack() as stack:
            self._output = stack.enter_context(tempfile.TemporaryFile())
            self._errors = stack.enter_context(tempfile.TemporaryFile())
            self._popen = spawn(
                self._command, environment=environment, stdout=self._output, stderr=self._errors
            )
            self._stack = stack.pop_all()

    def answer(self) -> CommandAnswer | None:
        """What it has answered; None while it runs. Asked once after that."""
        if self._popen is None:
            return CommandAnswer(returncode=1, output="", errors=self._problem)
        if self._popen.poll() is None and time.monotonic() - self.began < self._patience_s:
            return None
        is_late = self._popen.returncode is None
        if is_late:
            end_group(self._popen)
        with self._stack:
            texts = []
            for file in (self._output, self._errors):
                file.seek(0)
                texts.append(file.read().decode(errors="replace"))
        late = (
            f"{self._command[0]}: did not answer within {self._patience_s:.0f} s" if is_late else ""
        )
        return CommandAnswer(
            returncode=self._popen.returncode, output=texts[0], errors=texts[1] + late
        )

    def wait(self) -> CommandAnswer:
        """Its answer, when it has ended."""
        while (answer := self.answer()) is None:
            with contextlib.suppress(subprocess.TimeoutExpired):  # its patience is looked at
                assert self._popen is not None
                self._popen.wait(1.0)
        return answer
