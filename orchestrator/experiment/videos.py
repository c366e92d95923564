"""Videos of trained policies, made by child processes: one for ``play``, all that are missing after a run.

They are made when all training is over, because rendering would take cores from it. A failure is a warning and
changes nothing else; running the same `run` command again makes the missing videos.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from orchestrator.core.environment import CHANNEL_VARIABLE, worker_thread_settings
from orchestrator.core.errors import OrchestratorError, UsageError
from orchestrator.core.job import Job, State, Succeeded
from orchestrator.core.paths import JobPaths, RunPaths
from orchestrator.core.text import count, last_line
from orchestrator.executors.process import end_group, has_ended, package_path
from orchestrator.machine.slots import Slot, SlotPool
from orchestrator.supervisor.events import Reporter

TIME_LIMIT_S = 900.0
POLL_INTERVAL_S = 0.1
SOFTWARE_RENDERER = {"LP_NUM_THREADS": "0"}
"""Mesa's setting for rendering in the process's own thread, beside other processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayRequest:
    """Which policy to play, and how."""

    checkpoint: str | None = None
    """env_steps of one of the job's checkpoints, ``latest``, or a file; None for the finished policy."""
    interactive: bool = False
    """In a window if there is a display, otherwise as video and film strip."""
    seconds: float | None = None
    episodes: int | None = None
    seed: int = 0
    stochastic: bool = False
    output: Path | None = None
    """Folder for video and film strip; None for the job's own."""

    def arguments(self) -> list[str]:
        """The command line arguments of :mod:`orchestrator.worker.rendering.play`."""
        flags = [f"--{name}" for name in ("interactive", "stochastic") if getattr(self, name)]
        valued = ("checkpoint", "seconds", "episodes", "seed", "output")
        return flags + [f"--{name}={getattr(self, name)}" for name in valued if getattr(self, name) is not None]


def play(job: JobPaths, request: PlayRequest) -> None:
    """Play the policy of ``job``; the child prints the files it writes. :raises UsageError, OrchestratorError:"""
    with Player(job, request, quiet=False) as player:
        player.wait()
        code, message = player.end()
    if code == 2:
        raise UsageError(message)
    if code != 0:
        raise OrchestratorError(f"{job.root.name}: {message}")


def make_missing(
    paths: RunPaths,
    jobs: Sequence[Job],
    states: Mapping[str, State],
    slots: SlotPool,
    reporter: Reporter,
    stopped: Callable[[], bool],
) -> None:
    """Make the missing videos of jobs that have succeeded, each on its own CPU, until ``stopped`` says True."""
    due = [
        job.job_id
        for job in jobs
        if job.spec.video and isinstance(states[job.job_id], Succeeded) and is_due(paths.job(job.job_id))
    ]
    if not due:
        return
    reporter.event("pictures", f"making {count(len(due), 'video')}", jobs=due)
    with contextlib.ExitStack() as stack:
        _make(deque(due), paths, slots, reporter, stopped, stack)


def is_due(job: JobPaths) -> bool:
    """Whether video or film strip are missing, or older than the policy."""
    model, *pictures = (path.stat().st_mtime_ns if path.exists() else 0 for path in (job.model, job.video, job.preview))
    return min(pictures) < model


def _make(
    waiting: deque[str],
    paths: RunPaths,
    slots: SlotPool,
    reporter: Reporter,
    stopped: Callable[[], bool],
    stack: contextlib.ExitStack,
) -> None:
    running: dict[str, tuple[Player, Slot]] = {}
    while waiting or running:
        if stopped():
            missing = count(len(waiting) + len(running), "video")
            text = f"stopped; {missing} not made: run the same command again to make them"
            reporter.event("warning", text, jobs=[*running, *waiting])
            return
        while waiting and (slot := slots.acquire(1)) is not None:
            job_id = waiting.popleft()
            try:
                player = stack.enter_context(Player(paths.job(job_id), PlayRequest(), quiet=True, cpus=slot.cpus))
            except OSError as error:
                slots.release(slot)
                reporter.event("warning", f"{job_id}: no video: {error.strerror or error}", job_id=job_id)
            else:
                running[job_id] = player, slot
        for job_id, (player, slot) in list(running.items()):
            late = time.monotonic() - player.started > TIME_LIMIT_S
            if not (late or player.has_ended()):
                continue
            code, message = player.end()
            slots.release(slot)
            del running[job_id]
            if code == 0:
                reporter.event("pictured", f"{job_id}: {paths.job(job_id).video}", job_id=job_id)
            else:
                why = f"took more than {TIME_LIMIT_S:.0f} s" if late else message
                reporter.event("warning", f"{job_id}: no video: {why}", job_id=job_id)
        if running:
            time.sleep(POLL_INTERVAL_S)


class Player:
    """A child process that plays a policy, in its own session. It ends with this process and with the ``with`` block.

    :param quiet: discard its output instead of passing it on. Errors are kept for :meth:`end` in either case.
    :param cpus: the CPUs it is bound to; None for all.
    """

    def __init__(
        self, job: JobPaths, request: PlayRequest, *, quiet: bool, cpus: tuple[int, ...] | None = None
    ) -> None:
        self.started = time.monotonic()
        with contextlib.ExitStack() as undo:
            self._errors: IO[bytes] = undo.enter_context(tempfile.TemporaryFile())
            self._channel, theirs = socket.socketpair()
            undo.callback(self._channel.close)
            with theirs:
                self._popen = subprocess.Popen(
                    [sys.executable, "-m", "orchestrator.worker.rendering.play", str(job.root), *request.arguments()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL if quiet else None,
                    stderr=self._errors,
                    start_new_session=True,
                    pass_fds=[theirs.fileno()],
                    env={
                        **os.environ,
                        **worker_thread_settings(1),
                        **(SOFTWARE_RENDERER if cpus is not None else {}),
                        "CUDA_VISIBLE_DEVICES": "",
                        "PYTHONHASHSEED": "0",
                        CHANNEL_VARIABLE: str(theirs.fileno()),
                        **package_path(),
                    },
                )
            if cpus is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(self._popen.pid, cpus)
            undo.pop_all()

    def __enter__(self) -> Player:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def wait(self) -> None:
        """Wait until it has ended, without reaping it."""
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOWAIT)

    def has_ended(self) -> bool:
        return has_ended(self._popen.pid)

    def end(self) -> tuple[int, str]:
        """Kill what still runs of it; returns exit code and last line of its errors. May be called again."""
        code = end_group(self._popen)
        self._channel.close()
        if self._errors.closed:
            return code, ""
        with self._errors:
            self._errors.seek(0)
            text = self._errors.read().decode(errors="replace")
        return code, f"ended with signal {-code}" if code < 0 else last_line(text, f"ended with exit code {code}")
