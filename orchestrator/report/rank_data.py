"""Jobs of several ranks: their share of time in all-reduce, and the speed-up by more ranks."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.analysis.job_metrics import NOT_OF_THE_WORK
from orchestrator.analysis.statistics import known_estimate, ratio
from orchestrator.ledger import JobRow

MAY_DIFFER = {*NOT_OF_THE_WORK, "ranks", "backend", "mode", "total_timesteps"}
"""Keys of the specs of jobs that do the same work with different numbers of ranks."""

Facts = dict[str, Any]


def of_job(declared: JobRow, timings: Mapping[str, Any]) -> Facts:
    """``ranks``, ``mode`` and ``allreduce``: rank 0's share of time in collectives, waiting included.

    The last two are None for a single rank.
    """
    ranks = declared.job.resources.ranks
    if ranks == 1:
        return {"ranks": 1, "mode": None, "allreduce": None}
    allreduce_s, wall_s = timings["allreduce_s"], timings["wall_s"]
    share = allreduce_s / wall_s if allreduce_s is not None and wall_s else None
    return {"ranks": ranks, "mode": declared.job.spec.mode, "allreduce": share}


def scaling(jobs: Sequence[Facts], declared: Mapping[str, JobRow]) -> list[Facts]:
    """Robots that several ranks trained, each with a row for every number of ranks and mode.

    ``speedup`` is relative to ``base``, the fewest ranks, over the seeds trained with both; None for ``base`` itself.

    :param jobs: facts of the report, with those of :func:`of_job`.
    """
    groups: dict[str, list[Facts]] = {}
    for job in jobs:
        groups.setdefault(_work(declared[job["job_id"]]), []).append(job)
    return [_robot(group) for group in groups.values() if any(job["ranks"] > 1 for job in group)]


def _work(declared: JobRow) -> str:
    spec = dataclasses.asdict(declared.job.spec)
    return json.dumps([declared.robot_hash, {key: spec[key] for key in spec if key not in MAY_DIFFER}], sort_keys=True)


def _robot(jobs: Sequence[Facts]) -> Facts:
    groups: dict[tuple[int, str], dict[int, Facts]] = {}
    for job in jobs:
        groups.setdefault((job["ranks"], job["mode"] or ""), {}).setdefault(job["seed"], job)
    base = min(groups)
    rows = [
        {
            "ranks": ranks,
            "mode": mode or None,
            "jobs": [job["job_id"] for job in by_seed.values()],
            "env_steps_per_s": known_estimate(job["env_steps_per_s"] for job in by_seed.values()),
            "allreduce": known_estimate(job["allreduce"] for job in by_seed.values()),
            **_speedup(by_seed, groups[base], ranks / base[0]),
        }
        for (ranks, mode), by_seed in sorted(groups.items())
    ]
    return {"robot": jobs[0]["robot"], "task": jobs[0]["task"], "base": base[0], "rows": rows}


def _speedup(jobs: Mapping[int, Facts], base: Mapping[int, Facts], times: float) -> Facts:
    """Over the seeds that both have; ``efficiency`` is the speed-up divided by ``times``, the ratio of ranks."""
    pairs = [(jobs[seed]["env_steps_per_s"], base[seed]["env_steps_per_s"]) for seed in jobs.keys() & base.keys()]
    known = [pair for pair in pairs if all(pair)]
    if times == 1 or not known:
        return {"speedup": None, "efficiency": None}
    speeds, base_speeds = zip(*known, strict=True)
    speedup = ratio(speeds, base_speeds, paired=True)
    return {"speedup": speedup.facts(), "efficiency": speedup.scaled(1 / times).facts()}
