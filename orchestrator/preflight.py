"""Robots and environments examined before anything is launched, in child processes.

MuJoCo and gymnasium are imported there, not here; a model that crashes a C library is a verdict.
Every distinct robot-and-task is examined once, however many seeds and matrix points share it, and
from the copy that its jobs will train from.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from orchestrator.contract import DISK_FULL_ERRNOS, worker_thread_settings
from orchestrator.errors import DiskFullError, Problem
from orchestrator.executors.process import package_path
from orchestrator.job import Job

TIME_LIMIT_S = 60.0
"""For one robot alone; a chunk that takes this long, and a second for each more, is taken apart."""
CHUNK = 16
"""Robots that one child examines in the time it takes to start another."""
CHECK_EVERY_S = 0.1
POLL_EVERY_S = 0.005
"""How often the end of a child is looked for where the kernel has no pidfd."""
DISK_FULL = tuple(map(os.strerror, DISK_FULL_ERRNOS))
"""How the answer ends when the robot's copy found no room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What preflight found for a job: a problem, or where its robot was staged."""

    problem: Problem | None
    bundle: Path | None = None
    """Folder with the robot's MJCF and everything it pulls in; None without a robot."""
    xml: str | None = None
    """The main file in ``bundle``."""
    robot_hash: str | None = None


def examine(
    jobs: Sequence[Job],
    *,
    staging: Path,
    at_once: int,
    warm: Child | None = None,
    check: Callable[[], None] = lambda: None,
) -> dict[str, Verdict]:
    """A verdict for every job, by ``job_id``. ``staging`` receives one folder for each distinct robot.

    :param warm: a child started earlier (see :func:`warm_up`); it is used up.
    :param check: called again and again while waiting; what it raises ends the examination.
    :raises DiskFullError: when robots could not be staged for want of space.
    """
    requests: dict[str, dict[str, Any]] = {}
    key_of: dict[str, str] = {}
    for job in jobs:
        spec = job.spec
        asked: dict[str, Any] = {
            "xml": None if job.xml_source is None else str(job.xml_source),
            "task": spec.task,
            "task_options": dict(spec.task_options),
            "env": spec.env,
            "entry_point": spec.entry_point,
            "env_kwargs": dict(spec.env_kwargs),
            "search_path": spec.search_path,
            "policy": spec.policy if spec.task is None else None,
            "use_sde": bool(spec.hyperparameters.get("use_sde", False)),
        }
        key = json.dumps(asked, sort_keys=True)
        key_of[job.job_id] = key
        if key not in requests:
            stage_to = None if job.xml_source is None else str(staging / str(len(requests)))
            requests[key] = {**asked, "where": job.where, "stage_to": stage_to}
    found = _Examination(list(requests.values()), at_once, check).answers(warm)
    answers = dict(zip(requests, found, strict=True))
    verdicts = {key: _verdict(requests[key], answer) for key, answer in answers.items()}
    return {job_id: verdicts[key] for job_id, key in key_of.items()}


def _verdict(request: Mapping[str, Any], answer: Mapping[str, Any]) -> Verdict:
    if answer["problem"] is not None:
        if answer["problem"].endswith(DISK_FULL):
            raise DiskFullError(
                f"{request['stage_to']}: no space left on the disk; make room and give the same command again"
            )
        return Verdict(problem=Problem(where=request["where"], message=answer["problem"]))
    return Verdict(
        problem=None,
        bundle=None if request["stage_to"] is None else Path(request["stage_to"]),
        xml=answer["xml"],
        robot_hash=answer["hash"],
    )


