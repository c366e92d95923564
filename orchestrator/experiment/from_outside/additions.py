"""Enters new jobs into an experiment that runs, from a process other than its supervisor.

Robots go to the directories of their jobs first. Then the jobs and a request to take them are
entered into the ledger, in one transaction. Whatever was done before that counts as not done.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence

from orchestrator.core.errors import LedgerBusyError
from orchestrator.core.files.atomic_files import sync_directory, sync_trees
from orchestrator.core.job import Cause, Failed, Job, Pending, move
from orchestrator.core.paths import RunPaths
from orchestrator.experiment.examination import examining_process, preflight, side_by_side
from orchestrator.experiment.examination.preflight import JobVerdict
from orchestrator.experiment.planning.run_plan import examined_job
from orchestrator.experiment.resuming.reconcile import copy_robot, set_another_aside
from orchestrator.ledger import Ledger, job_figures
from orchestrator.ledger.rows import DeclaredJob


def examine(
    paths: RunPaths,
    new: Sequence[Job],
    kept: list[examining_process.Child],
    *,
    processes: int = 1,
    watch: side_by_side.Watch = lambda *_: None,
) -> dict[str, JobVerdict]:
    """Examine the robots of the jobs, from copies in a folder of their own; see
    :func:`preflight.examine`.
    """
    shutil.rmtree(paths.entering, ignore_errors=True)
    paths.entering.mkdir(parents=True)
    return preflight.examine(
        new, staging=paths.entering, processes=processes, kept=kept, watch=watch
    )


def put_robots(paths: RunPaths, new: Sequence[Job], verdicts: Mapping[str, JobVerdict]) -> None:
    """Copy the robots that were examined, but for the invalid ones."""
    valid = [job for job in new if verdicts[job.job_id].problem is None]
    for job in valid:
        verdict = verdicts[job.job_id]
        set_another_aside(paths, examined_job(job, verdict), verdict)
        copy_robot(paths, job.job_id, verdict)
    if valid:
        sync_trees([paths.job(job.job_id).root for job in valid])
        sync_directory(paths.jobs)


def enter(ledger: Ledger, new: Sequence[Job], verdicts: Mapping[str, JobVerdict]) -> None:
    """Enter the jobs into the open transaction of ``ledger``, behind those that it has; the invalid
    ones FAILED.
    """
    for position, job in enumerate(new, job_figures.jobs_count(ledger)):
        verdict = verdicts[job.job_id]
        examined = examined_job(job, verdict)
        ledger.put_jobs(
            [DeclaredJob(position=position, job=examined, robot_hash=verdict.robot_hash)]
        )
        if verdict.problem is not None:
            failed = Failed(cause=Cause.INVALID, message=verdict.problem.message)
            ledger.set_state(job.job_id, move(job.job_id, Pending(), failed))


def write_change(ledger: Ledger, paths: RunPaths, change: Callable[[Ledger], None]) -> Ledger:
    """Make ``change``, which commits at its end: the whole of it, or nothing.

    Returns the ledger, opened again if another process had it locked.
    """
    while True:
        try:
            change(ledger)
            return ledger
        except LedgerBusyError:
            ledger = reopen(ledger, paths)


def reopen(ledger: Ledger, paths: RunPaths) -> Ledger:
    """Without what was not committed."""
    ledger.abandon()
    return Ledger.open(paths.ledger, is_sound=True)
