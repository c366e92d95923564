"""What a benchmark measures, and on which machine: ``bench/plan.json``."""

from __future__ import annotations

import json
import platform
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

from orchestrator.core.errors import UsageError
from orchestrator.core.files.atomic_files import write_whole
from orchestrator.features.bench.baselines import BASELINES
from orchestrator.features.bench.benchmark_plan import BenchmarkPlan, MachineFacts
from orchestrator.features.bench.measurement import Measurement
from orchestrator.features.bench.workload import Work
from orchestrator.jobfile import Experiment
from orchestrator.machine import provenance
from orchestrator.machine.slots import SlotPool
from orchestrator.machine.topology import Machine, cpu_model

Document = TypeVar("Document", bound=Mapping[str, object])
"""A plan, or what else a benchmark writes and continues."""
FORMAT = 1
PROCESS_MIB = 400
"""Most memory of a process: one with the stock learner, as in the baselines with default
threads."""
MUST_MATCH = (
    "format",
    "jobs",
    "fingerprint",
    "robot_hash",
    "learner",
    "arms",
    "levels",
    "repeats",
    "seconds",
    "seed",
    "machine",
)
"""Entries that must be the same when a benchmark is continued: its table compares like with
like."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    run_dir: Path
    levels: str = "auto"
    baselines: tuple[str, ...] = tuple(BASELINES)
    repeats: int = 5
    seconds: float = 20.0
    seed: int = 0
    job: str | None = None
    strong_seconds: float = 120.0
    """Seconds of one core's work to which the experiment is scaled down for strong scaling; 0 skips
    it."""
    why_no_strong: str = ""
    """Why it is skipped, as a clause."""
    ranks: str | None = None
    """Numbers of ranks, such as ``1,2,4``: measures one job over several processes instead."""


def levels(text: str, machine: Machine, cores: int) -> tuple[int, ...]:
    """``"1,2,4"`` → those numbers; ``"auto"``: 1, 2, 4 … up to what the machine runs at once, then
    twice that.

    ``"auto"`` leaves out the levels that do not fit into memory.

    :param cores: number that each process takes.
    :raises UsageError: for anything else, and for levels that do not fit into memory.
    """
    most = max_processes(machine)
    if text == "auto":
        jobs_at_once = max(1, machine.capacity // cores)
        powers = [2**power for power in range(jobs_at_once.bit_length())]
        return tuple(
            level for level in sorted({*powers, jobs_at_once, 2 * jobs_at_once}) if level <= most
        )
    numbers = whole_numbers(text)
    if not numbers or min(numbers) < 1:
        raise UsageError(f'--levels {text}: expected "auto" or numbers of processes such as 1,2,4')
    if max(numbers) > most:
        asked = f"{max(numbers)} processes of {PROCESS_MIB} MiB"
        total = f"{machine.memory_total_mib:,} MiB"
        raise UsageError(
            f"--levels {text}: {asked} do not fit into the {total} of this machine; at most {most} do"
        )
    return tuple(sorted(numbers))


def whole_numbers(text: str) -> set[int]:
    """``"4, 2,"`` → those numbers; empty where ``text`` holds anything else."""
    try:
        return {int(part) for part in text.split(",") if part.strip()}
    except ValueError:
        return set()


def max_processes(machine: Machine) -> int:
    """The number of processes that fit into memory."""
    return max(1, machine.memory_total_mib // PROCESS_MIB)


def has_slots(machine: Machine, level: int, cores: int) -> bool:
    """Whether the supervisor would run ``level`` jobs at once on this machine."""
    pool = SlotPool(machine, level)
    return all(pool.acquire(cores) is not None for _ in range(level))


def order(
    baselines: Sequence[str], levels: Sequence[int], repeats: int, seed: int
) -> list[Measurement]:
    """All measurements. Each repeat holds every one of them once, in a random order of its own.

    So a machine that becomes slower with time favours no baseline, and an interrupted benchmark is
    as balanced as it can be.
    """
    rng = random.Random(seed)
    measurements = []
    for repeat in range(repeats):
        block = [
            Measurement(baseline=name, level=level, repeat=repeat)
            for name in baselines
            for level in levels
        ]
        rng.shuffle(block)
        measurements += block
    return measurements


def machine_facts(machine: Machine) -> MachineFacts:
    return {
        "cpu_model": cpu_model(),
        "cpus": [cpu.index for cpu in machine.cpus],
        "physical_cores": machine.physical_cores,
        "numa_nodes": len({cpu.numa_node for cpu in machine.cpus}),
        "cpu_quota": machine.quota,
        "capacity": machine.capacity,
        "memory_total_mib": machine.memory_total_mib,
        "platform": platform.platform(),
    }


def document(
    experiment: Experiment,
    work: Work,
    machine: Machine,
    options: BenchOptions,
    baselines: Mapping[str, str],
    levels: Sequence[int],
    notes: Sequence[str],
) -> BenchmarkPlan:
    """``plan.json`` before anything has been measured. :param baselines: name → description."""
    spec = work.job.spec
    resources = work.job.resources
    planned = order([*baselines], levels, options.repeats, options.seed)
    return {
        "format": FORMAT,
        "name": experiment.name,
        "source": experiment.source,
        "jobs": [work.job.job_id],
        "fingerprint": spec.fingerprint(),
        "robot_hash": work.robot_hash,
        "work": {
            "task": work.task or spec.env or spec.entry_point,
            "n_envs": spec.n_envs,
            "steps_an_iteration": spec.steps_an_iteration,
            "updates_an_iteration": work.updates_an_iteration,
            "cores": resources.cores,
            "threads": resources.threads,
        },
        "learner": spec.learner,
        "arms": list(baselines),
        "about_arms": dict(baselines),
        "levels": list(levels),
        "repeats": options.repeats,
        "seconds": options.seconds,
        "seed": options.seed,
        "order": [(one.baseline, one.level, one.repeat) for one in planned],
        "machine": machine_facts(machine),
        "versions": provenance.versions(),
        "notes": list(notes),
        "calibration": None,
    }


def begin(path: Path, new: Document, must_match: Iterable[str] = MUST_MATCH) -> Document:
    """The plan at ``path`` where a benchmark is continued, or else ``new``.

    :raises UsageError: the plan at ``path`` cannot be read, or measures something else; names the
        differences.
    """
    if not path.exists():
        return new
    try:
        current = dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"{path}: cannot be read ({error}); choose another --run-dir, or remove this one"
        ) from error
    if changed := differences(current, {name: new[name] for name in must_match}):
        advice = "Give the same settings to continue it, or another --run-dir"
        raise UsageError(
            f"{path.parent.parent}: holds a benchmark with other settings: {'; '.join(changed)}. {advice}"
        )
    return cast(Document, current)


def differences(current: Mapping[str, object], expected: Mapping[str, object]) -> list[str]:
    """``["seconds was 20, is 5", "machine.cpu_quota was null, is 2.0"]``."""
    changes = []
    for name, value in expected.items():
        before = current.get(name)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            changes += [f"{name}.{change}" for change in differences(before, value)]
        elif before != value:
            changes.append(f"{name} was {json.dumps(before):.80}, is {json.dumps(value):.80}")
    return changes


def write(path: Path, document: Mapping[str, object]) -> None:
    write_whole(path, json.dumps(document, indent=1) + "\n")
