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
class TrainedJob:
    """A job that was launched while a level was measured."""

    job_id: str
    cpus: tuple[int, ...]
    started_s: float
    """Since the first start."""
    ended_s: float
    env_steps: int = 0
    state: str = "SUCCEEDED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """What was measured with so many jobs at once."""

    makespan_s: float
    jobs: tuple[TrainedJob, ...]
    lower_bound_s: float | None = None
    """None: all jobs were completed at no level."""
    bound_by_level: int | None = None
    """The level whose durations give the bound."""

    @property
    def states(self) -> dict[str, str]:
        """Of the jobs that were launched, by ``job_id``."""
        return {job.job_id: job.state for job in self.jobs}


@dataclass(frozen=True, slots=True, kw_only=True)
class StrongScaling:
    """The content of ``strong.json``."""

    format: int
    fingerprints: Mapping[str, str]
    part: float
    total_timesteps: Mapping[str, Positive]
    """Of the shortened jobs, by ``job_id``."""
    levels: Mapping[str, Level]
    """By their number of jobs at once."""

    def incomplete(self, level: int | str) -> list[str]:
        """As :func:`incomplete`, of a level that was measured, or was not."""
        measured = self.levels.get(str(level))
        return incomplete({} if measured is None else measured.states, self.total_timesteps)

    def with_level(self, level: int, measured: Level, capacity: int) -> StrongScaling:
        """With one level more, or anew, and the lower bounds that follow from it."""
        levels = {**self.levels, str(level): measured}
        return dataclasses.replace(self, levels=levels)._bounded(capacity)

    def _bounded(self, capacity: int) -> StrongScaling:
        """With bounds for all levels from the durations at the lowest complete one, where jobs
        disturb each other least.
        """
        complete = [int(level) for level in self.levels if not self.incomplete(level)]
        if not complete:
            return self
        lowest = min(complete)
        jobs = [
            (job.ended_s - job.started_s, len(job.cpus)) for job in self.levels[str(lowest)].jobs
        ]
        bounded = {
            level: dataclasses.replace(
                measured,
                lower_bound_s=lower_bound_s(jobs, jobs_at_once=int(level), cores=capacity),
                bound_by_level=lowest,
            )
            for level, measured in self.levels.items()
        }
        return dataclasses.replace(self, levels=bounded)


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


def lower_bound_s(jobs: Sequence[tuple[float, int]], *, jobs_at_once: int, cores: int) -> float:
    """A bound of every schedule's makespan: the longest job, all jobs evenly over the slots, their
    work over the cores.

    :param jobs: seconds and number of cores of each.
    """
    durations = [seconds for seconds, _ in jobs]
    return max(
        0.0,
        *durations,
        sum(durations) / jobs_at_once,
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
    strong = StrongScaling(
        format=FORMAT,
        fingerprints={job.job_id: job.spec.fingerprint() for job in experiment.jobs},
        part=part,
        total_timesteps={job.job_id: job.spec.total_timesteps for job in jobs},
        levels={},
    )
    earlier = read(path)
    if earlier is not None:  # the levels measured before determine the length of the jobs
        steps = earlier.total_timesteps
        if (
            earlier.fingerprints != strong.fingerprints
            or steps.keys() != strong.total_timesteps.keys()
        ):
            raise UsageError(
                f"{path}: measured with other jobs than {experiment.source} has; choose another --run-dir"
            )
        jobs = [job.with_spec(total_timesteps=steps[job.job_id]) for job in jobs]
        strong = earlier
    missing = [level for level in levels if strong.incomplete(level)]
    random.Random(options.seed).shuffle(missing)
    if missing:
        each_s = sum(job.spec.total_timesteps for job in jobs) / rate
        setup.tell(
            f"Strong scaling: {len(jobs)} jobs, {strong.part:.1%} of the total_timesteps of each"
            f" (at least {LEAST_ITERATIONS} iterations), about {duration(each_s)} of one core's work at each level."
        )
    for level in missing:
        measured = _measure(jobs, level, setup)
        strong = strong.with_level(level, measured, setup.machine.capacity)
        _write(path, strong)
        lost = strong.incomplete(level)
        but = f", but not all jobs were completed: {', '.join(lost)}" if lost else ""
        setup.tell(f"Strong scaling, {level} at once: {duration(measured.makespan_s)}{but}")
    return sum(bool(strong.incomplete(level)) for level in levels)


def read(path: Path) -> StrongScaling | None:
    """What was measured before; None: nothing.

    :raises UsageError: the file is damaged, or of another version of this program.
    """
    try:
        document = parsed_json(path.read_text(encoding="utf-8"))
        if isinstance(document, dict) and document.get("format") != FORMAT:
            raise ValueError(f"it has format {document.get('format')!r:.40}")
        strong = from_values(StrongScaling, document)
        if odd := [level for level in strong.levels if not level.isdecimal()]:
            raise ValueError(f"levels: {odd[0]!r:.40} is no number")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        expected = f"expected what this version of `bench` writes, with format {FORMAT}"
        advice = "Remove the file to measure strong scaling anew, or choose another --run-dir"
        raise UsageError(f"{path}: {expected}, found another content: {why}. {advice}") from error
    return strong


def _write(path: Path, strong: StrongScaling) -> None:
    document = dataclasses.asdict(strong)
    for level in document["levels"].values():
        if level["lower_bound_s"] is None:
            del level["lower_bound_s"], level["bound_by_level"]
    plan.write(path, document)


def incomplete(states: Mapping[str, str], job_ids: Iterable[str]) -> list[str]:
    """The jobs that have not succeeded at a level, with their states. :param states: of the jobs
    that were launched, by ``job_id``.
    """
    return [
        f"{name} {state}"
        for name in job_ids
        if (state := states.get(name, "PENDING")) != "SUCCEEDED"
    ]


def _measure(jobs: Sequence[Job], level: int, setup: Setup) -> Level:
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
    return _level(rows)


def _level(rows: Sequence[Mapping[str, Any]]) -> Level:
    """What was measured, from the rows of ``summary.json``."""
    launched = [row for row in rows if row["started_at"] is not None]
    begun = min((row["started_at"] for row in launched), default=0.0)
    jobs = tuple(
        TrainedJob(
            job_id=row["job_id"],
            cpus=tuple(row["cpus"]),
            started_s=row["started_at"] - begun,
            ended_s=row["started_at"] - begun + (row["wall_s"] or 0.0),
            env_steps=row["env_steps"],
            state=row["state"],
        )
        for row in launched
    )
    return Level(makespan_s=max((job.ended_s for job in jobs), default=0.0), jobs=jobs)
