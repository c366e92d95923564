"""Robots and environments examined before anything is launched, in child processes.

MuJoCo and gymnasium are imported there, not here; a model that crashes a C library is a verdict.
Every distinct robot-and-task is examined once, however many seeds and matrix points share it, and
from the copy that its jobs will train from.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from orchestrator.contract import THREAD_VARIABLES
from orchestrator.errors import Problem
from orchestrator.executors.local import package_path
from orchestrator.job import Job

TIME_LIMIT_S = 60.0
"""For one robot alone; a chunk that takes longer is taken apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What preflight found for a job: a problem, or where its robot was staged."""

    problem: Problem | None
    bundle: Path | None = None
    """Folder with the robot's MJCF and everything it pulls in; None without a robot."""
    xml: str | None = None
    """The main file in ``bundle``."""
    robot_hash: str | None = None


def examine(jobs: Sequence[Job], *, staging: Path, at_once: int) -> dict[str, Verdict]:
    """A verdict for every job, by ``job_id``. ``staging`` receives one folder for each distinct robot."""
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
        }
        key = json.dumps(asked, sort_keys=True)
        key_of[job.job_id] = key
        if key not in requests:
            stage_to = None if job.xml_source is None else str(staging / str(len(requests)))
            requests[key] = {**asked, "where": job.where, "stage_to": stage_to}
    answers = dict(zip(requests, _ask(list(requests.values()), at_once), strict=True))
    verdicts = {key: _verdict(requests[key], answer) for key, answer in answers.items()}
    return {job_id: verdicts[key] for job_id, key in key_of.items()}


def _verdict(request: Mapping[str, Any], answer: Mapping[str, Any]) -> Verdict:
    if answer["problem"] is not None:
        return Verdict(problem=Problem(where=request["where"], message=answer["problem"]))
    return Verdict(
        problem=None,
        bundle=None if request["stage_to"] is None else Path(request["stage_to"]),
        xml=answer["xml"],
        robot_hash=answer["hash"],
    )


def _ask(requests: Sequence[dict[str, Any]], at_once: int) -> list[dict[str, Any]]:
    """Answers in the order of ``requests``: in a few chunks side by side, what breaks a chunk one by one."""
    chunks = [list(range(start, len(requests), at_once)) for start in range(min(at_once, len(requests)))]
    answers: dict[int, dict[str, Any]] = {}
    _ask_chunks(requests, chunks, answers)
    left = [[index] for index in range(len(requests)) if index not in answers]
    for start in range(0, len(left), at_once):
        why = _ask_chunks(requests, left[start : start + at_once], answers)
        for index, message in why.items():
            answers.setdefault(index, {"problem": message})
    return [answers[index] for index in range(len(requests))]


def _ask_chunks(
    requests: Sequence[dict[str, Any]], chunks: Sequence[Sequence[int]], answers: dict[int, dict[str, Any]]
) -> dict[int, str]:
    """One child for each chunk, all at once. Fills ``answers``; returns why the others have none."""
    children = [_Child([requests[index] for index in chunk]) for chunk in chunks]
    why: dict[int, str] = {}
    try:
        for chunk, child in zip(chunks, children, strict=True):
            found = child.answers()
            if isinstance(found, str):
                why.update(dict.fromkeys(chunk, found))
            else:
                answers.update(zip(chunk, found, strict=True))
    finally:
        for child in children:
            child.close()
    return why


class _Child:
    def __init__(self, requests: Sequence[dict[str, Any]]) -> None:
        self._deadline = time.monotonic() + TIME_LIMIT_S + len(requests) - 1
        self._out: IO[bytes] = tempfile.TemporaryFile()
        self._err: IO[bytes] = tempfile.TemporaryFile()
        environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1"), **package_path()}
        with tempfile.TemporaryFile() as question:
            question.write(json.dumps(requests).encode())
            question.seek(0)
            self._popen = subprocess.Popen(
                [sys.executable, "-m", "orchestrator.worker.preflight"],
                stdin=question,
                stdout=self._out,
                stderr=self._err,
                env=environment,
            )

    def answers(self) -> list[dict[str, Any]] | str:
        """The answers, or in words why there are none."""
        try:
            returncode = self._popen.wait(max(0.0, self._deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return f"examining it took more than {TIME_LIMIT_S:.0f} s"
        self._out.seek(0)
        text = self._out.read()
        if returncode == 0:
            answers: list[dict[str, Any]] = json.loads(text)
            return answers
        self._err.seek(0)
        last = self._err.read()[-2000:].decode(errors="replace").strip().splitlines()[-1:]
        how = f"signal {-returncode}" if returncode < 0 else f"exit code {returncode}"
        return f"examining it ended with {how}" + (f": {last[0]}" if last else "")

    def close(self) -> None:
        if self._popen.poll() is None:
            self._popen.kill()
            self._popen.wait()
        self._out.close()
        self._err.close()
