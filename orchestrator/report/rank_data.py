"""Jobs that several ranks trained together: their share of time in all-reduce, and how much faster more of them are."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.analysis.job_metrics import NOT_OF_THE_WORK
from orchestrator.analysis.statistics import estimate, ratio
from orchestrator.ledger import JobRow

ABOUT_RANKS = ("ranks", "backend", "mode")
MAY_DIFFER = {*NOT_OF_THE_WORK, *ABOUT_RANKS, "total_timesteps"}
"""Keys of specs of the same work, whatever number of ranks does it."""

Facts = dict[str, Any]


def of_job(declared: JobRow, timings: Mapping[str, Any]) -> Facts:
    """``ranks``, ``mode`` and ``allreduce``: rank 0's share of time in collectives, waiting for others included.

    The latter is None where it is not known, or there is one rank; so is ``mode``.
    """
    ranks = declared.job.resources.ranks
    if ranks == 1:
        return {"ranks": 1, "mode": None, "allreduce": None}
    spent, wall_s = timings["allreduce_s"], timings["wall_s"]
    share = spent / wall_s if spent is not None and wall_s else None
    return {"ranks": ranks, "mode": declared.job.spec.mode, "allreduce": share}


def scaling(jobs: Sequence[Mapping[str, Any]], declared: Mapping[str, JobRow]) -> list[Facts]:
    """Works that several ranks did, each with a row for every number of ranks and mode.

    ``speedup`` is against ``base``, the least number of ranks, over the seeds trained with both; None for that one.

    :param jobs: facts of the report, with what :func:`of_job` gives.
    """
    works: dict[str, list[Mapping[str, Any]]] = {}
    for job in jobs:
        works.setdefault(_work(declared[job["job_id"]]), []).append(job)
    return [_scaled(same) for same in works.values() if any(job["ranks"] > 1 for job in same)]


def _work(declared: JobRow) -> str:
    spec = dataclasses.asdict(declared.job.spec)
    return json.dumps([declared.robot_hash, {key: spec[key] for key in spec if key not in MAY_DIFFER}], sort_keys=True)


def _scaled(jobs: Sequence[Mapping[str, Any]]) -> Facts:
    groups: dict[tuple[int, str], dict[int, Mapping[str, Any]]] = {}
    for job in jobs:
        groups.setdefault((job["ranks"], job["mode"] or ""), {}).setdefault(job["seed"], job)
    first = min(groups)
    slowest, base = groups[first], first[0]
    return {
        "robot": jobs[0]["robot"],
        "task": jobs[0]["task"],
        "base": base,
        "rows": [
            {
                "ranks": ranks,
                "mode": mode or None,
                "jobs": [job["job_id"] for job in by_seed.values()],
                "env_steps_per_s": _estimated([job["env_steps_per_s"] for job in by_seed.values()]),
                "allreduce": _estimated([job["allreduce"] for job in by_seed.values()]),
                **_speedup(by_seed, slowest, ranks, base),
            }
            for (ranks, mode), by_seed in sorted(groups.items())
        ],
    }


def _speedup(
    jobs: Mapping[int, Mapping[str, Any]], slowest: Mapping[int, Mapping[str, Any]], ranks: int, base: int
) -> Facts:
    """Of the seeds that both have; ``efficiency`` is it by how many times the ranks there are."""
    pairs = [
        (jobs[seed]["env_steps_per_s"], slowest[seed]["env_steps_per_s"])
        for seed in jobs.keys() & slowest.keys()
        if jobs[seed]["env_steps_per_s"] and slowest[seed]["env_steps_per_s"]
    ]
    if ranks == base or not pairs:
        return {"speedup": None, "efficiency": None}
    found = ratio([above for above, _ in pairs], [below for _, below in pairs], paired=True)
    return {"speedup": found.facts(), "efficiency": found.scaled(base / ranks).facts()}


def _estimated(values: Sequence[float | None]) -> Facts | None:
    known = [value for value in values if value is not None]
    return estimate(known).facts() if known else None
