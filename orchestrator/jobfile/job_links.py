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
    jobs_named: dict[str, list[Job]] = {}
    for job in jobs:
        jobs_named.setdefault(job.spec.name, []).append(job)
    for job in jobs:
        jobs_named.setdefault(job.job_id, [job])
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
    parents: dict[str, None] = {}
    for number, name in enumerate(job.spec.after):
        if name not in jobs_named:
            problems.add(f"{job.where}.after[{number}]", _unknown(name, jobs_named))
        parents |= dict.fromkeys(parent.job_id for parent in jobs_named.get(name, ()))
    init = job.spec.init
    name = job.spec.init_job or ""
    candidates = jobs_named.get(name, [])
    fitting = _fitting(job, candidates)
    if len(fitting) == 1:
        init = f"{INIT_JOB}{fitting[0].job_id}"
        parents[fitting[0].job_id] = None
    elif candidates:
        ids = listed([other.job_id for other in candidates])
        message = (
            f"{len(fitting)} of the jobs named {quoted(name)} fit {job.job_id}; name one of {ids}"
        )
        problems.add(f"{job.where}.init", message)
    elif name:
        problems.add(f"{job.where}.init", _unknown(name, jobs_named))
    return job.with_spec(init=init, after=tuple(parents))


def _fitting(job: Job, candidates: Sequence[Job]) -> Sequence[Job]:
    """Return the candidates that have the seed and the matrix point of ``job``, or the only one."""
    if len(candidates) > 1:
        candidates = [other for other in candidates if other.spec.seed == job.spec.seed]
    if len(candidates) > 1:
        candidates = [
            other
            for other in candidates
            if all(job.point.get(key, value) == value for key, value in other.point.items())
        ]
    return candidates


def _unknown(name: str, names: Mapping[str, Sequence[Job]]) -> str:
    near = suggestion(name, names)
    known = listed(list(names)) if near is None else quoted(near)
    return f"no job of this file has the name {quoted(name)}; did you mean {known}?"
