"""Asks the supervisor of a run directory for something, or does it if no supervisor runs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from orchestrator.client.follow import Follower
from orchestrator.core.errors import (
    ChangedError,
    LedgerUnavailableError,
    Problem,
    RunDirError,
    SpecError,
    UsageError,
)
from orchestrator.core.paths import RunPaths
from orchestrator.experiment import left_batch_jobs, run_directory
from orchestrator.experiment.run_directory import LockHolder
from orchestrator.server.requests import Answer, Request, RequestFolder, Verb

LOOK_EVERY_S = 0.05
PATIENCE_S = 60.0
"""How long an answer is waited for. A supervisor answers within a second, unless its disk or its
machine hangs."""


def ask(run_dir: Path, verb: Verb, args: Mapping[str, Any] | None = None) -> Answer:
    """Let a request be applied, by the supervisor or by this process. Return the answer.

    :raises UsageError: it was refused; the message says why.
    :raises RunDirError: it is no run directory, or its supervisor does not answer.
    """
    paths = run_directory.existing_run(run_dir)
    request = Request(verb=verb, args=args or {})
    holder = run_directory.holder(paths)
    answer = None if holder is None else ask_supervisor(paths, holder, request)
    if answer is None:
        if verb in ("cancel", "pause"):
            left_batch_jobs.refuse_beside(paths, f"nothing of it can be changed by `{verb}`")
        from orchestrator.server import offline  # with what reads job files

        answer = offline.apply(run_dir, request)
    if answer.error:
        raise UsageError(f"{run_dir}: {answer.error}")
    return answer


def raise_refusal(answer: Answer, source: str) -> NoReturn:
    """Raise the error for a refused request to add jobs. :param source: the job file."""
    if problems := answer.facts.get("problems"):
        found = [Problem(where=one["where"], message=one["message"]) for one in problems]
        raise SpecError(source, found, str(answer.facts.get("advice", "")))
    raise (ChangedError if answer.facts.get("changed") else UsageError)(answer.error)


def report(run_dir: Path, kind: str, message: str, **facts: Any) -> None:
    """Let the supervisor report an event. Nothing is waited for."""
    args = {"kind": kind, "message": message, "facts": facts}
    with contextlib.suppress(OSError):  # the disk is full, or the run directory is gone
        RequestFolder(RunPaths(run_dir).requests).leave(Request(verb="report", args=args))


def ask_supervisor(
    paths: RunPaths, holder: LockHolder, request: Request, patience_s: float | None = None
) -> Answer | None:
    """Return the answer of the supervisor, or None if it ends without one. The request is withdrawn
    then.

    :raises UsageError: this user may not write to the run directory.
    """
    patience_s = PATIENCE_S if patience_s is None else patience_s
    folder = RequestFolder(paths.requests)
    try:
        id_ = folder.leave(request)
    except FileNotFoundError:  # it has ended, and has removed a run directory without jobs
        return None
    except PermissionError as error:
        text = f"{paths.root}: only users who may write to it control its jobs ({error.strerror})"
        raise UsageError(text) from error
    give_up_at = time.monotonic() + patience_s
    try:
        while True:
            has_ended = run_directory.holder(paths) is None
            answer = _answer_to(paths, holder, folder, id_)
            if answer is not None:
                return answer
            if has_ended:
                return None
            if time.monotonic() > give_up_at:
                raise RunDirError(
                    f"{paths.root}: its supervisor ({holder}) has not answered for {patience_s:.0f} s; it waits for a"
                    " disk, is stopped, or still examines robots. The request was withdrawn"
                )
            time.sleep(LOOK_EVERY_S)
    finally:
        folder.remove(id_)


def _answer_to(
    paths: RunPaths, holder: LockHolder, folder: RequestFolder, id_: str
) -> Answer | None:
    if holder.is_elsewhere:
        return folder.take_answer(id_)
    if not paths.ledger.exists():  # it has just begun
        return None
    try:
        with contextlib.closing(Follower(paths.root, cursor=0)) as follower:
            return follower.answer(id_)
    except LedgerUnavailableError:
        return None
