"""The results of a benchmark, read from its directory: for each baseline and level, the counted
measurements.

Nothing is measured here, and numpy is not needed. A last line torn by a sudden end is left out.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, cast

from orchestrator.analysis.run_reader import finite
from orchestrator.core.decoding import parsed_json
from orchestrator.core.errors import UsageError
from orchestrator.core.files.regular_files import read_regular
from orchestrator.core.paths import RunPaths
from orchestrator.core.timing_columns import PHASES as TIMED_PHASES
from orchestrator.features.bench import benchmark_plan
from orchestrator.features.bench.benchmark_plan import BenchmarkPlan

PHASES = (*(name.removesuffix("_s") for name in TIMED_PHASES), "rest")
"""Parts of an iteration, in their order; together they are its wall time."""
SUMS = ("wall", *PHASES, "cpu", "run_delay")
"""Figures in seconds per 1,000 env_steps of one process."""
COUNTS = ("voluntary_switches", "involuntary_switches")
"""Figures that are numbers per 1,000 env_steps of one process."""
SHARED_PLAN_KEYS = ("name", "jobs", "work", "machine", "versions")
"""Keys that mean the same in the plan of a benchmark of ranks."""
PLAN_FILES = ("plan.json", "ranks.json")
"""Plans of a benchmark of baselines, and of one of ranks."""
STATUSES = ("ok", "cut", "failed")


class MeasurementKey(TypedDict):
    arm: str
    level: int
    repeat: int


class Throughput(TypedDict):
    throughput: float | None
    """env_steps/s of all processes together; None for a measurement without figures."""
    window_s: float | None
    processes: Sequence[Mapping[str, Any]]
    """Figures of each, by columns of ``timings.csv``."""


class MeasurementRecord(MeasurementKey, Throughput):
    """A line of ``cells.jsonl``."""

    started_at: float
    status: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One counted measurement."""

    repeat: int
    throughput: float
    """env_steps/s of all its processes together."""
    at_most: bool
    """Whether it was cut off, so that ``throughput`` is an upper bound."""
    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelSamples:
    """One baseline at one level."""

    processes: int
    samples: Sequence[Sample]
    """In the order of their repeats, at least one."""
    statuses: Mapping[str, int]
    """Status → measurements; one that was repeated counts each time."""
    messages: Sequence[str]
    """Reasons why measurements were cut off or failed, each once."""

    @property
    def at_most(self) -> bool:
        return any(sample.at_most for sample in self.samples)

    @property
    def throughputs(self) -> list[float]:
        return [sample.throughput for sample in self.samples]

    def values(self, name: str) -> list[float]:
        """The known values of a figure."""
        return [sample.figures[name] for sample in self.samples if name in sample.figures]

    def repeats(self) -> list[int]:
        return [sample.repeat for sample in self.samples]


