"""``bench --ranks``: one job over several processes, beside as many jobs, and beside what Stable-Baselines3 has for it.

Every cell is measured as those of weak scaling are (:mod:`.weak`), only that in the place of an arm there is a way of
giving one job, or several, so many processes. ``ranks.json`` is the plan, ``ranks.jsonl`` has the cells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from orchestrator.bench import plan, weak_scaling
from orchestrator.bench.plan import Cells
from orchestrator.bench.runner import Cell, Ground, measure
from orchestrator.bench.workload import Work
from orchestrator.core.errors import UsageError
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import count
from orchestrator.core.worker_spec import Mode
from orchestrator.jobfile import Experiment
from orchestrator.jobfile.distributed_keys import uneven
from orchestrator.machine.topology import Machine, largest_job

ONE = "allreduce"
"""The way under which one job of one rank, which all are compared with, stands at 1."""
TOGETHER = ("allreduce", "parameter-server")
"""Ways that are one job of so many ranks."""
WAYS: Mapping[str, str] = MappingProxyType(
    {
        "allreduce": "one job of so many ranks, each of which takes every step with the averaged gradient",
        "parameter-server": "one job of so many ranks, of which the first takes the steps and sends the parameters",
        "jobs": "so many jobs of one rank each",
        "subproc": (
            "one job of stock Stable-Baselines3 on the cores of so many ranks: SubprocVecEnv with a process for every "
            "environment"
        ),
    }
)
START_S = 60.0
"""Beyond the time limit of a cell of one process: ranks must meet, and SubprocVecEnv starts many processes."""

Told = Callable[[str], None]


def numbers(text: str) -> list[int]:
    """``"2,4"`` → 1, 2, 4: what is compared with one rank needs that one.

    :raises UsageError: for anything else.
    """
    try:
        found = {int(part) for part in text.split(",") if part.strip()}
    except ValueError:
        found = set()
    if not found or min(found) < 1 or max(found) == 1:
        raise UsageError(f"--ranks {text}: expected numbers of ranks, one of them above 1, such as 1,2,4")
    return sorted({1, *found})


def fitting(wanted: Sequence[int], work: Work, machine: Machine) -> tuple[list[int], list[str]]:
    """The numbers of ranks that can be measured here, and in whole sentences what is to be said about them.

    :raises UsageError: when none but 1 can.
    """
    cores = work.job.resources.cores
    kept, said = [], []
    for number in wanted:
        why = _unfit(number, work, machine)
        if why:
            said.append(f"{number} ranks are left out: {why}.")
            continue
        kept.append(number)
        if number * cores > machine.capacity:
            said.append(
                f"{number} ranks with {count(cores, 'core')} each share {count(machine.capacity, 'physical core')}, "
                "or what a CPU quota allows."
            )
    if kept in ([], [1]):
        raise UsageError(f"--ranks: nothing to be compared with one rank. {' '.join(said)}")
    return kept, said


def _unfit(number: int, work: Work, machine: Machine) -> str:
    """Why so many ranks cannot be measured; empty where they can."""
    cores, largest = work.job.resources.cores, largest_job(machine)
    if number * cores > largest or not plan.has_slots(machine, number, cores):
        return f"they ask for {count(number * cores, 'core')}, and this machine has {largest} for jobs"
    for name, value in (("n_envs", work.job.spec.n_envs), ("batch_size", work.hyperparameter("batch_size"))):
        if value % number:
            return uneven(f"{name} = {value}", value, number)
    return ""


def plan_of(
    experiment: Experiment,
    work: Work,
    machine: Machine,
    found: Sequence[int],
    *,
    repeats: int,
    seconds: float,
    seed: int,
    notes: Sequence[str],
) -> dict[str, Any]:
    """``ranks.json`` as it is before anything was measured.

    :param found: numbers of ranks, 1 among them.
    """
    ways, said = dict(WAYS), list(notes)
    n_envs, held = work.job.spec.n_envs, plan.most_held(machine)
    if n_envs + 1 > held:
        del ways["subproc"]
        said.append(f"subproc is left out: {n_envs + 1} processes of {plan.PROCESS_MIB} MiB do not fit into memory.")
    document = plan.document(
        work,
        machine,
        name=experiment.name,
        source=experiment.source,
        arms=ways,
        levels=found,
        repeats=repeats,
        seconds=seconds,
        seed=seed,
        notes=said,
    )
    # One job of one rank is the same in every way, but in Stable-Baselines3's own, which is for more cores.
    order = [[way, number, repeat] for way, number, repeat in document["order"] if number > 1 or way == ONE]
    return {**document, "order": order}


def run(paths: RunPaths, wanted: dict[str, Any], work: Work, ground: Ground, *, retakes: int, told: Told) -> int:
    """Measure, or go on measuring; how many cells have failed.

    :param wanted: as :func:`plan_of` gives it.
    :param work: of one rank.
    :raises UsageError: when ``ranks.json`` is of another measurement, or nothing can be measured.
    """
    path = paths.bench / "ranks.json"
    document = weak_scaling.calibrate(path, plan.begin(path, wanted), work, ground, told)
    cells = Cells(paths.bench / "ranks.jsonl")
    planned = [Cell(arm=way, level=number, repeat=repeat) for way, number, repeat in document["order"]]

    def take(cell: Cell) -> dict[str, Any]:
        started, todo = started_as(cell, work)
        record = measure(
            started,
            todo,
            ground,
            seconds=document["seconds"],
            limit_s=weak_scaling.limit_s(document, started.level) + START_S,
            reference_s=document["reference_s"],
        )
        return {**record, "arm": cell.arm, "level": cell.level}

    weak_scaling.run(document, cells, planned, take, retakes=retakes, told=told)
    return len(cells.missing(planned, retakes))


def started_as(cell: Cell, work: Work) -> tuple[Cell, Work]:
    """How many of which work are started in which arm, to measure a way."""
    if cell.arm == "jobs":
        return Cell(arm="pinned", level=cell.level, repeat=cell.repeat), work
    if cell.arm == "subproc":
        return Cell(arm="subproc", level=1, repeat=cell.repeat), work.over_ranks(cell.level)
    mode: Mode = "parameter-server" if cell.arm == "parameter-server" else "allreduce"
    return Cell(arm="pinned", level=1, repeat=cell.repeat), work.over_ranks(cell.level, mode)
