"""Child processes in which a trained policy is used, as by ``play``: they alone load torch,
MuJoCo, the policy.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, ClassVar, Protocol

from orchestrator.core.errors import OrchestratorError, UsageError
from orchestrator.core.exit_codes import how_it_ended
from orchestrator.core.files.regular_files import read_regular
from orchestrator.core.paths import JobPaths
from orchestrator.core.processes.child_process import (
    child_environment,
    end_group,
    has_ended,
    spawn,
    working_directory,
)
from orchestrator.core.processes.environment_variables import CHANNEL_VARIABLE
from orchestrator.core.processes.parent_death import command_of_child
from orchestrator.core.robot_hash import altered_since_training
from orchestrator.core.text import last_line
from orchestrator.core.worker_spec import WorkerSpec

POLL_INTERVAL_S = 0.05
SOFTWARE_RENDERER = {"LP_NUM_THREADS": "0"}
"""Mesa's setting for rendering in the process's own thread, beside other processes."""


class PolicyRequest(Protocol):
    """What a child process does with the policy of a job."""

    @property
    def module(self) -> str:
        """Run with the job's directory and :meth:`arguments`."""

    def arguments(self) -> list[str]:
        """Its command line arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayRequest:
    """Which policy to play, and how."""

    module: ClassVar[str] = "orchestrator.worker.rendering.play"
    checkpoint: str | None = None
    """env_steps of one of the job's checkpoints, ``latest``, or a file; None for the finished
    policy."""
    policy: Path | None = None
    """A file with a policy, which is played instead of the job's own."""
    interactive: bool = False
    """In a window if there is a display, otherwise as a video."""
    seconds: float | None = None
    episodes: int | None = None
    seed: int = 0
    nominal: bool = False
    """Whether nothing of the job's ``randomize`` is drawn."""
    xml: Path | None = None
    """An MJCF in the place of the job's robot."""
    output: Path | None = None
    """Folder for the video; None for the job's own."""

    def arguments(self) -> list[str]:
        """The command line arguments of :attr:`module`."""
        found = [f"--{name}" for name in ("interactive", "nominal") if getattr(self, name)]
        for name in ("checkpoint", "policy", "seconds", "episodes", "seed", "xml", "output"):
            value = getattr(self, name)
            if value is not None:
                found.append(f"--{name}={value}")
        return found


def use(job: JobPaths, request: PolicyRequest) -> None:
    """Do with the policy of ``job`` what is asked; the child prints the files it writes.

    :raises UsageError, OrchestratorError:
    """
    with PolicyProcess(job, request) as process:
        code, message = process.wait()
    if code == 2:
        raise UsageError(message)
    if code != 0:
        raise OrchestratorError(f"{job.root.name}: {message}")


def robot_warning(job: JobPaths) -> str | None:
    """Says so if the robot in the job directory is not the one that the policy was trained with."""
    # Whoever plays the policy reports what cannot be read.
    with contextlib.suppress(OSError, ValueError):
        return altered_since_training(job, WorkerSpec.from_json(read_regular(job.spec)).xml)
    return None


class PolicyProcess(contextlib.AbstractContextManager["PolicyProcess"]):
    """A child process that uses a policy, in its own session.

    It ends with this process and with the ``with`` block.

    :param cpus: the CPUs it is bound to, with its output discarded; None for all.
    :param is_quiet: whether its output is discarded; otherwise it is passed on.
    """

    def __init__(
        self,
        job: JobPaths,
        request: PolicyRequest,
        cpus: tuple[int, ...] | None = None,
        *,
        is_quiet: bool = False,
    ) -> None:
        self.started = time.monotonic()
        environment = child_environment(CUDA_VISIBLE_DEVICES="")
        is_quiet = is_quiet or cpus is not None
        if is_quiet:
            environment |= SOFTWARE_RENDERER
        with contextlib.ExitStack() as undo:
            self._errors: IO[bytes] = undo.enter_context(tempfile.TemporaryFile())
            self._channel, theirs = socket.socketpair()
            undo.callback(self._channel.close)
            with theirs:
                self._popen = spawn(
                    command_of_child(request.module, str(job.root), *request.arguments()),
                    folder=working_directory(job.root),
                    environment=environment | {CHANNEL_VARIABLE: str(theirs.fileno())},
                    stdout=subprocess.DEVNULL if is_quiet else None,
                    stderr=self._errors,
                    inherited=[theirs.fileno()],
                    cpus=cpus,
                )
            self.pid = self._popen.pid
            undo.pop_all()

    def __exit__(self, *_: object) -> None:
        self.end()

    def wait(self) -> tuple[int, str]:
        """Wait for its end; returns what :meth:`end` returns."""
        # A Ctrl-C that came just before a wait without an end would be lost.
        while not has_ended(self.pid):
            time.sleep(POLL_INTERVAL_S)
        return self.end()

    def end(self) -> tuple[int, str]:
        """Kill what still runs of it; returns exit code and last line of its errors. May be called
        again.
        """
        code = end_group(self._popen)
        self._channel.close()
        if self._errors.closed:
            return code, ""
        with self._errors:
            self._errors.seek(0)
            text = self._errors.read().decode(errors="replace")
        ended = f"ended with {how_it_ended(code)}"
        return code, ended if code < 0 else last_line(text, ended)
