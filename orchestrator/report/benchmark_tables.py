"""The tables of a benchmark: throughput of every baseline and level, and the metrics that explain it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from orchestrator.core.text import count
from orchestrator.report.document import Columns, Part, Table, Text, table
from orchestrator.report.number_format import interval, number, percent, plain

Facts = Mapping[str, Any]
Baselines = Mapping[str, Mapping[int, Any]]
"""Baseline → processes → its entry in ``arms.<baseline>.levels`` of ``report.json``."""
Row = tuple[str, int, Facts]
"""Baseline, processes, entry."""

METRICS: dict[str, tuple[str, str, float]] = {
    "update (ms)": ("", "update_s", 1e3),
    "all (ms)": ("", "wall_s", 1e3),
    "computing (ms)": ("witnesses", "cpu_s", 1e3),
    "waiting for a CPU (ms)": ("witnesses", "run_delay_s", 1e3),
    "throttled (ms)": ("witnesses", "throttled_s", 1e3),
    "involuntary switches": ("witnesses", "involuntary_switches", 1.0),
    "threads": ("witnesses", "n_threads", 1.0),
    "MiB": ("witnesses", "rss_mib", 1.0),
    "imports (s)": ("startup", "import_s", 1.0),
    "first env_step (s)": ("startup", "first_step_s", 1.0),
}
"""Column → place of its estimate in a level's entry, and the factor to the column's unit."""

METRICS_EXPLAINED = (
    "“Computing” grows without “waiting for a CPU” where cores become slower (frequency, a shared core, memory "
    "bandwidth). Waiting and involuntary switches grow where too many threads compete for the cores. “Throttled” is "
    "time lost to a cgroup's limit. From “all” to “involuntary switches”: per 1,000 env_steps, summed over threads. "
    "“Update” is one minibatch. Imports and first env_step are measured from the start of the process."
)


def _rows(baselines: Baselines) -> list[Row]:
    return [(name, level, one) for name, levels in baselines.items() for level, one in levels.items()]


def throughput(baselines: Baselines) -> Table:
    """env_steps/s, speed-up and efficiency."""
    columns: Columns[Row] = {
        "baseline × processes": lambda row: f"{plain(row[0])} × {row[1]}",
        "env_steps/s": lambda row: _bounded(row, "throughput", number),
        "speed-up": lambda row: _bounded(row, "speedup", number),
        "efficiency": lambda row: _bounded(row, "efficiency", percent),
        "repeats": lambda row: str(row[2]["throughput"]["n"]),
        "remarks": lambda row: remarks(row[2]),
    }
    caption = (
        "Medians over measurements with their 95 % intervals. “≤”: cut off, so an upper bound. Speed-up and efficiency "
        "are relative to the first row of the same baseline."
    )
    return table(_rows(baselines), columns, caption=caption, text=("baseline × processes", "remarks"))


def _bounded(row: Row, name: str, form: Callable[[float | None], str]) -> str:
    _, level, one = row
    if name != "throughput" and level == one["base"] and one[name]:
        return form(one[name]["median"])  # relative to itself: no measurement, so without an interval
    return ("≤ " if one["at_most"] and one[name] else "") + interval(one[name], form)


def remarks(one: Facts) -> str:
    """Numbers of measurements that are not simply counted, and the reasons."""
    parts = ["only disturbed measurements: not reliable"] if one["disturbed"] else []
    for status in ("failed",) if one["disturbed"] else ("disturbed", "failed"):
        if one["cells"].get(status):
            parts.append(f"{count(one['cells'][status], f'{status} measurement')} left out")
    if one["cells"].get("cut"):
        parts.append(f"{count(one['cells']['cut'], 'measurement')} cut off")
    return plain("; ".join([*parts, *map(str, one["messages"])]), 200)


def failures(failed: Mapping[str, Mapping[str, Sequence[str]]], preposition: str) -> list[Part]:
    """What could not be measured: baseline, or way to use ranks, → level → reasons."""
    sentences = [
        f"{plain(name)} {preposition} {level}: nothing could be measured. {plain('; '.join(reasons), 300)}"
        for name, levels in failed.items()
        for level, reasons in levels.items()
    ]
    return [Text(sentences=sentences, tone="bad")] if sentences else []


def metrics(baselines: Baselines) -> Table | None:
    """A table of the metrics; None where no level has any."""
    rows = [row for row in _rows(baselines) if row[2]["wall_s"]]
    first = "baseline × processes"
    columns: Columns[Row] = {
        first: lambda row: f"{plain(row[0])} × {row[1]}{' (≥)' if row[2]['at_most'] else ''}",
        **{name: partial(_metric, place) for name, place in METRICS.items()},
    }
    return table(rows, columns, caption="Metrics of one process: medians.", text=(first,), shown=0) if rows else None


def _metric(place: tuple[str, str, float], row: Row) -> str:
    part, name, scale = place
    estimate = (row[2][part] if part else row[2]).get(name)
    return number(None if not estimate or estimate["median"] is None else estimate["median"] * scale)
