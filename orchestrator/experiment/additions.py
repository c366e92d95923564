"""Enters new jobs into an experiment that runs, from a process other than its supervisor.

Robots go to the directories of their jobs first. Then the jobs and a request to take them are entered into the ledger,
in one transaction. Whatever was done before that counts as not done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.core.atomic_files import sync_directory, sync_trees
from orchestrator.core.job import Cause, Failed, Job, Pending, move
from orchestrator.core.paths import RunPaths
from orchestrator.experiment.preflight import JobVerdict
from orchestrator.experiment.reconcile import copy_robot
from orchestrator.experiment.run_plan import examined
from orchestrator.ledger import Ledger


def put_robots(paths: RunPaths, new: Sequence[Job], verdicts: Mapping[str, JobVerdict]) -> None:
    """Copy the robots that were examined, but for the invalid ones."""
    valid = [job.job_id for job in new if verdicts[job.job_id].problem is None]
    for job_id in valid:
        copy_robot(paths, job_id, verdicts[job_id])
    if valid:
        sync_trees([paths.job(job_id).root for job_id in valid])
        sync_directory(paths.jobs)


def enter(ledger: Ledger, new: Sequence[Job], verdicts: Mapping[str, JobVerdict], first: int) -> None:
    """Enter the jobs into the open transaction of ``ledger``, from position ``first`` on; the invalid ones FAILED."""
    for number, job in enumerate(new):
        verdict = verdicts[job.job_id]
        ledger.put_jobs([(first + number, examined(job, verdict), verdict.robot_hash)])
        if verdict.problem is not None:
            failed = Failed(cause=Cause.INVALID, message=verdict.problem.message)
            ledger.set_state(job.job_id, move(job.job_id, Pending(), failed))
