"""Strong scaling: the whole job file at each level, against the least time in which it could be done."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orchestrator.bench import baselines
from orchestrator.bench.baselines import ARMS
from orchestrator.bench.cell_process import GRACE_S, start
from orchestrator.bench.runner import Ground
from orchestrator.bench.supervised_jobs import write_request
from orchestrator.core.atomic_files import write_whole
from orchestrator.core.errors import UsageError
from orchestrator.core.job import Job
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import duration
from orchestrator.executors.process import end_group
from orchestrator.jobfile import Experiment

FORMAT = 1
LEAST_ITERATIONS = 3
LOOK_EVERY_S = 0.5


def scaled(jobs: Sequence[Job], budget_steps: float) -> tuple[list[Job], float]:
    """The jobs, each with the same part of its ``total_timesteps``, and that part.

    Together about ``budget_steps`` env_steps; whole iterations, a few of each job at least. Nothing is evaluated, and
    a checkpoint falls at the end alone.
    """
    total = sum(job.spec.total_timesteps for job in jobs)
    part = min(1.0, budget_steps / total)
    made = []
    for job in jobs:
        spec = job.spec
        iteration = spec.steps_an_iteration
        iterations = max(LEAST_ITERATIONS, math.ceil(spec.total_timesteps * part / iteration))
        steps = min(spec.total_timesteps, iterations * iteration)
        short = dataclasses.replace(spec, total_timesteps=steps, checkpoint_every=10**12, eval_episodes=0, video=False)
        made.append(dataclasses.replace(job, spec=short))
    return made, part


def lower_bound_s(jobs: Sequence[tuple[float, int]], *, at_once: int, cores: int) -> float:
    """No schedule is shorter: the longest job; all of them spread evenly over the lanes; their work over the cores.

    :param jobs: seconds and cores of each.
    """
    longest = max((seconds for seconds, _ in jobs), default=0.0)
    spread = sum(seconds for seconds, _ in jobs) / at_once
    return max(longest, spread, sum(seconds * wide for seconds, wide in jobs) / cores)


def run(
    experiment: Experiment,
    paths: RunPaths,
    levels: Sequence[int],
    ground: Ground,
    *,
    budget_s: float,
    rate: float,
    seed: int,
    told: Callable[[str], None],
) -> None:
    """Measure the levels that ``strong.json`` lacks, in random order.

    :param budget_s: of one core's work that the jobs are scaled down to.
    :param rate: env_steps/s of one process, to know how much that is.
    """
    path = paths.bench / "strong.json"
    jobs, part = scaled([job for job in experiment.jobs if not job.resources.gpus], budget_s * rate)
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    if found is not None:  # what is measured already decides how long the jobs are
        steps = found["total_timesteps"]
        if found["fingerprints"] != _fingerprints(experiment) or set(steps) != {job.job_id for job in jobs}:
            raise UsageError(f"{path}: measured with other jobs than {experiment.source} has; choose another --run-dir")
        jobs = [dataclasses.replace(j, spec=dataclasses.replace(j.spec, total_timesteps=steps[j.job_id])) for j in jobs]
    document: dict[str, Any] = found or {
        "format": FORMAT,
        "fingerprints": _fingerprints(experiment),
        "part": part,
        "total_timesteps": {job.job_id: job.spec.total_timesteps for job in jobs},
        "levels": {},
    }
    missing = [level for level in levels if str(level) not in document["levels"]]
    random.Random(seed).shuffle(missing)
    if missing:
        each_s = sum(job.spec.total_timesteps for job in jobs) / rate
        told(
            f"strong scaling: {len(jobs)} jobs, {document['part']:.1%} of the total_timesteps of each"
            f" ({LEAST_ITERATIONS} iterations at least), about {duration(each_s)} of one core's work at each level"
        )
    for level in missing:
        entry = _measure(jobs, level, ground)
        document["levels"][str(level)] = entry
        _bound(document["levels"], ground.machine.capacity)
        write_whole(path, json.dumps(document, indent=1) + "\n")
        lost = [f"{job['job_id']} {job['state']}" for job in entry["jobs"] if job["state"] != "SUCCEEDED"]
        but = f", but this is not the time of the whole work: {', '.join(lost)}" if lost else ""
        told(f"strong scaling, {level} at once: {duration(entry['makespan_s'])}{but}")


def _fingerprints(experiment: Experiment) -> dict[str, str]:
    return {job.job_id: job.spec.fingerprint() for job in experiment.jobs}


def _bound(levels: Mapping[str, dict[str, Any]], capacity: int) -> None:
    """Of every level, by how long the jobs took at the lowest one, where they were least in each other's way."""
    lowest = min(levels, key=int)
    jobs = [(job["ended_s"] - job["started_s"], len(job["cpus"])) for job in levels[lowest]["jobs"]]
    for level, entry in levels.items():
        entry["lower_bound_s"] = lower_bound_s(jobs, at_once=int(level), cores=capacity)
        entry["bound_by_level"] = int(lowest)


def _measure(jobs: Sequence[Job], level: int, ground: Ground) -> dict[str, Any]:
    folder = ground.scratch / f"strong-{level}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    request, run_paths = folder / "request.json", RunPaths(folder / "run")
    command = write_request(request, jobs, run_dir=run_paths.root, max_parallel=level, grace_s=GRACE_S)
    token = f"{ground.token}/strong-{level}"
    popen = start(command, folder / "log", baselines.environment(ARMS["pinned"], 1, token=token))
    try:
        while popen.poll() is None:
            time.sleep(LOOK_EVERY_S)
    finally:
        end_group(popen)
        ground.sentinel.sweep(token)
    try:
        rows = json.loads(run_paths.summary_json.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        why = (folder / "log").read_text(errors="replace").strip()
        raise UsageError(f"strong scaling: the experiment could not be run: {why}") from None
    return _entry(rows)


def _entry(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A level of ``strong.json`` from the rows of ``summary.json``."""
    launched = [row for row in rows if row["started_at"] is not None]
    begun = min((row["started_at"] for row in launched), default=0.0)
    jobs = [
        {
            "job_id": row["job_id"],
            "cpus": row["cpus"],
            "started_s": row["started_at"] - begun,
            "ended_s": row["started_at"] - begun + (row["wall_s"] or 0.0),
            "env_steps": row["env_steps"],
            "state": row["state"],
        }
        for row in launched
    ]
    return {"makespan_s": max((job["ended_s"] for job in jobs), default=0.0), "jobs": jobs}
