"""Jobs that wait for jobs: the names in ``after`` and in ``init = "job:NAME"`` become job ids,
without circles.
"""

from __future__ import annotations

import graphlib
from collections.abc import Mapping, Sequence

from orchestrator.core.job import Job
from orchestrator.core.text import listed
from orchestrator.core.worker_spec import INIT_JOB
from orchestrator.keys.problems import Problems, quoted, suggestion


def link_jobs(jobs: Sequence[Job], problems: Problems) -> list[Job]:
    """Return ``jobs`` with ids in place of names in ``after`` and ``init``; a job that starts from
    another also waits for it.

    A name stands for all jobs that have it. ``init`` takes the one with the same seed, where there
    are several, and of these the one with equal values of the keys that vary in both.

    :param jobs: of all entries; if there are problems, perhaps not of all: then no name is unknown.
    """
    if problems or not any(job.spec.after or job.spec.init_job is not None for job in jobs):
        return list(jobs)
    jobs_named = {job.job_id: [job] for job in jobs}
    of_name: dict[str, list[Job]] = {}
    for job in jobs:
        of_name.setdefault(job.spec.name, []).append(job)
    jobs_named |= of_name
    linked = [_linked(job, jobs_named, problems) for job in jobs]
    try:
        graphlib.TopologicalSorter({job.job_id: job.spec.after for job in linked}).prepare()
    except graphlib.CycleError as error:
        circle: list[str] = error.args[1]
        where = next(job.where for job in linked if job.job_id == circle[0])
        problems.add(where, f"jobs wait for each other in a circle: {' → '.join(circle)}")
    return linked


def _linked(job: Job, jobs_named: Mapping[str, Sequence[Job]], problems: Problems) -> Job:
    """Return ``job`` with ids in place of names, without those that cannot be found."""
    spec = job.spec
    parents: dict[str, None] = {}
    for number, name in enumerate(spec.after):
        found = _jobs_with(name, f"{job.where}.after[{number}]", jobs_named, problems)
        parents |= dict.fromkeys(parent.job_id for parent in found)
    if spec.init_job is None:
        return job.with_spec(after=tuple(parents))
    where = f"{job.where}.init"
    candidates = _jobs_with(spec.init_job, where, jobs_named, problems)
    fitting = candidates
    if len(fitting) > 1:
        fitting = [other for other in fitting if other.spec.seed == spec.seed]
    if len(fitting) > 1:
        fitting = [
            other
            for other in fitting
            if all(job.point.get(key, value) == value for key, value in other.point.items())
        ]
    if len(fitting) == 1:
        parent = fitting[0].job_id
        return job.with_spec(init=f"{INIT_JOB}{parent}", after=tuple(parents | {parent: None}))
    if candidates:
        ids = listed([other.job_id for other in candidates])
        what = f"{len(fitting)} of the jobs named {quoted(spec.init_job)} fit {job.job_id}"
        problems.add(where, f"{what}; name one of {ids}")
    return job


def _jobs_with(
    name: str, where: str, jobs_named: Mapping[str, Sequence[Job]], problems: Problems
) -> Sequence[Job]:
    """Return the jobs with a name. That there are none is a problem."""
    if name not in jobs_named:
        near = suggestion(name, jobs_named)
        known = listed(list(jobs_named)) if near is None else quoted(near)
        text = f"no job of this file has the name {quoted(name)}; did you mean {known}?"
        problems.add(where, text)
    return jobs_named.get(name, [])
