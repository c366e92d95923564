"""Strong scaling: the makespan of the whole job file at each level, against a lower bound of any
schedule.
"""

from __future__ import annotations

import dataclasses
import json
import math
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.core.decoding import Positive, from_values, parsed_json
from orchestrator.core.errors import UsageError
from orchestrator.core.job import Job
from orchestrator.core.paths import RunPaths
from orchestrator.core.processes.child_process import end_group
from orchestrator.core.text import duration
from orchestrator.features.bench import baselines, plan
from orchestrator.features.bench.baselines import BASELINES
from orchestrator.features.bench.measured_processes import start
from orchestrator.features.bench.plan import BenchOptions
from orchestrator.features.bench.runner import Setup
from orchestrator.features.bench.supervised_jobs import write_request
from orchestrator.features.bench.workload import training_alone
from orchestrator.jobfile import Experiment

FORMAT = 1
FILE = "strong.json"
LEAST_ITERATIONS = 3
POLL_INTERVAL_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    job_id: str
    cpus: tuple[int, ...]
    started_s: float
    ended_s: float
    state: str = "SUCCEEDED"
    env_steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Level:
    makespan_s: float
    jobs: tuple[_Job, ...]
    lower_bound_s: float | None = None
    bound_by_level: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Document:
    """What ``strong.json`` has to hold, as it is examined before it is used."""

    format: int
    fingerprints: Mapping[str, str]
    part: float
    total_timesteps: Mapping[str, Positive]
    levels: Mapping[str, _Level]


def shortened_jobs(jobs: Sequence[Job], budget_steps: float) -> tuple[list[Job], float]:
    """The jobs with their ``total_timesteps`` reduced by one common factor, and that factor.

    Together they have about ``budget_steps`` env_steps. Each has whole iterations, at least a few.
    Nothing is evaluated, and the only checkpoint is at the end.
    """
    part = min(1.0, budget_steps / sum(job.spec.total_timesteps for job in jobs))
    short = []
    for job in jobs:
        spec = job.spec
        iterations = max(
            LEAST_ITERATIONS, math.ceil(spec.total_timesteps * part / spec.steps_an_iteration)
        )
        spec = training_alone(spec, min(spec.total_timesteps, iterations * spec.steps_an_iteration))
        short.append(dataclasses.replace(job, spec=spec, resources=job.resources.for_measurement()))
    return short, part


def lower_bound_s(jobs: Sequence[tuple[float, int]], *, at_once: int, cores: int) -> float:
    """A bound of every schedule's makespan: the longest job, all jobs evenly over the lanes, their
    work over the cores.

    :param jobs: seconds and number of cores of each.
    """
    durations = [seconds for seconds, _ in jobs]
    return max(
        0.0,
        *durations,
        sum(durations) / at_once,
        sum(seconds * width for seconds, width in jobs) / cores,
    )


def run(
    experiment: Experiment,
    options: BenchOptions,
    paths: RunPaths,
    levels: Sequence[int],
    setup: Setup,
    rate: float,
) -> int:
    """Measure the levels that are missing or incomplete in ``strong.json``, in random order.

    Returns how many are still incomplete.

    :param rate: env_steps/s of one process, which converts ``strong_seconds`` to env_steps.
    :raises UsageError: ``strong.json`` cannot be read, or was measured with other jobs; or the
        experiment cannot be run.
    """
    path = paths.bench / FILE
    on_cpus = [job for job in experiment.jobs if not job.resources.gpus]
    jobs, part = shortened_jobs(on_cpus, options.strong_seconds * rate)
    fingerprints = {job.job_id: job.spec.fingerprint() for job in experiment.jobs}
    document: dict[str, Any] = {
        "format": FORMAT,
        "fingerprints": fingerprints,
        "part": part,
        "total_timesteps": {job.job_id: job.spec.total_timesteps for job in jobs},
        "levels": {},
    }
    earlier = _read(path)
    if earlier is not None:  # the levels measured before determine the length of the jobs
        document = earlier
        steps = document["total_timesteps"]
        if document["fingerprints"] != fingerprints or set(steps) != {job.job_id for job in jobs}:
            raise UsageError(
                f"{path}: measured with other jobs than {experiment.source} has; choose another --run-dir"
            )
        jobs = [job.with_spec(total_timesteps=steps[job.job_id]) for job in jobs]
    entries = document["levels"]
    job_ids = document["total_timesteps"]
    missing = [level for level in levels if incomplete(entries.get(str(level)), job_ids)]
    random.Random(options.seed).shuffle(missing)
    if missing:
        each_s = sum(job.spec.total_timesteps for job in jobs) / rate
        setup.tell(
            f"Strong scaling: {len(jobs)} jobs, {document['part']:.1%} of the total_timesteps of each"
            f" (at least {LEAST_ITERATIONS} iterations), about {duration(each_s)} of one core's work at each level."
        )
    for level in missing:
        entry = _measure(jobs, level, setup)
        entries[str(level)] = entry
        add_lower_bounds(entries, job_ids, setup.machine.capacity)
        plan.write(path, document)
        lost = incomplete(entry, job_ids)
        but = f", but not all jobs were completed: {', '.join(lost)}" if lost else ""
        setup.tell(f"Strong scaling, {level} at once: {duration(entry['makespan_s'])}{but}")
    return sum(bool(incomplete(entries[str(level)], job_ids)) for level in levels)


