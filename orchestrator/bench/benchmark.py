"""The ``bench`` command: from a job file and options to measurements in a run directory."""

from __future__ import annotations

import contextlib
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.bench import plan, rank_benchmark, strong_scaling, tune, weak_scaling, workload
from orchestrator.bench.baselines import ARMS
from orchestrator.bench.plan import Cells
from orchestrator.bench.runner import Cell, Ground, ground
from orchestrator.bench.workload import Work
from orchestrator.core.errors import DiskFullError, UsageError
from orchestrator.core.exit_codes import DISK_FULL_ERRNOS
from orchestrator.core.paths import RunPaths
from orchestrator.experiment import run_directory
from orchestrator.jobfile import Experiment
from orchestrator.machine import topology as machines
from orchestrator.machine.topology import Machine, available_memory_mib


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    run_dir: Path
    levels: str = "auto"
    arms: tuple[str, ...] = tuple(ARMS)
    repeats: int = 5
    seconds: float = 20.0
    seed: int = 0
    job: str | None = None
    retakes: int = 2
    strong_seconds: float = 120.0
    """Of one core's work that the experiment is scaled down to for strong scaling; 0 for none."""
    tune: bool = False
    ranks: str | None = None
    """Numbers of them, such as ``1,2,4``: one job over several processes, instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    run_dir: Path
    exit_code: int
    """0; 1 when a cell failed; 130 when stopped: the same command goes on."""
    measured: int = 0
    """Cells that have figures."""
    lines: Sequence[str] = ()
    """For the job file, of ``--tune``."""


def run(experiment: Experiment, options: Options, told: Callable[[str], None]) -> Finished:
    """Measure, or go on measuring.

    :raises UsageError: for what the user can mend.
    :raises DiskFullError: no space left; what was measured stands.
    """
    job = workload.pick(experiment, options.job)
    machine = machines.detect()
    with contextlib.ExitStack() as stack:
        stack.enter_context(_signals_as_interrupt())
        paths = stack.enter_context(run_directory.claim(options.run_dir))
        if paths.ledger.exists():
            raise UsageError(f"{paths.root}: holds an experiment; choose another --run-dir for the benchmark")
        try:
            shutil.rmtree(paths.staging, ignore_errors=True)
            stack.callback(shutil.rmtree, paths.staging, ignore_errors=True)
            todo = workload.examine(experiment, job, paths.staging)
            ranks_asked = job.resources.ranks
            if ranks_asked > 1 and options.ranks is None:
                told(
                    f"{job.job_id} is measured with one rank, instead of resources.ranks = {ranks_asked};"
                    " --ranks measures it with several"
                )
            todo = todo.over_ranks(1)
            paths.bench.mkdir(exist_ok=True)
            here = stack.enter_context(ground(paths.bench / "work", machine))
            if options.tune:
                return Finished(
                    run_dir=paths.root, exit_code=0, lines=tune.run(paths, todo, here, options.seconds, told)
                )
            if options.ranks is not None:
                return _over_ranks(experiment, options, paths, todo, here, told)
            return _scaling(experiment, options, paths, todo, here, told)
        except KeyboardInterrupt:
            told("stopped; what is finished is kept, and the same command goes on")
            return Finished(run_dir=paths.root, exit_code=130, measured=_measured(paths))
        except OSError as error:
            if error.errno in DISK_FULL_ERRNOS:
                raise DiskFullError(
                    f"{paths.root}: no space left; make room and give the same command again"
                ) from error
            raise


def _scaling(
    experiment: Experiment, options: Options, paths: RunPaths, todo: Work, here: Ground, told: Callable[[str], None]
) -> Finished:
    machine, cores = here.machine, todo.job.resources.cores
    levels = plan.levels(options.levels, machine, cores)
    unfit = [level for level in levels if not plan.has_slots(machine, level, cores)]
    found = notes(machine, levels, unfit, cores, options.arms)
    for note in found:
        told(note)
    document: dict[str, Any] = plan.begin(
        paths.bench / "plan.json",
        plan.document(
            todo,
            machine,
            name=experiment.name,
            source=experiment.source,
            arms={arm: ARMS[arm].about for arm in options.arms},
            levels=levels,
            repeats=options.repeats,
            seconds=options.seconds,
            seed=options.seed,
            notes=found,
        ),
    )
    wanted = [
        cell
        for cell in (Cell(arm=arm, level=level, repeat=repeat) for arm, level, repeat in document["order"])
        if not (cell.arm == "pinned" and cell.level in unfit)
    ]
    document = weak_scaling.calibrate(paths.bench / "plan.json", document, todo, here, told)
    cells = Cells(paths.bench / "cells.jsonl")
    weak_scaling.run(
        document, cells, wanted, weak_scaling.taker(document, todo, here), retakes=options.retakes, told=told
    )
    if options.strong_seconds:
        fit = [level for level in levels if plan.has_slots(machine, level, 1)]
        rate = document["calibration"]["throughput"]
        strong_scaling.run(
            experiment, paths, fit, here, budget_s=options.strong_seconds, rate=rate, seed=options.seed, told=told
        )
    return _finished(paths, len(cells.missing(wanted, options.retakes)), told)


def _over_ranks(
    experiment: Experiment, options: Options, paths: RunPaths, todo: Work, here: Ground, told: Callable[[str], None]
) -> Finished:
    assert options.ranks is not None
    numbers, found = rank_benchmark.fitting(rank_benchmark.numbers(options.ranks), todo, here.machine)
    for note in found:
        told(note)
    wanted = rank_benchmark.plan_of(
        experiment,
        todo,
        here.machine,
        numbers,
        repeats=options.repeats,
        seconds=options.seconds,
        seed=options.seed,
        notes=found,
    )
    return _finished(paths, rank_benchmark.run(paths, wanted, todo, here, retakes=options.retakes, told=told), told)


def _finished(paths: RunPaths, failed: int, told: Callable[[str], None]) -> Finished:
    if failed:
        told(f"{failed} cells failed; the same command takes them again")
    return Finished(run_dir=paths.root, exit_code=1 if failed else 0, measured=_measured(paths))


def _measured(paths: RunPaths) -> int:
    found = [record for name in ("cells", "ranks") for record in Cells(paths.bench / f"{name}.jsonl").read()]
    return sum(record["throughput"] is not None for record in found)


def notes(machine: Machine, levels: Sequence[int], unfit: Sequence[int], cores: int, arms: Sequence[str]) -> list[str]:
    """What is odd about these levels on this machine, in whole sentences."""
    said = []
    over = [level for level in levels if level * cores > machine.capacity]
    if over:
        said.append(
            f"Over-subscribed: {_listed(over)} processes with {_cores(cores)} each share {_cores(machine.capacity)}."
        )
    if unfit and "pinned" in arms:
        said.append(
            f"The supervisor never runs {_listed(unfit)} such jobs at once here (see `doctor`):"
            " pinned is left out there."
        )
    short = [level for level in levels if level * plan.PROCESS_MIB > available_memory_mib()]
    if short:
        said.append(f"{_listed(short)} processes may not fit into the {available_memory_mib()} MiB that are free.")
    return said


def _cores(count: int) -> str:
    return "1 core" if count == 1 else f"{count} cores"


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


@contextlib.contextmanager
def _signals_as_interrupt() -> Iterator[None]:
    """SIGTERM and SIGHUP stop a benchmark as Ctrl-C does; in any but the main thread they are not ours to take."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
