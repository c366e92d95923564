"""The results of the sections of :mod:`benchmarks.machine`, as cases with figures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from orchestrator.analysis.run_reader import read_json_object
from orchestrator.core.errors import UsageError
from orchestrator.core.paths import RunPaths
from orchestrator.features.bench import rank_analysis, samples, scaling_analysis, strong_scaling
from orchestrator.features.bench.rank_benchmark import REFERENCE_WAY
from orchestrator.features.bench.samples import Benchmark, LevelSamples

STEPS = "env_steps/s"
COST = "cost"
CPU_MS = "CPU, ms per 1,000 env_steps"
WAIT_MS = "waiting for a CPU, ms per 1,000 env_steps"
MAKESPAN = "makespan, s"
OF_BOUND = "makespan / lower bound"
LESS_IS_BETTER = (COST, CPU_MS, WAIT_MS, MAKESPAN, OF_BOUND)

Values = dict[str, list[float]]
"""Figure → one value per repeat."""


class Content(NamedTuple):
    cases: Mapping[str, Values] = {}
    bounds: list[str] = []  # noqa: RUF012 - never changed
    """Cases whose values are upper bounds, of measurements that were cut off."""
    notes: list[str] = []  # noqa: RUF012


def of_scaling(robot: str, folder: str, out: Path) -> Content:
    """A case for each baseline and level. The notes name what takes the rest, by metrics of the
    kernel."""
    bench = samples.read(out / folder)
    analysis = scaling_analysis.analyse(out / folder)
    cases: dict[str, Values] = {}
    bounds = []
    notes = [entry["text"] for entry in analysis["attribution"]]
    for baseline, measured in bench.baselines.items():
        for level, one in measured.items():
            case = f"{robot}, {baseline} × {level}"
            cases[case] = _level(bench, baseline, level)
            bounds += [case] if one.at_most else []
    pinned = bench.baselines.get("pinned", {})
    cores = int(bench.plan["machine"]["physical_cores"])
    cpus = len(bench.plan["machine"]["cpus"])
    if cpus > cores and {cpus, cores} <= pinned.keys():
        case = f"{robot}, {cpus} processes on SMT siblings / {cores} on cores"
        cases[case] = {"gain": ratios(pinned[cpus], pinned[cores])}
    law = analysis["usl"].get("pinned", {})
    notes += [f"Universal Scalability Law: {law['text']}."] if law.get("levels") else []
    return Content(cases, bounds, notes + _failed(bench.failed))


def _level(bench: Benchmark, baseline: str, level: int) -> Values:
    measured = bench.baselines[baseline][level]
    pinned = bench.baselines.get("pinned", {})
    values = {
        STEPS: measured.throughputs,
        "a process": [value / level for value in measured.throughputs],
    }
    if baseline != "pinned" and level in pinned:
        values["of pinned"] = ratios(measured, pinned[level])
    elif level > 1 and 1 in pinned:
        values["efficiency"] = [
            value / min(level, bench.capacity) for value in ratios(measured, pinned[1])
        ]
    if not measured.at_most:
        values[CPU_MS] = [1e3 * value for value in measured.values("cpu")]
        values[WAIT_MS] = [1e3 * value for value in measured.values("run_delay")]
    return values


def ratios(above: LevelSamples, below: LevelSamples) -> list[float]:
    """Throughputs of the same repeats, divided."""
    others = {sample.repeat: sample.throughput for sample in below.samples}
    return [one.throughput / others[one.repeat] for one in above.samples if one.repeat in others]


def _failed(failed: samples.Failed) -> list[str]:
    return [
        f"{name} × {level}: {'; '.join(why)}"
        for name, each in failed.items()
        for level, why in each.items()
    ]


def of_makespans(folder: str, out: Path) -> Content:
    strong = strong_scaling.read(RunPaths(out / folder).bench / strong_scaling.FILE)
    if strong is None:
        raise UsageError("no makespan is measured yet")
    lost = {level: strong.incomplete(level) for level in strong.levels}
    complete = {int(level): one for level, one in strong.levels.items() if not lost[level]}
    seconds = {level: one.makespan_s for level, one in complete.items()}
    cases: dict[str, Values] = {}
    for level in sorted(seconds):
        values = {
            MAKESPAN: [seconds[level]],
        }
        if bound_s := complete[level].lower_bound_s:
            values[OF_BOUND] = [seconds[level] / bound_s]
        values |= {"speed-up": [seconds[1] / seconds[level]]} if 1 in seconds else {}
        cases[f"robots.toml, {level} at once"] = values
    return Content(
        cases,
        [],
        [f"{level} at once: {', '.join(names)}" for level, names in lost.items() if names],
    )


def of_ranks(folder: str, out: Path) -> Content:
    facts = rank_analysis.facts(out / folder)
    if facts is None:
        raise UsageError("no number of ranks is measured yet")
    records = samples.records(RunPaths(out / folder).bench / "ranks.jsonl")[0]
    ways, failed = samples.by_baseline(records, list(facts["ways"]))
    one = ways.get(REFERENCE_WAY, {}).get(1)
    cases: dict[str, Values] = {}
    bounds = []
    for way, numbers in ways.items():
        for number, measured in numbers.items():
            case = f"wide.toml, {way} × {number}"
            cases[case] = {STEPS: measured.throughputs}
            if one is not None and number > 1:
                cases[case]["speed-up"] = ratios(measured, one)
            bounds += [case] if measured.at_most else []
    return Content(cases, bounds, [*facts["sentences"], *facts["notes"], *_failed(failed)])


def of_experiment(part: str, figure: str, out: Path) -> Content:
    """Lines of ``benchmarks.experiment``, without what stands in brackets there and differs between
    machines."""
    record = read_json_object(out / f"{part}.json")
    if record is None:
        raise UsageError(f"{part}.json is missing")
    return Content(
        {
            line["what"].partition(" (")[0]: {figure: line["values"]}
            for line in record["parts"][part]
        }
    )
