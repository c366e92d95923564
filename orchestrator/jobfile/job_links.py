"""Jobs that wait for jobs: the names in ``after`` and in ``init = "job:NAME"`` become job ids,
without circles.
"""

from __future__ import annotations

import dataclasses
import graphlib
from collections.abc import Mapping, Sequence

from orchestrator.core.job import Job
from orchestrator.core.text import listed
from orchestrator.core.worker_spec import INIT_JOB
from orchestrator.keys.problems import Problems, quoted, suggestion

SHOWN = 10
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
    names: dict[str, list[Job]] = {}
    for job in jobs:
        names.setdefault(job.spec.name, []).append(job)
    for job in jobs:
        names.setdefault(job.job_id, [job])
    has_all = not problems
    places = dict[str, None]()
    result = []
    links = 0
    for job in jobs:
        spec = job.spec
        parents = dict[str, None]()
        for number, name in enumerate(spec.after):
            if name not in names and has_all:
                _refuse(f"{job.where}.after[{number}]", _unknown(name, names), places, problems)
            parents |= dict.fromkeys(parent.job_id for parent in names.get(name, ()))
        if (wanted := spec.init_job) is not None:
            candidates = names.get(wanted, [])
            source = _alike(job, candidates)
            if source is not None:
                spec = dataclasses.replace(spec, init=f"{INIT_JOB}{source.job_id}")
                parents[source.job_id] = None
            elif candidates or has_all:
                text = _ambiguous(job, candidates) if candidates else _unknown(wanted, names)
                _refuse(f"{job.where}.init", text, places, problems)
        links += len(parents)
        if links > MOST_LINKS:
            problems.add(
                job.where,
                f"jobs wait for each other in more than {MOST_LINKS:_} pairs; name fewer in after",
            )
            return list(jobs)
        result.append(
            dataclasses.replace(job, spec=dataclasses.replace(spec, after=tuple(parents)))
        )
    _refuse_circle(result, problems)
    return result


def _refuse(where: str, message: str, places: dict[str, None], problems: Problems) -> None:
    """Note a problem once for all seeds and matrix points of an entry."""
    if where not in places:
        places[where] = None
        problems.add(where, message)


def _alike(job: Job, candidates: Sequence[Job]) -> Job | None:
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
    ids = listed([other.job_id for other in candidates], SHOWN)
    which = "none" if all(other.spec.seed != seed for other in candidates) else "several"
    text = f"{len(candidates)} jobs have the name {quoted(str(name))}, and {which} of them fit {job.job_id}"
    return f'{text} (seed {seed}): {ids}; name one of them, such as init = "{INIT_JOB}{first}"'


def _unknown(name: str, names: Mapping[str, Sequence[Job]]) -> str:
    near = suggestion(name, names)
    hint = (
        f"did you mean {quoted(near)}?"
        if near
        else f"jobs of this file: {listed(list(names), SHOWN)}"
    )
    return f"no job of this file has the name {quoted(name)}; {hint}"


def _refuse_circle(jobs: Sequence[Job], problems: Problems) -> None:
    try:
        graphlib.TopologicalSorter({job.job_id: job.spec.after for job in jobs}).prepare()
    except graphlib.CycleError as error:
        circle: list[str] = error.args[1]
        where = next(job.where for job in jobs if job.job_id == circle[0])
        order = " → ".join([*circle[:SHOWN], "…"] if len(circle) > SHOWN else circle)
        advice = "remove one of them from after or init"
        problems.add(
            where,
            f"jobs wait for each other in a circle, so that none could begin: {order}; {advice}",
        )