@dataclass(frozen=True, slots=True)
class _Examination:
    requests: Sequence[dict[str, Any]]
    at_once: int
    check: Callable[[], None]

    def answers(self, warm: Child | None) -> list[dict[str, Any]]:
        """In the order of the requests: in a few chunks side by side, then what broke a chunk one by one."""
        requests, at_once = self.requests, self.at_once
        answers: dict[int, dict[str, Any]] = {}
        count = min(at_once, math.ceil(len(requests) / CHUNK))
        chunks = [list(range(start, len(requests), count)) for start in range(count)]
        self._ask(chunks, answers, warm)
        left = [[index] for index in range(len(requests)) if index not in answers]
        for start in range(0, len(left), at_once):
            why = self._ask(left[start : start + at_once], answers)
            for index, message in why.items():
                answers.setdefault(index, {"problem": message})
        return [answers[index] for index in range(len(requests))]

    def _ask(
        self, chunks: Sequence[Sequence[int]], answers: dict[int, dict[str, Any]], warm: Child | None = None
    ) -> dict[int, str]:
        """One child for each chunk, all at once. Fills ``answers``; returns why the others have none."""
        why: dict[int, str] = {}
        with contextlib.ExitStack() as children:
            asked = []
            for chunk in chunks:
                child = children.enter_context(warm or Child())
                warm = None
                child.ask([self.requests[index] for index in chunk])
                asked.append((chunk, child))
            for chunk, child in asked:
                found = child.answers(self.check)
                if isinstance(found, str):
                    why.update(dict.fromkeys(chunk, found))
                else:
                    answers.update(zip(chunk, found, strict=True))
        return why


@contextlib.contextmanager
def warm_up() -> Iterator[Child]:
    """A child that imports MuJoCo while we read the job file: that is most of what an examination costs."""
    with Child() as child:
        yield child


class Child:
    """One examining process, in a session of its own so that whatever it starts ends with it."""

    def __init__(self) -> None:
        self._deadline = 0.0
        self._out: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed on exit
        self._err: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        environment = {**os.environ, **worker_thread_settings(1), **package_path()}
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "orchestrator.worker.preflight", "--warm"],
            stdin=subprocess.PIPE,
            stdout=self._out,
            stderr=self._err,
            env=environment,
            start_new_session=True,
        )

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        if self._popen.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._popen.pid, signal.SIGKILL)
            self._popen.wait()
        for file in (self._popen.stdin, self._out, self._err):
            if file is not None:
                with contextlib.suppress(BrokenPipeError):
                    file.close()

    def ask(self, requests: Sequence[dict[str, Any]]) -> None:
        self._deadline = time.monotonic() + TIME_LIMIT_S + len(requests) - 1
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died early; its exit code tells why
            self._popen.stdin.write(json.dumps(requests).encode())
            self._popen.stdin.close()

    def answers(self, check: Callable[[], None]) -> list[dict[str, Any]] | str:
        """The answers, or in words why there are none."""
        if not self._wait(check):
            return f"examining it took more than {TIME_LIMIT_S:.0f} s"
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)  # a zombie leads its group until it is waited for
        returncode = self._popen.wait()
        self._out.seek(0)
        text = self._out.read()
        if returncode == 0:
            answers: list[dict[str, Any]] = json.loads(text)
            return answers
        self._err.seek(0)
        last = self._err.read()[-2000:].decode(errors="replace").strip().splitlines()[-1:]
        how = f"signal {-returncode}" if returncode < 0 else f"exit code {returncode}"
        return f"examining it ended with {how}" + (f": {last[0]}" if last else "")

    def _wait(self, check: Callable[[], None]) -> bool:
        """Whether it ended before its deadline; it is left to be reaped."""
        with contextlib.ExitStack() as stack:
            watched = []
            if hasattr(os, "pidfd_open"):
                with contextlib.suppress(OSError):  # kernels and sandboxes without it
                    watched = [os.pidfd_open(self._popen.pid)]
                    stack.callback(os.close, watched[0])
            while os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
                if time.monotonic() > self._deadline:
                    return False
                select.select(watched, [], [], CHECK_EVERY_S if watched else POLL_EVERY_S)
                check()
        return True
