"""Jobs that were paused at rungs, in a run in which nothing compares them any more."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.core.job import Job, State, move
from orchestrator.core.text import count, listed
from orchestrator.jobfile import Experiment
from orchestrator.ledger import Ledger, job_figures
from orchestrator.supervisor.events import Reporter
from orchestrator.supervisor.retry_policy import promoted

SHOWN = 10


def released(experiment: Experiment, ledger: Ledger) -> Mapping[str, tuple[Job, State]]:
    """``job_id`` → job and state with which it goes on, of those in ``ledger`` that pause or wait
    at a rung, and are declared by ``experiment`` without one.
    """
    pauses = job_figures.pauses(ledger)
    found = {}
    for declared in experiment.jobs:
        if declared.spec.pause_at is not None or pauses.get(declared.job_id) is None:
            continue
        row = ledger.job_row(declared.job_id, decoded=False)
        if row is not None and (after := promoted(row.job, row.state, None)) is not None:
            found[declared.job_id] = after
    return found


def let_train_to_end(experiment: Experiment, ledger: Ledger, reporter: Reporter) -> None:
    """Enter, into the open transaction of ``ledger``, that jobs which ``experiment`` declares without
    a rung pause at none any more, and that those which wait at one go on.
    """
    gone_on: list[str] = []
    for job_id, (job, state) in released(experiment, ledger).items():
        ledger.update_spec(job)
        row = ledger.job_row(job_id, decoded=False)
        if row is not None and state != row.state:
            ledger.set_state(job_id, move(job_id, row.state, state))
            gone_on.append(job_id)
    if gone_on:
        jobs = count(len(gone_on), "job")
        text = f"{jobs} at rungs train to their end, as nothing compares them any more"
        reporter.event("promoted", f"{text}: {listed(gone_on, SHOWN)}", jobs=gone_on)
