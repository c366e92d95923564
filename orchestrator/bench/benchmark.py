"""The procedure of the ``bench`` command: from a job file and options to measurements in a run directory."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.bench import plan, rank_benchmark, strong_scaling, tune, weak_scaling, workload
from orchestrator.bench.baselines import BASELINES
from orchestrator.bench.measurement import MeasurementLog
from orchestrator.bench.plan import BenchOptions
from orchestrator.bench.runner import Setup, set_up
from orchestrator.bench.workload import Work
from orchestrator.core.errors import DiskFullError, UsageError
from orchestrator.core.exit_codes import DISK_FULL_ERRNOS
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import count
from orchestrator.experiment import run_directory
from orchestrator.jobfile import Experiment
from orchestrator.machine import topology
from orchestrator.machine.topology import Machine, available_memory_mib
from orchestrator.supervisor.termination import StopRequests


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    run_dir: Path
    exit_code: int
    """0; 1 when a measurement failed; 130 when stopped: the same command continues the benchmark."""
    measured: int = 0
    """Number of measurements with figures."""
    lines: Sequence[str] = ()
    """Lines for the job file, from ``--tune``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Benchmark:
    experiment: Experiment
    options: BenchOptions
    paths: RunPaths
    work: Work
    """With one rank."""
    setup: Setup
    tell: Callable[[str], None]

    def run(self) -> BenchResult:
        options, paths = self.options, self.paths
        if options.tune:
            lines = tune.run(paths, self.work, self.setup, options.seconds, self.tell)
            return BenchResult(run_dir=paths.root, exit_code=0, lines=lines)
        failed = self._scaling() if options.ranks is None else self._over_ranks(options.ranks)
        if failed:
            self.tell(f"{count(failed, 'measurement')} failed. Run the same command again to repeat them.")
        return BenchResult(run_dir=paths.root, exit_code=1 if failed else 0, measured=_measured(paths))

    def _scaling(self) -> int:
        """Weak and strong scaling. Returns how many measurements have failed."""
        options, machine, cores = self.options, self.setup.machine, self.work.job.resources.cores
        levels = plan.levels(options.levels, machine, cores)
        unfit = [level for level in levels if not plan.has_slots(machine, level, cores)]
        remarks = notes(machine, levels, unfit, cores, options.baselines)
        for remark in remarks:
            self.tell(remark)
        path = self.paths.bench / "plan.json"
        about = {name: BASELINES[name].about for name in options.baselines}
        new = plan.document(self.experiment, self.work, machine, options, about, levels, remarks)
        document = weak_scaling.calibrate(path, plan.begin(path, new), self.work, self.setup, self.tell)
        planned = [
            one for one in plan.measurements_of(document) if not (one.baseline == "pinned" and one.level in unfit)
        ]
        log = MeasurementLog(self.paths.bench / "cells.jsonl")
        weak_scaling.run(
            document, log, planned, lambda one: (one, self.work), self.setup, retakes=options.retakes, tell=self.tell
        )
        if options.strong_seconds:
            strong_scaling.run(
                self.experiment,
                self.paths,
                [level for level in levels if plan.has_slots(machine, level, 1)],
                self.setup,
                budget_s=options.strong_seconds,
                rate=document["calibration"]["throughput"],
                seed=options.seed,
                tell=self.tell,
            )
        return len(log.missing(planned, options.retakes))

    def _over_ranks(self, ranks: str) -> int:
        """One job over several processes. Returns how many measurements have failed."""
        options, machine = self.options, self.setup.machine
        numbers, remarks = rank_benchmark.fitting(rank_benchmark.numbers(ranks), self.work, machine)
        for remark in remarks:
            self.tell(remark)
        new = rank_benchmark.plan_of(self.experiment, self.work, machine, options, numbers, remarks)
        return rank_benchmark.run(self.paths, new, self.work, self.setup, retakes=options.retakes, tell=self.tell)


def run(experiment: Experiment, options: BenchOptions, tell: Callable[[str], None]) -> BenchResult:
    """Run a benchmark, or continue one.

    :raises UsageError: for what the user can correct.
    :raises DiskFullError: no space is left; finished measurements are kept.
    """
    job = workload.pick(experiment, options.job)
    machine = topology.detect()
    with contextlib.ExitStack() as stack:
        stops = StopRequests()
        stops.deliver_to(_interrupt)
        stack.enter_context(stops.installed())
        paths = stack.enter_context(run_directory.claim(options.run_dir))
        if paths.ledger.exists():
            raise UsageError(f"{paths.root}: holds an experiment; choose another --run-dir for the benchmark")
        try:
            shutil.rmtree(paths.staging, ignore_errors=True)
            stack.callback(shutil.rmtree, paths.staging, ignore_errors=True)
            work = workload.examine(experiment, job, paths.staging)
            ranks = job.resources.ranks
            if ranks > 1 and options.ranks is None:
                tell(
                    f"{job.job_id} is measured with one rank instead of resources.ranks = {ranks}."
                    " Use --ranks to measure it with several."
                )
            paths.bench.mkdir(exist_ok=True)
            setup = stack.enter_context(set_up(paths.bench / "work", machine))
            benchmark = _Benchmark(
                experiment=experiment, options=options, paths=paths, work=work.over_ranks(1), setup=setup, tell=tell
            )
            return benchmark.run()
        except KeyboardInterrupt:
            tell("Stopped. Finished measurements are kept. Run the same command again to continue.")
            return BenchResult(run_dir=paths.root, exit_code=130, measured=_measured(paths))
        except OSError as error:
            if error.errno in DISK_FULL_ERRNOS:
                raise DiskFullError(
                    f"{paths.root}: no space left on the disk; free some and run the same command again"
                ) from error
            raise


def _interrupt(_reason: str) -> None:
    raise KeyboardInterrupt


def _measured(paths: RunPaths) -> int:
    records = [record for name in ("cells", "ranks") for record in MeasurementLog(paths.bench / f"{name}.jsonl").read()]
    return sum(record["throughput"] is not None for record in records)


def notes(
    machine: Machine, levels: Sequence[int], unfit: Sequence[int], cores: int, baselines: Sequence[str]
) -> list[str]:
    """Sentences on levels that share cores, that the supervisor does not run, or that may not fit into memory."""
    sentences = []
    over = [level for level in levels if level * cores > machine.capacity]
    if over:
        sentences.append(
            f"Over-subscribed: {_listed(over)} processes with {count(cores, 'core')} each share"
            f" {count(machine.capacity, 'core')}."
        )
    if unfit and "pinned" in baselines:
        sentences.append(
            f"The supervisor never runs {_listed(unfit)} such jobs at once on this machine (see `doctor`):"
            " pinned is left out at these levels."
        )
    large = [level for level in levels if level * plan.PROCESS_MIB > available_memory_mib()]
    if large:
        sentences.append(
            f"{_listed(large)} processes may not fit into the {available_memory_mib()} MiB of free memory."
        )
    return sentences


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
