"""Jobs that were paused at rungs, in a run in which nothing compares them any more."""

from __future__ import annotations

from orchestrator.core.job import move
from orchestrator.core.text import count, listed
from orchestrator.jobfile import Experiment
from orchestrator.ledger import Ledger, job_figures
from orchestrator.supervisor.events import Reporter
from orchestrator.supervisor.retry_policy import promoted

SHOWN = 10


def let_train_to_end(experiment: Experiment, ledger: Ledger, reporter: Reporter) -> None:
    """Enter, into the open transaction of ``ledger``, that jobs which ``experiment`` declares without
    a rung pause at none any more, and that those which wait at one go on.
    """
    pauses = job_figures.pauses(ledger)
    released: list[str] = []
    for declared in experiment.jobs:
        if declared.spec.pause_at is not None or pauses.get(declared.job_id) is None:
            continue
        row = ledger.job_row(declared.job_id, decoded=False)
        if row is None or (after := promoted(row.job, row.state, None)) is None:
            continue
        job, state = after
        ledger.update_spec(job)
        if state is not row.state:
            ledger.set_state(job.job_id, move(job.job_id, row.state, state))
            released.append(job.job_id)
    if released:
        jobs = count(len(released), "job")
        text = f"{jobs} at rungs train to their end, as nothing compares them any more"
        reporter.event("promoted", f"{text}: {listed(released, SHOWN)}", jobs=released)
