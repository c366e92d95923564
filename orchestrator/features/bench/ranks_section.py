"""The section of ``bench --ranks``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from orchestrator.analysis.statistics import EstimateFacts
from orchestrator.features.bench.benchmark_tables import failures, interval_or_bound, remarks
from orchestrator.features.bench.rank_analysis import RankFacts
from orchestrator.report import scaling_figures as figures
from orchestrator.report.document import Columns, Figure, Part, Section, Table, Text, table
from orchestrator.report.number_format import DASH, interval, number, percent, plain
from orchestrator.report.ranks_section import ALLREDUCE, ITSELF

Facts = Mapping[str, Any]


def benchmark_section(result: Facts | None, cores: int) -> list[Section]:
    """:param result: as :func:`orchestrator.features.bench.rank_analysis.facts` gives it.
    :param cores: number of ranks that have cores of their own.
    """
    if result is None or result["one"] is None:
        return []
    parts: list[Part] = (
        [Text(sentences=list(map(plain, result["sentences"])))] if result["sentences"] else []
    )
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
    about = [f"{plain(way)}: {plain(text)}." for way, text in (result["about"] or {}).items()]
    parts += [Text(sentences=about)] if about else []
    parts += failures(result["failed"], "over")
    notes = (
        [Text(sentences=list(map(plain, result["notes"])), tone="dim")] if result["notes"] else []
    )
    return [Section(title="Ranks", parts=[*parts, _table(result), *notes])]


def _table(result: Facts) -> Table:
    rows = [("one rank", "1", result["one"])]
    rows += [
        (way, ranks, one)
        for way, numbers in result["ways"].items()
        for ranks, one in numbers.items()
    ]
    columns: Columns[tuple[str, str, RankFacts]] = {
        "way × ranks": lambda row: f"{plain(row[0])} × {row[1]}" if row[1] != "1" else row[0],
        "env_steps/s": lambda row: interval_or_bound(row[2]["throughput"], row[2], number),
        "speed-up": lambda row: (
            number(1.0) if row[1] == "1" else interval_or_bound(row[2]["speedup"], row[2], number)
        ),
        "efficiency": lambda row: (
            DASH if row[1] == "1" else interval_or_bound(row[2]["efficiency"], row[2], percent)
        ),
        "in all-reduce": lambda row: interval(row[2]["allreduce"], percent),
        "repeats": lambda row: str(row[2]["throughput"]["n"]),
        "remarks": lambda row: remarks(row[2]),
    }
    caption = (
        "Medians with 95 % intervals. “≤”: cut off, so an upper bound. Speed-up and efficiency are relative to one job "
        f"of one rank. {ALLREDUCE}"
    )
    return table(rows, columns, caption=caption, text=("way × ranks", "remarks"))


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
