"""Runs jobs to their end, for commands that make jobs themselves: races, benchmarks, verifications."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.client import session
from orchestrator.client.follow import LOOK_EVERY_S
from orchestrator.client.start import SupervisorProcess
from orchestrator.core.job import Job
from orchestrator.examination.preflight import JobVerdict
from orchestrator.experiment import run_directory
from orchestrator.server.declaration import job_values
from orchestrator.server.entering import Addition
from orchestrator.server.ledger import EventRow
from orchestrator.server.settings import RunSettings
from orchestrator.server.verdicts import verdict_values


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
    :raises KeyboardInterrupt: it was stopped before anything was launched.
    """
    settings = dataclasses.replace(settings, client_pid=os.getpid())
    addition = Addition(
        jobs=[job_values(job) for job in jobs],
        whole=True,
        order="as-listed",
        source=str(run_dir),
        text=text,
        verdicts={job_id: verdict_values(verdict) for job_id, verdict in (verdicts or {}).items()},
    )
    with (
        contextlib.closing(SupervisorProcess(run_dir)) as process,
        session.begin(process, settings) as own,
    ):
        begun(own.kill)
        own.add(addition, on_event)
        for event in own.events(look_every_s):
            if event is None:
                on_turn()
            else:
                on_event(event)
        end = own.end()
    with run_directory.reading_ledger(own.paths) as ledger:
        states = {row.job_id: row.state.name for row in ledger.jobs()}
    return EndedRun(
        exit_code=end.exit_code,
        message=end.message,
        states=states,
        is_interrupted=own.interrupts.count > 0,
    )
