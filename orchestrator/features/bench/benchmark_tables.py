"""The tables of a benchmark: throughput of every baseline and level, and the metrics that explain
it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from orchestrator.analysis.statistics import MEDIAN_INTERVALS, EstimateFacts
from orchestrator.core.text import count
from orchestrator.features.bench.scaling_analysis import LevelFacts
from orchestrator.features.bench.throughput_ratios import MeasuredFacts
from orchestrator.report.document import Columns, Part, Table, Text, table
from orchestrator.report.number_format import interval, number, one_line, percent

Baselines = Mapping[str, Mapping[int, LevelFacts]]
"""Baseline → processes → what was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    baseline: str
    processes: int
    one: LevelFacts
    """What was measured."""

    @property
    def name(self) -> str:
        return f"{one_line(self.baseline)} × {self.processes}"


METRICS: dict[str, tuple[Callable[[LevelFacts], EstimateFacts | None], float]] = {
    "update (ms)": (lambda one: one["update_s"], 1e3),
    "all (ms)": (lambda one: one["wall_s"], 1e3),
    "computing (ms)": (lambda one: one["witnesses"]["cpu_s"], 1e3),
    "waiting for a CPU (ms)": (lambda one: one["witnesses"]["run_delay_s"], 1e3),
    "throttled (ms)": (lambda one: one["witnesses"]["throttled_s"], 1e3),
    "involuntary switches": (lambda one: one["witnesses"]["involuntary_switches"], 1.0),
    "threads": (lambda one: one["witnesses"]["n_threads"], 1.0),
    "MiB": (lambda one: one["witnesses"]["rss_mib"], 1.0),
    "imports (s)": (lambda one: one["startup"]["import_s"], 1.0),
    "first env_step (s)": (lambda one: one["startup"]["first_step_s"], 1.0),
}
"""Column → its estimate, and the factor to the column's unit."""

METRICS_EXPLAINED = (
    "“Computing” grows without “waiting for a CPU” where cores become slower (frequency, a shared core, memory "
    "bandwidth). Waiting and involuntary switches grow where too many threads compete for the cores. “Throttled” is "
    "time lost to a cgroup's limit. From “all” to “involuntary switches”: per 1,000 env_steps, summed over threads. "
    "“Update” is one minibatch. Imports and first env_step are measured from the start of the process."
)


def _rows(baselines: Baselines) -> list[Row]:
    return [
        Row(baseline=name, processes=level, one=one)
        for name, levels in baselines.items()
        for level, one in levels.items()
    ]


def throughput(baselines: Baselines) -> Table:
    """env_steps/s, speed-up and efficiency."""
    columns: Columns[Row] = {
        "baseline × processes": lambda row: row.name,
        "env_steps/s": lambda row: interval_or_bound(row.one["throughput"], row.one, number),
        "speed-up": lambda row: _relative(row, "speedup", number),
        "efficiency": lambda row: _relative(row, "efficiency", percent),
        "repeats": lambda row: str(row.one["throughput"]["n"]),
        "remarks": lambda row: remarks(row.one),
    }
    caption = (
        f"Medians over measurements with their 95 % intervals ({MEDIAN_INTERVALS}). “≤”: cut off, so an upper bound. "
        "Speed-up and efficiency are relative to the first row of the same baseline."
    )
    return table(
        _rows(baselines), columns, caption=caption, text=("baseline × processes", "remarks")
    )


def _relative(
    row: Row, name: Literal["speedup", "efficiency"], form: Callable[[float | None], str]
) -> str:
    estimate = row.one[name]
    if row.processes == row.one["base"] and estimate:
        # Relative to itself: no measurement, so without an interval.
        return form(estimate["median"])
    return interval_or_bound(estimate, row.one, form)


def interval_or_bound(
    estimate: EstimateFacts | None, one: MeasuredFacts, form: Callable[[float | None], str]
) -> str:
    """An estimate that is an upper bound where measurements were cut off."""
    return ("≤ " if one["at_most"] and estimate else "") + interval(estimate, form)


def remarks(one: MeasuredFacts) -> str:
    """Numbers of measurements that are not simply counted, and the reasons."""
    parts = []
    if one["cells"].get("failed"):
        parts.append(f"{count(one['cells']['failed'], 'failed measurement')} left out")
    if one["cells"].get("cut"):
        parts.append(f"{count(one['cells']['cut'], 'measurement')} cut off")
    return one_line("; ".join([*parts, *map(str, one["messages"])]), 200)


def failures(failed: Mapping[str, Mapping[str, Sequence[str]]], preposition: str) -> list[Part]:
    """What could not be measured: baseline, or way to use ranks, → level → reasons."""
    sentences = [
        f"{one_line(name)} {preposition} {level}: nothing could be measured. {one_line('; '.join(reasons), 300)}"
        for name, levels in failed.items()
        for level, reasons in levels.items()
    ]
    return [Text(sentences=sentences, tone="bad")] if sentences else []


def metrics(baselines: Baselines) -> Table | None:
    """A table of the metrics; None where no level has any."""
    rows = [row for row in _rows(baselines) if row.one["wall_s"]]
    if not rows:
        return None
    first = "baseline × processes"
    columns: Columns[Row] = {
        first: lambda row: f"{row.name}{' (≥)' if row.one['at_most'] else ''}",
        **{name: partial(_metric, *metric) for name, metric in METRICS.items()},
    }
    caption = "Metrics of one process: medians."
    return table(rows, columns, caption=caption, text=(first,), shown=0)


def _metric(metric: Callable[[LevelFacts], EstimateFacts | None], scale: float, row: Row) -> str:
    estimate = metric(row.one)
    return number(None if estimate is None else estimate["median"] * scale)