Levels = dict[str, dict[int, LevelSamples]]
"""Baseline → level → samples."""
Failed = dict[str, dict[int, Sequence[str]]]
"""Baseline → level without samples → the reasons."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """The content of a benchmark's directory."""

    plan: BenchmarkPlan
    baselines: Levels
    """Baselines in the plan's order, levels rising; without levels that have no samples."""
    failed: Failed
    statuses: Mapping[str, int]
    """Status → measurements."""
    unreadable: int
    """Lines of ``cells.jsonl`` that cannot be read, other than a torn last one."""
    learners: Sequence[str] = ()
    """The learners that the processes have used."""

    @property
    def capacity(self) -> int:
        """Processes that have cores of their own, at once."""
        return max(1, self.plan["machine"]["capacity"] // self.plan["work"]["cores"])

    @property
    def budget(self) -> int:
        """Threads of a process in the baselines with a thread budget."""
        return self.plan["work"]["threads"]


def is_benchmark(run_dir: Path) -> bool:
    return any((RunPaths(run_dir).bench / name).exists() for name in PLAN_FILES)


@contextlib.contextmanager
def damage_explained(run_dir: Path) -> Iterator[None]:
    """Raise what goes wrong with values of another type than this program writes as damage to a
    benchmark's files.
    """
    try:
        yield
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        folder = RunPaths(run_dir).bench
        advice = "they are damaged, or of another version of this program; measure again in another --run-dir"
        raise UsageError(
            f"{folder}: its files cannot be analysed ({error!r:.200}); {advice}"
        ) from error


def read(run_dir: Path) -> Benchmark:
    """Everything but the measurements of ranks and strong scaling.

    Where ranks alone were measured, ``plan`` has what both kinds of plan say.

    :raises UsageError: when ``run_dir`` is no benchmark's directory, or nothing in it has been
        measured yet.
    """
    folder = RunPaths(run_dir).bench
    ranks = benchmark_plan.read(folder / "ranks.json")
    plan = benchmark_plan.read(folder / "plan.json")
    if not plan and ranks is not None:
        shared = {name: value for name, value in ranks.items() if name in SHARED_PLAN_KEYS}
        plan = cast(BenchmarkPlan, {**shared, "arms": [], "order": [], "notes": []})
    if not plan:
        why = "bench/plan.json is missing or unreadable. `bench` makes one"
        raise UsageError(f"{run_dir}: not a benchmark's directory: {why}")
    measurements, unreadable = records(folder / "cells.jsonl")
    has_strong = (folder / "strong.json").exists()
    if not measurements and not has_strong and ranks is None:
        advice = "run the same `bench` command to resume it"
        raise UsageError(f"{run_dir}: no measurement of this benchmark is finished yet; {advice}")
    baselines, failed = by_baseline(measurements, plan["arms"])
    processes = itertools.chain.from_iterable(map(_processes, measurements))
    learners = {one["learner"] for one in processes if one.get("learner")}
    return Benchmark(
        plan=plan,
        baselines=baselines,
        failed=failed,
        statuses=_statuses(measurements),
        unreadable=unreadable,
        learners=sorted(learners),
    )


def by_baseline(
    records: Sequence[MeasurementRecord], order: Sequence[str]
) -> tuple[Levels, Failed]:
    """Samples by baseline, in ``order``, and level, rising; and the reasons where all measurements
    failed.
    """
    groups: dict[tuple[str, int], list[MeasurementRecord]] = {}
    for record in records:
        groups.setdefault((record["arm"], record["level"]), []).append(record)
    names = [*order, *(baseline for baseline, _ in groups)]
    baselines: Levels = {}
    failed: Failed = {}
    for baseline, level in sorted(groups, key=lambda key: (names.index(key[0]), key[1])):
        measurements = groups[baseline, level]
        if samples := _level(level, measurements):
            baselines.setdefault(baseline, {})[level] = samples
        else:
            failed.setdefault(baseline, {})[level] = _messages(measurements)
    return baselines, failed


def records(path: Path) -> tuple[list[MeasurementRecord], int]:
    """The measurements of a ``cells.jsonl``, and the number of other lines; a last line without
    newline is neither.
    """
    try:
        lines = read_regular(path).split(b"\n")[:-1]
    except FileNotFoundError:
        return [], 0
    except (OSError, ValueError) as error:
        advice = "restore it, or measure again in another --run-dir"
        raise UsageError(f"{path}: cannot be read ({error}); {advice}") from error
    measurements = [_measurement(line) for line in lines if line.strip()]
    readable = [record for record in measurements if record is not None]
    return readable, len(measurements) - len(readable)


def _measurement(line: bytes) -> MeasurementRecord | None:
    """The measurement in a line of ``cells.jsonl``; None for a line that is no such record."""
    try:
        record = parsed_json(line)
    except ValueError:
        return None
    is_valid = (
        isinstance(record, Mapping)
        and isinstance(record.get("arm"), str)
        and all(isinstance(record.get(name), int) for name in ("level", "repeat"))
        and record.get("status") in STATUSES
        and (record["status"] == "failed" or (finite(record.get("throughput")) or 0.0) > 0)
    )
    return cast(MeasurementRecord, record) if is_valid else None


def _level(level: int, records: Sequence[MeasurementRecord]) -> LevelSamples | None:
    """The samples of one baseline at one level; None when all failed. Of several records of a
    repeat the last one counts.
    """
    counted = {one["repeat"]: one for one in records if one["status"] in ("ok", "cut")}
    samples = [
        Sample(
            repeat=repeat,
            throughput=float(one["throughput"] or 0.0),
            at_most=one["status"] == "cut",
            figures=figures(one),
        )
        for repeat, one in sorted(counted.items())
    ]
    if not samples:
        return None
    statuses = _statuses(records)
    messages = _messages(records)
    return LevelSamples(
        processes=level,
        samples=samples,
        statuses=statuses,
        messages=messages,
    )


def _statuses(records: Iterable[MeasurementRecord]) -> dict[str, int]:
    counts = Counter(one["status"] for one in records)
    return {status: counts[status] for status in STATUSES}


def _messages(records: Iterable[MeasurementRecord]) -> list[str]:
    return list(dict.fromkeys(str(one["message"]) for one in records if one.get("message")))


def figures(record: MeasurementRecord) -> dict[str, float]:
    """Figures of one process, averaged over the processes of a measurement; without those that were
    not measured.

    Besides :data:`SUMS` and :data:`COUNTS`: ``update_s``, backward and optimiser of one minibatch;
    ``runnable``, threads that computed or waited for a CPU; ``throttled``, seconds per 1,000
    env_steps for which the cgroup was kept off the CPU (a counter of the whole group, divided by
    its processes); ``allreduce``, the share of
    time that rank 0 spent in collectives, waiting included; ``n_threads``, ``rss_mib``,
    ``import_s`` and ``first_step_s``.
    """
    processes = _processes(record)
    values: dict[str, float | None] = {}
    for name in ("n_threads", "rss_mib", "import_s", "first_step_s"):
        values[name] = _ratio(_total(processes, name), len(processes))
    steps = _total(processes, "env_steps")
    if steps:
        sums = {name: _total(processes, f"{name}_s") for name in (*SUMS, "throttled")}
        sums |= {name: _total(processes, name) for name in COUNTS}
        sums["throttled"] = _ratio(sums["throttled"], len(processes))
        values |= {
            name: None if total is None else total * 1000 / steps for name, total in sums.items()
        }
        values["runnable"] = _ratio(_sum(sums["cpu"], sums["run_delay"]), sums["wall"])
        values["update_s"] = _ratio(
            _sum(sums["backward"], sums["optimizer"]), _total(processes, "updates")
        )
        values["allreduce"] = _ratio(_total(processes, "allreduce_s"), sums["wall"])
    return {name: value for name, value in values.items() if value is not None}


def _processes(record: MeasurementRecord) -> list[Mapping[str, Any]]:
    return [one for one in record.get("processes") or () if isinstance(one, Mapping)]


def _total(processes: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """A figure summed over processes; None without any, or where one has no such figure."""
    if not processes:
        return None
    return _sum(*(finite(one.get(name)) for one in processes))


def _sum(*values: float | None) -> float | None:
    """The sum; None where one of the values is not known."""
    known = [value for value in values if value is not None]
    return math.fsum(known) if len(known) == len(values) else None


def _ratio(value: float | None, by: float | None) -> float | None:
    return value / by if value is not None and by else None
