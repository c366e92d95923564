"""What a benchmark has measured, read from its directory: for each arm and level the counted cells and their figures.

Nothing is run here and numpy is not needed. A line that was torn by a sudden end is passed over.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.analysis.run_reader import finite, read_json_object
from orchestrator.core.errors import UsageError
from orchestrator.core.paths import RunPaths

PHASES = ("env", "policy", "gae", "backward", "optimizer", "rest")
"""Parts of an iteration, in its order; together they are its wall time."""
SUMS = ("wall", *PHASES, "cpu", "run_delay")
"""Seconds per 1,000 env_steps of one process."""
COUNTS = ("voluntary_switches", "involuntary_switches")
"""Likewise, per 1,000 env_steps of one process."""
OF_BOTH = ("name", "jobs", "work", "machine", "versions")
"""Of a plan: what is the same for ranks as for arms."""
STATUSES = ("ok", "cut", "failed", "disturbed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A cell that is counted."""

    repeat: int
    throughput: float
    """env_steps/s of all its processes together."""
    at_most: bool
    """Whether it was cut off: ``throughput`` is then a bound."""
    figures: Mapping[str, float]
    """What is known of :data:`SUMS`, :data:`COUNTS` and the rest of :func:`figures`, of one process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One arm at one level."""

    processes: int
    samples: Sequence[Sample]
    """In the order of their repeats, at least one."""
    cells: Mapping[str, int]
    """How many ended in each status; a cell that was taken again counts each time."""
    messages: Sequence[str]
    """Why cells were cut off, disturbed or failed; each reason once."""
    disturbed: bool
    """Whether only disturbed cells are there, and had to be taken."""

    @property
    def at_most(self) -> bool:
        return any(sample.at_most for sample in self.samples)

    @property
    def throughputs(self) -> list[float]:
        return [sample.throughput for sample in self.samples]

    def values(self, name: str) -> list[float]:
        """Of a figure, those that are known."""
        return [sample.figures[name] for sample in self.samples if name in sample.figures]

    def repeats(self) -> list[int]:
        return [sample.repeat for sample in self.samples]


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """A benchmark's directory."""

    plan: Mapping[str, Any]
    arms: Mapping[str, Mapping[int, Measured]]
    """Arms in the plan's order, levels rising; only what has a counted cell."""
    failed: Mapping[str, Mapping[int, Sequence[str]]]
    """Arms and levels of which no cell has figures, with the reasons."""
    cells: Mapping[str, int]
    """How many ended in each status."""
    unreadable: int
    """Lines of ``cells.jsonl`` that are none, but for a torn last one."""
    learners: Sequence[str] = ()
    """What did PPO's arithmetic, as the processes have told."""
    strong: Mapping[str, Any] | None = None
    tune: Mapping[str, Any] | None = None

    @property
    def capacity(self) -> int:
        """Processes that have cores of their own, at once."""
        machine = self.plan.get("machine") or {}
        cores = machine.get("capacity") or machine.get("physical_cores") or len(machine.get("cpus") or ()) or 1
        return max(1, int(cores) // max(1, int((self.plan.get("work") or {}).get("cores") or 1)))

    @property
    def budget(self) -> int:
        """Threads of a process in the arms with a thread budget."""
        return int((self.plan.get("work") or {}).get("threads") or 1)


PLANS = ("plan.json", "ranks.json")
"""Of arms and levels; of ranks."""


def is_benchmark(run_dir: Path) -> bool:
    return any((RunPaths(run_dir).bench / name).exists() for name in PLANS)


def read(run_dir: Path) -> Benchmark:
    """Everything that is there but for ranks; ``strong.json`` and ``tune.json`` as they are.

    Where ranks alone were measured, the plan says what they were measured with and on.

    :raises UsageError: when ``run_dir`` is no benchmark's, or no cell of it has been finished.
    """
    folder = RunPaths(run_dir).bench
    of_ranks = read_json_object(folder / "ranks.json")
    plan = read_json_object(folder / "plan.json") or (of_ranks and {name: of_ranks.get(name) for name in OF_BOTH})
    if plan is None:
        raise UsageError(
            f"{run_dir}: not a benchmark's directory: bench/plan.json is missing or unreadable. `bench` makes one"
        )
    found, unreadable = records(folder / "cells.jsonl")
    strong, tune = read_json_object(folder / "strong.json"), read_json_object(folder / "tune.json")
    if not found and strong is None and tune is None and of_ranks is None:
        raise UsageError(
            f"{run_dir}: no cell of this benchmark is finished yet; the same `bench` command goes on with it"
        )
    arms, failed = by_arm(found, plan.get("arms", ()))
    return Benchmark(
        plan=plan,
        arms=arms,
        failed=failed,
        cells=_statuses(found),
        unreadable=unreadable,
        learners=sorted({one["learner"] for record in found for one in _processes(record) if one.get("learner")}),
        strong=strong,
        tune=tune,
    )


Arms = dict[str, dict[int, Measured]]
Failed = dict[str, dict[int, Sequence[str]]]


def by_arm(records: Sequence[Mapping[str, Any]], order: Sequence[str]) -> tuple[Arms, Failed]:
    """What was measured, arms in ``order`` and levels rising; and why nothing was, where only failures are there."""
    groups: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for record in records:
        groups.setdefault((record["arm"], record["level"]), []).append(record)
    known = [*order, *dict.fromkeys(arm for arm, _ in groups)]
    arms: Arms = {}
    failed: Failed = {}
    for arm, level in sorted(groups, key=lambda key: (known.index(key[0]), key[1])):
        measured = _measured(level, groups[arm, level])
        if measured is None:
            failed.setdefault(arm, {})[level] = _messages(groups[arm, level])
        else:
            arms.setdefault(arm, {})[level] = measured
    return arms, failed


def records(path: Path) -> tuple[list[Mapping[str, Any]], int]:
    """The cells of a ``cells.jsonl``, and how many whole lines of it are none."""
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return [], 0
    found, unreadable = [], 0
    for line in filter(bytes.strip, lines):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if _is_cell(record):
            found.append(record)
        else:
            unreadable += 1
    return found, unreadable


def _is_cell(record: Any) -> bool:
    return (
        isinstance(record, Mapping)
        and isinstance(record.get("arm"), str)
        and all(isinstance(record.get(name), int) for name in ("level", "repeat"))
        and record.get("status") in STATUSES
        and (_has_figures(record) or record["status"] in ("failed", "disturbed"))
    )


def _has_figures(record: Mapping[str, Any]) -> bool:
    """Not so, where it failed, or was cut off under a disturbance and is taken again."""
    return (finite(record.get("throughput")) or 0.0) > 0


def _measured(level: int, records: Sequence[Mapping[str, Any]]) -> Measured | None:
    """None when no cell has figures. Of a cell taken twice the last one counts."""
    counted = {one["repeat"]: one for one in records if one["status"] in ("ok", "cut")}
    disturbed = {one["repeat"]: one for one in records if one["status"] == "disturbed" and _has_figures(one)}
    chosen = counted or disturbed
    if not chosen:
        return None
    return Measured(
        processes=level,
        samples=[
            Sample(
                repeat=repeat,
                throughput=float(one["throughput"]),
                at_most=one["status"] == "cut",
                figures=figures(one),
            )
            for repeat, one in sorted(chosen.items())
        ],
        cells=_statuses(records),
        messages=_messages(records),
        disturbed=not counted,
    )


def _statuses(records: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    counts = Counter(one["status"] for one in records)
    return {status: counts[status] for status in STATUSES}


def _messages(records: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(str(one["message"]) for one in records if one.get("message")))


def figures(record: Mapping[str, Any]) -> dict[str, float]:
    """Of a cell, per process; without what the system did not tell.

    ``update_s``: backward and optimiser of one minibatch. ``runnable``: threads of a process that computed or waited
    for a CPU, on average. ``throttled``: seconds per 1,000 env_steps that its cgroup was kept off the CPU; the counter
    is the group's, so each process has its part. ``others_cores``: cores busy with what is not the benchmark.
    ``allreduce``: the share of time in which rank 0 was in collectives with others, waiting for them included.
    """
    processes = _processes(record)
    found: dict[str, float] = {}
    steps = _total(processes, "env_steps")
    if steps:
        sums = {name: _total(processes, f"{name}_s") for name in (*SUMS, "throttled")}
        sums |= {name: _total(processes, name) for name in COUNTS}
        if sums["throttled"] is not None:
            sums["throttled"] /= len(processes)
        found |= {name: total * 1000 / steps for name, total in sums.items() if total is not None}
        cpu, delay, wall = sums["cpu"], sums["run_delay"], sums["wall"]
        if cpu is not None and delay is not None and wall:
            found["runnable"] = (cpu + delay) / wall
        updates, backward, optimizer = _total(processes, "updates"), sums["backward"], sums["optimizer"]
        if updates and backward is not None and optimizer is not None:
            found["update_s"] = (backward + optimizer) / updates
        allreduce = _total(processes, "allreduce_s")
        if allreduce is not None and wall:
            found["allreduce"] = allreduce / wall
    for name in ("n_threads", "rss_mib", "import_s", "first_step_s"):
        total = _total(processes, name)
        if total is not None:
            found[name] = total / len(processes)
    others = finite((record.get("drift") or {}).get("others_cores"))
    return found if others is None else {**found, "others_cores": others}


def _processes(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [one for one in record.get("processes") or () if isinstance(one, Mapping)]


def _total(processes: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """None where one of them does not say."""
    values = [finite(one.get(name)) for one in processes]
    if not values or None in values:
        return None
    return math.fsum(value or 0.0 for value in values)
