"""Runs jobs to their end, for commands that make jobs themselves: races, benchmarks, verifications."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.client.follow import LOOK_EVERY_S, Follower
from orchestrator.client.run import Interrupts
from orchestrator.client.start import SupervisorProcess
from orchestrator.core.errors import Problem, SpecError, SupervisorError, UsageError
from orchestrator.core.job import Job
from orchestrator.core.paths import RunPaths
from orchestrator.experiment.directory import run_directory, run_end
from orchestrator.experiment.examination.preflight import JobVerdict
from orchestrator.server.declaration import job_values
from orchestrator.server.entering import Addition, addition_args, verdict_values
from orchestrator.server.ledger import EventRow
from orchestrator.server.requests import Answer, Request, RequestFolder
from orchestrator.server.settings import RunSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRun:
    """The end of a run of jobs."""

    exit_code: int
    message: str
    """The error that ended it; empty if there was none."""
    states: Mapping[str, str]
    """By ``job_id``."""
    is_interrupted: bool
    """Whether a signal to this process has stopped it."""


def run_jobs(
    jobs: Sequence[Job],
    run_dir: Path,
    settings: RunSettings,
    *,
    verdicts: Mapping[str, JobVerdict] | None = None,
    text: str | None = None,
    begun: Callable[[Callable[[], None]], object] = lambda _: None,
    on_event: Callable[[EventRow], object] = lambda _: None,
    on_turn: Callable[[], object] = lambda: None,
    look_every_s: float = LOOK_EVERY_S,
) -> EndedRun:
    """Run jobs to their end; those that the run directory has already go on.

    :param verdicts: of jobs whose robots need no examination, by ``job_id``.
    :param text: content of the job file, which is kept in the run directory.
    :param begun: called when the run directory is locked, with a function that kills all workers
        and ends the run.
    :param on_turn: called after each look at the events.
    :raises UsageError: nothing was launched.
    """
    process = SupervisorProcess(run_dir)
    try:
        if not process.begin(dataclasses.replace(settings, client_pid=os.getpid())):
            raise SupervisorError(f"{run_dir}: the supervisor could not be started")
        folder = RequestFolder(RunPaths(run_dir).requests)
        interrupts = Interrupts(folder=folder, holder=process.holder)
        stop = Request(verb="stop", args={"now": True}, supervisor=process.holder)
        with interrupts.handled(), contextlib.closing(Follower(run_dir)) as follower:
            begun(lambda: _leave(folder, stop))
            addition = Addition(
                jobs=[job_values(job) for job in jobs],
                whole=True,
                order="as-listed",
                source=str(run_dir),
                text=text,
                verdicts={
                    job_id: verdict_values(verdict) for job_id, verdict in (verdicts or {}).items()
                },
            )
            request = Request(verb="add", args=addition_args(addition), supervisor=process.holder)
            id_ = folder.leave(request)
            answer: Answer | None = None
            for event in follower.to_end(process.holder, look_every_s):
                if event is None:
                    on_turn()
                    continue
                if event.kind == "answer" and event.facts["request"] == id_:
                    answer = follower.answer(id_)
                on_event(event)
        process.wait()
    finally:
        process.close()
    if answer is not None and answer.error and not interrupts.count:
        raise _refusal(answer, run_dir)
    return _end(RunPaths(run_dir), process.holder, is_interrupted=interrupts.count > 0)


def _leave(folder: RequestFolder, request: Request) -> None:
    with contextlib.suppress(OSError):  # the disk is full: the lifeline ends the run
        folder.leave(request)


def _refusal(answer: Answer, run_dir: Path) -> UsageError:
    problems = answer.facts.get("problems")
    if problems:
        found = [Problem(where=one["where"], message=one["message"]) for one in problems]
        return SpecError(str(run_dir), found)
    return UsageError(answer.error)


def _end(paths: RunPaths, holder: str, *, is_interrupted: bool) -> EndedRun:
    end = run_end.read(paths)
    if end is None or end.holder != holder:
        raise SupervisorError(f"{paths.root}: the supervisor was killed")
    with run_directory.reading_ledger(paths) as ledger:
        states = {row.job_id: row.state.name for row in ledger.jobs(decoded=False)}
    return EndedRun(
        exit_code=end.exit_code,
        message=end.message,
        states=states,
        is_interrupted=is_interrupted,
    )
