"""The procedure of the ``bench`` command: from a job file and options to measurements in a run
directory.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.client.stop_signals import StopRequests
from orchestrator.core.errors import UsageError, disk_full_explained
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import count
from orchestrator.experiment import run_directory
from orchestrator.features.bench import (
    plan,
    rank_benchmark,
    strong_scaling,
    weak_scaling,
    workload,
)
from orchestrator.features.bench.baselines import BASELINES
from orchestrator.features.bench.measurement import MeasurementLog
from orchestrator.features.bench.plan import BenchOptions
from orchestrator.features.bench.runner import Setup, set_up
from orchestrator.features.bench.workload import Work
from orchestrator.jobfile import Experiment
from orchestrator.machine import topology
from orchestrator.machine.topology import Machine, available_memory_mib


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    run_dir: Path
    exit_code: int
    """0; 1 when a measurement failed; 130 when stopped: the same command continues the
    benchmark."""
    measured: int = 0


def _measure(
    experiment: Experiment, options: BenchOptions, paths: RunPaths, work: Work, setup: Setup
) -> BenchResult:
    """:param work: with one rank."""
    measure = _measure_scaling if options.ranks is None else _measure_ranks
    failed = measure(experiment, options, paths, work, setup)
    if failed:
        setup.tell(
            f"{count(failed, 'measurement')} failed. Run the same command again to repeat them."
        )
    return BenchResult(
        run_dir=paths.root, exit_code=1 if failed else 0, measured=_measurement_count(paths)
    )


def _measure_scaling(
    experiment: Experiment, options: BenchOptions, paths: RunPaths, work: Work, setup: Setup
) -> int:
    """Weak and strong scaling. Returns how many measurements have failed."""
    machine = setup.machine
    cores = work.job.resources.cores
    levels = plan.levels(options.levels, machine, cores)
    unfit = [level for level in levels if not plan.has_slots(machine, level, cores)]
    remarks = notes(machine, levels, unfit, cores, options.baselines)
    for remark in remarks:
        setup.tell(remark)
    about = {name: BASELINES[name].about for name in options.baselines}
    new = plan.document(experiment, work, machine, options, about, levels, remarks)
    log = MeasurementLog(paths.bench / "cells.jsonl")
    taken = weak_scaling.run(new, paths.bench / "plan.json", log, work, setup, without_pinned=unfit)
    if not options.strong_seconds:
        setup.tell(f"The makespan of the whole job file is not measured: {options.why_no_strong}.")
        return taken.failed
    fit = [level for level in levels if plan.has_slots(machine, level, 1)]
    return taken.failed + strong_scaling.run(experiment, options, paths, fit, setup, taken.alone)


def _measure_ranks(
    experiment: Experiment, options: BenchOptions, paths: RunPaths, work: Work, setup: Setup
) -> int:
    """One job over several processes. Returns how many measurements have failed."""
    ranks = rank_benchmark.numbers(options.ranks or "")
    numbers, remarks = rank_benchmark.fitting_ranks(ranks, work, setup.machine)
    for remark in remarks:
        setup.tell(remark)
    path = paths.bench / "ranks.json"
    log = MeasurementLog(paths.bench / "ranks.jsonl")
    new = rank_benchmark.plan_of(experiment, work, setup.machine, options, numbers, remarks)
    taken = weak_scaling.run(
        new,
        path,
        log,
        work,
        setup,
        started_as=rank_benchmark.started_as,
        extra_s=rank_benchmark.START_S,
    )
    return taken.failed


def run(experiment: Experiment, options: BenchOptions, tell: Callable[[str], None]) -> BenchResult:
    """Run a benchmark, or continue one.

    :raises UsageError: for what the user can correct.
    :raises DiskFullError: no space is left; finished measurements are kept.
    """
    job = workload.pick(experiment, options.job)
    machine = topology.detect()
    with contextlib.ExitStack() as stack:
        stack.enter_context(StopRequests(is_urgent=True).handle_signals())
        paths = stack.enter_context(run_directory.claim(options.run_dir))
        stack.enter_context(disk_full_explained(paths.root, "run the same command again"))
        if paths.ledger.exists():
            raise UsageError(
                f"{paths.root}: holds an experiment; choose another --run-dir for the benchmark"
            )
        try:
            shutil.rmtree(paths.staging, ignore_errors=True)
            stack.callback(shutil.rmtree, paths.staging, ignore_errors=True)
            work = workload.examine(experiment, job, paths.staging)
            ranks = job.resources.ranks
            if ranks > 1 and options.ranks is None:
                text = (
                    f"{job.job_id} is measured with one rank instead of resources.ranks = {ranks}."
                )
                tell(f"{text} Use --ranks to measure it with several.")
            paths.bench.mkdir(exist_ok=True)
            setup = stack.enter_context(set_up(paths.bench / "work", machine, tell))
            return _measure(experiment, options, paths, work.over_ranks(1), setup)
        except KeyboardInterrupt:
            tell("Stopped. Finished measurements are kept. Run the same command again to continue.")
            return BenchResult(
                run_dir=paths.root, exit_code=130, measured=_measurement_count(paths)
            )


def _measurement_count(paths: RunPaths) -> int:
    records = [
        record
        for name in ("cells", "ranks")
        for record in MeasurementLog(paths.bench / f"{name}.jsonl").read()
    ]
    return sum(record["throughput"] is not None for record in records)


def notes(
    machine: Machine,
    levels: Sequence[int],
    unfit: Sequence[int],
    cores: int,
    baselines: Sequence[str],
) -> list[str]:
    """Sentences on levels that share cores, that the supervisor does not run, or that may not fit
    into memory.
    """
    sentences = []
    if over := [level for level in levels if level * cores > machine.capacity]:
        needed = count(cores, "core")
        available = count(machine.capacity, "core")
        sentences.append(
            f"Over-subscribed: {_comma_separated(over)} processes with {needed} each share {available}."
        )
    if unfit and "pinned" in baselines:
        sentences.append(
            f"The supervisor never runs {_comma_separated(unfit)} such jobs at once on this machine (see `doctor`):"
            " pinned is left out at these levels."
        )
    free_mib = available_memory_mib()
    if large := [level for level in levels if level * plan.PROCESS_MIB > free_mib]:
        sentences.append(
            f"{_comma_separated(large)} processes may not fit into the {free_mib} MiB of free memory."
        )
    return sentences


def _comma_separated(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
