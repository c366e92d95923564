"""The section of ``bench --ranks``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from orchestrator.analysis.statistics import INTERVALS, EstimateFacts
from orchestrator.features.bench import scaling_figures as figures
from orchestrator.features.bench.benchmark_tables import failures, interval_or_bound, remarks
from orchestrator.features.bench.rank_analysis import RankFacts
from orchestrator.report.document import Columns, Figure, Part, Section, Table, Text, table
from orchestrator.report.number_format import DASH, interval, number, one_line, percent

Facts = Mapping[str, Any]
ALLREDUCE = (
    "In all-reduce: share of rank 0's time in exchanges with the other ranks, waiting included."
)
ITSELF: EstimateFacts = {"value": 1.0, "low": None, "high": None, "n": 1}
"""The ratio of the base of a comparison to itself."""


def benchmark_section(result: Facts | None, cores: int) -> list[Section]:
    """:param result: as :func:`orchestrator.features.bench.rank_analysis.facts` gives it.
    :param cores: number of ranks that have cores of their own.
    """
    if result is None or result["one"] is None:
        return []
    parts: list[Part] = []
    if result["sentences"]:
        parts.append(Text(sentences=list(map(one_line, result["sentences"]))))
    speedups = _curves(result["ways"], lambda one: one["speedup"])
    efficiencies = _curves(result["ways"], lambda one: one["efficiency"])
    cut = {
        way: [int(n) for n, one in levels.items() if one["at_most"]]
        for way, levels in result["ways"].items()
    }
    if speedups:
        parts.append(
            Figure(
                name="ranks",
                title="Many jobs or one wide one",
                caption="Left: env_steps/s of each way to use more cores, relative to one job of one rank. Right: that "
                "divided by the number of ranks, or cores. “jobs” trains as many policies as there are ranks, other "
                "ways train one; “subproc” is stock Stable-Baselines3 with a process for every environment, on as many "
                f"cores. Dashed: the ideal where {cores} of them have cores of their own.",
                draw=partial(
                    figures.speedup, speedups, efficiencies, cut, cores, unit="ranks, or jobs"
                ),
            )
        )
    about = [f"{one_line(way)}: {one_line(text)}." for way, text in (result["about"] or {}).items()]
    if about:
        parts.append(Text(sentences=about))
    parts += failures(result["failed"], "over")
    parts.append(_table(result))
    if result["notes"]:
        parts.append(Text(sentences=list(map(one_line, result["notes"])), tone="dim"))
    return [Section(title="Ranks", parts=parts)]


def _table(result: Facts) -> Table:
    rows = [_Row(name="one rank", one=result["one"], is_reference=True)]
    rows += [
        _Row(name=f"{one_line(way)} × {ranks}", one=one)
        for way, numbers in result["ways"].items()
        for ranks, one in numbers.items()
    ]
    columns: Columns[_Row] = {
        "way × ranks": lambda row: row.name,
        "env_steps/s": lambda row: interval_or_bound(row.one["throughput"], row.one, number),
        "speed-up": _speedup,
        "efficiency": _efficiency,
        "in all-reduce": lambda row: interval(row.one["allreduce"], percent),
        "repeats": lambda row: str(row.one["throughput"]["n"]),
        "remarks": lambda row: remarks(row.one),
    }
    caption = (
        f"Means with 95 % intervals ({INTERVALS}). “≤”: cut off, so an upper bound. Speed-up and efficiency "
        f"are relative to one job of one rank. {ALLREDUCE}"
    )
    return table(rows, columns, caption=caption, text=("way × ranks", "remarks"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    name: str
    one: RankFacts
    """What was measured."""
    is_reference: bool = False
    """Whether the others are relative to it."""


def _speedup(row: _Row) -> str:
    if row.is_reference:
        return number(1.0)
    return interval_or_bound(row.one["speedup"], row.one, number)


def _efficiency(row: _Row) -> str:
    if row.is_reference:
        return DASH
    return interval_or_bound(row.one["efficiency"], row.one, percent)


def _curves(
    ways: Mapping[str, Mapping[str, RankFacts]], figure: Callable[[RankFacts], EstimateFacts | None]
) -> figures.Curves:
    """Way → ranks → estimate. All ways but Stable-Baselines3's own begin with the one rank they are
    compared with.
    """
    known = {
        way: {int(ranks): estimate for ranks, one in levels.items() if (estimate := figure(one))}
        for way, levels in ways.items()
    }
    return {
        way: levels if way == "subproc" else {1: ITSELF, **levels}
        for way, levels in known.items()
        if levels
    }
