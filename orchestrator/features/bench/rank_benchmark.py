"""``bench --ranks``: one job over several processes, compared with as many jobs and with
Stable-Baselines3's own way.

The measurements are those of weak scaling, except that instead of a baseline they name a way in
which one job, or several, get that many processes. ``ranks.json`` is the plan, ``ranks.jsonl`` the
log.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from orchestrator.core.errors import UsageError
from orchestrator.core.text import count
from orchestrator.core.worker_spec import Mode
from orchestrator.features.bench import plan
from orchestrator.features.bench.benchmark_plan import BenchmarkPlan
from orchestrator.features.bench.measurement import Measurement
from orchestrator.features.bench.plan import BenchOptions
from orchestrator.features.bench.workload import Work
from orchestrator.jobfile import Experiment
from orchestrator.jobfile.rank_rules import uneven
from orchestrator.machine.topology import Machine, largest_job

REFERENCE_WAY = "allreduce"
"""The way under which the reference, one job of one rank, is recorded."""
ONE_JOB_WAYS = ("allreduce", "parameter-server")
"""Ways that are one job of several ranks."""
WAYS: Mapping[str, str] = {
    "allreduce": "one job of several ranks, each of which takes every step with the averaged gradient",
    "parameter-server": "one job of several ranks, of which the first takes the steps and sends the parameters",
    "jobs": "several jobs of one rank each",
    "subproc": "one job of stock Stable-Baselines3 on the cores of the ranks: SubprocVecEnv with one process per "
    "environment",
}
START_S = 60.0
"""Added to the time limit: ranks must connect, and SubprocVecEnv starts many processes."""


def numbers(text: str) -> list[int]:
    """``"2,4"`` → 1, 2, 4: the reference of one rank is always measured. :raises UsageError: for
    anything else.
    """
    given = plan.whole_numbers(text)
    if not given or min(given) < 1 or max(given) == 1:
        raise UsageError(
            f"--ranks {text}: expected numbers of ranks, one of them above 1, such as 1,2,4"
        )
    return sorted({1, *given})


def fitting_ranks(
    ranks: Sequence[int], work: Work, machine: Machine
) -> tuple[list[int], list[str]]:
    """The numbers of ranks that can be measured on this machine, and notes on the others, in
    sentences.

    :raises UsageError: only one rank can be measured.
    """
    cores = work.job.resources.cores
    fit = []
    notes = []
    for number in ranks:
        if why := _unfit(number, work, machine):
            notes.append(f"{number} ranks are left out: {why}.")
            continue
        fit.append(number)
        if number * cores > machine.capacity:
            shared = count(machine.capacity, "physical core")
            notes.append(
                f"{number} ranks with {count(cores, 'core')} each share {shared}, or what a CPU quota allows."
            )
    if fit in ([], [1]):
        raise UsageError(
            f"--ranks: no number of ranks above 1 can be measured on this machine. {' '.join(notes)}"
        )
    return fit, notes


def _unfit(number: int, work: Work, machine: Machine) -> str:
    """Why that number of ranks cannot be measured; empty where it can."""
    cores = work.job.resources.cores
    largest = largest_job(machine)
    if number * cores > largest or not plan.has_slots(machine, number, cores):
        return (
            f"they ask for {count(number * cores, 'core')}, and this machine has {largest} for jobs"
        )
    for name, value in (
        ("n_envs", work.job.spec.n_envs),
        ("batch_size", work.hyperparameter("batch_size")),
    ):
        if value % number:
            return uneven(name, value, number)
    return ""


def plan_of(
    experiment: Experiment,
    work: Work,
    machine: Machine,
    options: BenchOptions,
    ranks: Sequence[int],
    notes: Sequence[str],
) -> BenchmarkPlan:
    """``ranks.json`` before anything has been measured. :param ranks: numbers of ranks, including
    1.
    """
    ways = dict(WAYS)
    notes = list(notes)
    processes = work.job.spec.n_envs + 1
    if processes > plan.max_processes(machine):
        del ways["subproc"]
        notes.append(
            f"subproc is left out: {processes} processes of {plan.PROCESS_MIB} MiB do not fit into memory."
        )
    document = plan.document(experiment, work, machine, options, ways, ranks, notes)
    # One rank is the same in every way, except for Stable-Baselines3's own, which uses more cores
    # than one rank has.
    order = [
        (way, number, repeat)
        for way, number, repeat in document["order"]
        if number > 1 or way == REFERENCE_WAY
    ]
    return {**document, "order": order}


def started_as(measurement: Measurement, work: Work) -> tuple[Measurement, Work]:
    """The baseline, the number of processes and the work that are started to measure one of
    :data:`WAYS`.
    """
    way = measurement.baseline
    ranks = measurement.level
    if way == "jobs":
        return dataclasses.replace(measurement, baseline="pinned"), work
    if way == "subproc":
        return dataclasses.replace(measurement, level=1), work.over_ranks(ranks)
    mode: Mode = "parameter-server" if way == "parameter-server" else "allreduce"
    one_job = dataclasses.replace(measurement, baseline="pinned", level=1)
    return one_job, work.over_ranks(ranks, mode)
