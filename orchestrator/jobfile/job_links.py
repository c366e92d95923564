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

SHOWN = 10
"""Jobs of a circle, in a message."""
MOST_LINKS = 1_000_000
"""Largest number of pairs of jobs of which one waits for the other."""


def link_jobs(jobs: Sequence[Job], problems: Problems) -> list[Job]:
    """``jobs`` with ids in place of names in ``after`` and ``init``; a job that starts from another
    also waits for it.

    A name stands for all jobs that have it. ``init`` takes the one with the same seed, where there
    are several, and of these the one with equal values of the keys that vary in both.

    :param jobs: of all entries; of a file with problems, perhaps not of all.
    """
    if not any(job.spec.after or job.spec.init_job is not None for job in jobs):
        return list(jobs)
    linker = _Linker(jobs, problems)
    linked: list[Job] = []
    links = 0
    for job in jobs:
        linked.append(linker.link(job))
        links += len(linked[-1].spec.after)
        if links > MOST_LINKS:
            problems.add(
                job.where,
                f"jobs wait for each other in more than {MOST_LINKS:_} pairs; name fewer in after",
            )
            return list(jobs)
    _refuse_circle(linked, problems)
    return linked


class _Linker:
    """Finds the jobs that a job names."""

    def __init__(self, jobs: Sequence[Job], problems: Problems) -> None:
        self._problems = problems
        self._has_all = not problems
        """Whether a name that no job has is unknown: otherwise its job may be an invalid one."""
        self._refused_at: set[str] = set()
        """Places of problems, of which each is noted once for all seeds and matrix points."""
        self._jobs_named: dict[str, list[Job]] = {}
        for job in jobs:
            self._jobs_named.setdefault(job.spec.name, []).append(job)
        for job in jobs:
            self._jobs_named.setdefault(job.job_id, [job])

    def link(self, job: Job) -> Job:
        """``job`` with ids in place of names, without those that cannot be found."""
        parents: dict[str, None] = {}
        for number, name in enumerate(job.spec.after):
            found = self._jobs_named.get(name, [])
            if not found and self._has_all:
                self._refuse(f"{job.where}.after[{number}]", _unknown(name, self._jobs_named))
            parents |= dict.fromkeys(parent.job_id for parent in found)
        init = job.spec.init
        source = self._source_of(job)
        if source is not None:
            init = f"{INIT_JOB}{source.job_id}"
            parents[source.job_id] = None
        return job.with_spec(init=init, after=tuple(parents))

    def _source_of(self, job: Job) -> Job | None:
        """The job whose policy it starts with."""
        name = job.spec.init_job
        if name is None:
            return None
        candidates = self._jobs_named.get(name, [])
        source = _alike(job, candidates)
        if source is not None:
            return source
        if candidates:
            self._refuse(f"{job.where}.init", _ambiguous(job, candidates))
        elif self._has_all:
            self._refuse(f"{job.where}.init", _unknown(name, self._jobs_named))
        return None

    def _refuse(self, where: str, message: str) -> None:
        if where not in self._refused_at:
            self._refused_at.add(where)
            self._problems.add(where, message)


def _alike(job: Job, candidates: Sequence[Job]) -> Job | None:
    """The only one of ``candidates``, or the only one that has the seed and the point of ``job``."""

    def has_point(other: Job) -> bool:
        return all(job.point.get(key, value) == value for key, value in other.point.items())

    if len(candidates) > 1:
        candidates = [other for other in candidates if other.spec.seed == job.spec.seed]
    if len(candidates) > 1:
        candidates = [other for other in candidates if has_point(other)]
    return candidates[0] if len(candidates) == 1 else None


def _ambiguous(job: Job, candidates: Sequence[Job]) -> str:
    name = job.spec.init_job
    seed = job.spec.seed
    first = candidates[0].job_id
    ids = listed([other.job_id for other in candidates])
    which = "none" if all(other.spec.seed != seed for other in candidates) else "several"
    text = f"{len(candidates)} jobs have the name {quoted(str(name))}, and {which} of them fit {job.job_id}"
    return f'{text} (seed {seed}): {ids}; name one of them, such as init = "{INIT_JOB}{first}"'


def _unknown(name: str, names: Mapping[str, Sequence[Job]]) -> str:
    near = suggestion(name, names)
    hint = f"jobs of this file: {listed(list(names))}"
    if near is not None:
        hint = f"did you mean {quoted(near)}?"
    return f"no job of this file has the name {quoted(name)}; {hint}"


def _refuse_circle(jobs: Sequence[Job], problems: Problems) -> None:
    try:
        graphlib.TopologicalSorter({job.job_id: job.spec.after for job in jobs}).prepare()
    except graphlib.CycleError as error:
        circle: list[str] = error.args[1]
        where = next(job.where for job in jobs if job.job_id == circle[0])
        shown = circle if len(circle) <= SHOWN else [*circle[:SHOWN], "…"]
        order = " → ".join(shown)
        advice = "remove one of them from after or init"
        problems.add(
            where,
            f"jobs wait for each other in a circle, so that none could begin: {order}; {advice}",
        )
