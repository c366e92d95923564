"""Jobs that were paused at rungs, in a run in which nothing compares them any more."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.core.job import Job, State, move
from orchestrator.core.text import count, listed
from orchestrator.jobfile import Experiment
from orchestrator.ledger import Ledger, job_figures
from orchestrator.supervisor.events import Reporter
from orchestrator.supervisor.requested_state import promoted_job


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedJob:
    """A job that pauses or waits at a rung, and is declared without one."""

    before: State
    job: Job
    """As it goes on."""
    state: State
    """With which it goes on."""


def released_jobs(experiment: Experiment, ledger: Ledger) -> list[ReleasedJob]:
    """Those in ``ledger`` that ``experiment`` releases."""
    pauses = job_figures.pauses(ledger)
    found: list[ReleasedJob] = []
    for declared in experiment.jobs:
        if declared.spec.pause_at is not None or pauses.get(declared.job_id) is None:
            continue
        row = ledger.job_row(declared.job_id, decoded=False)
        if row is not None and (after := promoted_job(row.job, row.state, None)) is not None:
            job, state = after
            found.append(ReleasedJob(before=row.state, job=job, state=state))
    return found


def let_train_to_end(experiment: Experiment, ledger: Ledger, reporter: Reporter) -> None:
    """Enter, into the open transaction of ``ledger``, that jobs which ``experiment`` declares without
    a rung pause at none any more, and that those which wait at one go on.
    """
    gone_on: list[str] = []
    for one in released_jobs(experiment, ledger):
        job_id = one.job.job_id
        ledger.update_spec(one.job)
        if one.state is not one.before:
            ledger.set_state(job_id, move(job_id, one.before, one.state))
            gone_on.append(job_id)
    if gone_on:
        jobs = count(len(gone_on), "job")
        text = f"{jobs} at rungs train to their end, as nothing compares them any more"
        reporter.event("promoted", f"{text}: {listed(gone_on)}", jobs=gone_on)
