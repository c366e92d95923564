"""In what order jobs are launched: a pure decision, from how long each is expected to take."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from typing import Literal

from orchestrator.core.job import Job


def launch_order(
    jobs: Sequence[Job],
    order: Literal["longest-first", "as-listed"],
    seconds: Callable[[Job], float],
) -> list[Job]:
    """The order of launch, each job behind those that it waits for; jobs whose times differ by less
    than about a tenth count as equal and stay as listed.

    ``longest-first`` is the LPT rule (Graham, 1969): its makespan is at most 4/3 of the best
    possible. To the time of a job counts that of the longest chain of jobs that wait for it (Hu,
    1961).

    :param seconds: how long a job is expected to take, above 0. It is measured, so it differs a
        little every time.
    """
    ordered = parents_first(jobs)
    if order == "longest-first":
        waiting_s: dict[str, float] = {}
        total_s: dict[str, float] = {}
        for job in reversed(ordered):
            total_s[job.job_id] = seconds(job) + waiting_s.get(job.job_id, 0.0)
            for parent in job.spec.after:
                waiting_s[parent] = max(waiting_s.get(parent, 0.0), total_s[job.job_id])
        ordered = sorted(jobs, key=lambda job: -round(math.log(total_s[job.job_id]), 1))
        ordered = parents_first(ordered)
    return ordered


def parents_first(jobs: Sequence[Job]) -> list[Job]:
    """``jobs`` in the same order, except that each is behind those of them that it waits for."""
    declared = {job.job_id for job in jobs}
    missing: list[int] = []
    """By the job's index in ``jobs``: how many that it waits for are not in the new order yet."""
    children: dict[str, list[int]] = {}
    for index, job in enumerate(jobs):
        parents = declared.intersection(job.spec.after)
        missing.append(len(parents))
        for parent in parents:
            children.setdefault(parent, []).append(index)
    ready = [index for index, n_missing in enumerate(missing) if n_missing == 0]
    ordered = []
    while ready:
        job = jobs[heapq.heappop(ready)]  # the first one as listed
        ordered.append(job)
        for child in children.get(job.job_id, ()):
            missing[child] -= 1
            if missing[child] == 0:
                heapq.heappush(ready, child)
    # Jobs that wait for each other are refused elsewhere; none is lost here.
    in_a_circle = [job for job, n_missing in zip(jobs, missing, strict=True) if n_missing > 0]
    return ordered + in_a_circle
