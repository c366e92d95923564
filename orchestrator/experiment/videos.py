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
from orchestrator.core.job import State, Succeeded
from orchestrator.core.paths import JobPaths, RunPaths
from orchestrator.core.regular_files import read_regular
from orchestrator.core.robot_hash import altered_since_training
from orchestrator.core.text import count, last_line
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.executors.process import end_group, has_ended, package_path, working_directory
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
    with Player(job, request) as player:
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, player.pid, os.WEXITED | os.WNOWAIT)
        code, message = player.end()
    if code == 2:
        raise UsageError(message)
    if code != 0:
        raise OrchestratorError(f"{job.root.name}: {message}")


def robot_warning(job: JobPaths) -> str | None:
    """Says so if the robot in the job directory is not the one that the policy was trained with."""
    with contextlib.suppress(OSError, ValueError, TypeError):  # whoever plays it reports what cannot be read
        return altered_since_training(job, WorkerSpec.from_json(read_regular(job.spec)).xml)
    return None


def make_missing(
    paths: RunPaths,
    wanted: Sequence[str],
    states: Mapping[str, State],
    slots: SlotPool,
    reporter: Reporter,
    stopped: Callable[[], bool],
) -> None:
    """Make the missing videos of jobs that have succeeded, each on its own CPU, until ``stopped`` says True.

    :param wanted: ids of the jobs of which a video is wanted.
    """
    succeeded = [job_id for job_id in wanted if isinstance(states[job_id], Succeeded)]
    waiting = deque(job_id for job_id in succeeded if is_due(paths.job(job_id)))
    if waiting:
        with contextlib.suppress(OSError):  # it only makes other commands answer better
            paths.only_videos.touch()
        reporter.event("pictures", f"making {count(len(waiting), 'video')}", jobs=list(waiting))
    running: dict[str, tuple[Player, Slot]] = {}
    with contextlib.ExitStack() as players:
        while waiting or running:
            if stopped():
                missing = count(len(waiting) + len(running), "video")
                text = f"stopped before {missing} could be made; run the same command again to make the rest"
                reporter.event("warning", text, jobs=[*running, *waiting])
                return
            while waiting and (slot := slots.acquire(1)) is not None:
                job_id = waiting.popleft()
                if (warning := robot_warning(paths.job(job_id))) is not None:
                    reporter.event("warning", f"{job_id}: {warning}", job_id=job_id)
                try:
                    player = players.enter_context(Player(paths.job(job_id), PlayRequest(), cpus=slot.cpus))
                except OSError as error:
                    slots.release(slot)
                    reporter.event("warning", f"{job_id}: no video: {error.strerror or error}", job_id=job_id)
                else:
                    running[job_id] = player, slot
            for job_id, (player, slot) in list(running.items()):
                late = time.monotonic() - player.started > TIME_LIMIT_S
                if not (late or has_ended(player.pid)):
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


def is_due(job: JobPaths) -> bool:
    """Whether video or film strip are missing, or older than the policy."""
    model, *pictures = (path.stat().st_mtime_ns if path.exists() else 0 for path in (job.model, job.video, job.preview))
    return min(pictures) < model


class Player(contextlib.AbstractContextManager["Player"]):
    """A child process that plays a policy, in its own session. It ends with this process and with the ``with`` block.

    :param cpus: the CPUs it is bound to, with its output discarded; None for all, with its output passed on.
    """

    def __init__(self, job: JobPaths, request: PlayRequest, cpus: tuple[int, ...] | None = None) -> None:
        self.started = time.monotonic()
        environment = {**os.environ, **worker_thread_settings(1), **package_path()}
        environment |= {"CUDA_VISIBLE_DEVICES": "", "PYTHONHASHSEED": "0"}
        if cpus is not None:
            environment |= SOFTWARE_RENDERER
        with contextlib.ExitStack() as undo:
            self._errors: IO[bytes] = undo.enter_context(tempfile.TemporaryFile())
            self._channel, theirs = socket.socketpair()
            undo.callback(self._channel.close)
            with theirs:
                self._popen = subprocess.Popen(
                    [sys.executable, "-m", "orchestrator.worker.rendering.play", str(job.root), *request.arguments()],
                    stdin=subprocess.DEVNULL,
                    stdout=None if cpus is None else subprocess.DEVNULL,
                    stderr=self._errors,
                    cwd=working_directory(job.root),
                    start_new_session=True,
                    pass_fds=[theirs.fileno()],
                    env=environment | {CHANNEL_VARIABLE: str(theirs.fileno())},
                )
            self.pid = self._popen.pid
            if cpus is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(self.pid, cpus)
            undo.pop_all()

    def __exit__(self, *_: object) -> None:
        self.end()

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