def missing_levels(paths: RunPaths, levels: Sequence[int]) -> list[int]:
    """Those that :func:`run` would measure.

    :raises UsageError: ``strong.json`` cannot be read.
    """
    document = _read(paths.bench / FILE)
    if document is None:
        return list(levels)
    entries = document["levels"]
    job_ids = document["total_timesteps"]
    return [level for level in levels if incomplete(entries.get(str(level)), job_ids)]


def _read(path: Path) -> dict[str, Any] | None:
    """What was measured before; None: nothing.

    :raises UsageError: the file is damaged, or of another version of this program.
    """
    try:
        document: dict[str, Any] = parsed_json(path.read_text(encoding="utf-8"))
        if isinstance(document, dict) and document.get("format", FORMAT) != FORMAT:
            raise ValueError(f"it has format {document['format']!r:.40}")
        levels = from_values(_Document, document).levels
        if odd := [level for level in levels if not level.isdecimal()]:
            raise ValueError(f"levels: {odd[0]!r:.40} is no number")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        expected = f"expected what this version of `bench` writes, with format {FORMAT}"
        advice = "Remove the file to measure strong scaling anew, or choose another --run-dir"
        raise UsageError(f"{path}: {expected}, found another content: {why}. {advice}") from error
    return document


def incomplete(entry: Mapping[str, Any] | None, job_ids: Iterable[str]) -> list[str]:
    """The jobs that have not succeeded at a level, with their states. :param entry: None where it
    was not measured.
    """
    states = {job["job_id"]: job.get("state", "SUCCEEDED") for job in (entry or {}).get("jobs", ())}
    return [
        f"{name} {state}"
        for name in job_ids
        if (state := states.get(name, "PENDING")) != "SUCCEEDED"
    ]


def add_lower_bounds(
    levels: Mapping[str, dict[str, Any]], job_ids: Iterable[str], capacity: int
) -> None:
    """Bounds for all levels from the durations at the lowest complete one, where jobs disturb each
    other least.
    """
    complete = [level for level, entry in levels.items() if not incomplete(entry, job_ids)]
    if not complete:
        return
    lowest = min(complete, key=int)
    jobs = [(job["ended_s"] - job["started_s"], len(job["cpus"])) for job in levels[lowest]["jobs"]]
    for level, entry in levels.items():
        entry["lower_bound_s"] = lower_bound_s(jobs, at_once=int(level), cores=capacity)
        entry["bound_by_level"] = int(lowest)


def _measure(jobs: Sequence[Job], level: int, setup: Setup) -> dict[str, Any]:
    folder = setup.scratch / f"strong-{level}"
    folder.mkdir()
    run_paths = RunPaths(folder / "run")
    command = write_request(folder / "request", jobs, run_dir=run_paths.root, max_parallel=level)
    token = f"{setup.token}/strong-{level}"
    popen = start(
        command, folder / "log", baselines.environment(BASELINES["pinned"], 1, token=token)
    )
    try:
        while popen.poll() is None:
            time.sleep(POLL_INTERVAL_S)
    finally:
        end_group(popen)
        setup.orphan_reaper.sweep(token)
    try:
        rows = json.loads(run_paths.summary_json.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        output = (folder / "log").read_text(errors="replace").strip()
        raise UsageError(f"strong scaling: the experiment could not be run: {output}") from None
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
