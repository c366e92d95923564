"""What reports say about ranks: of an experiment, and of ``bench --ranks``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from orchestrator.report import benchmark_figures as figures
from orchestrator.report.benchmark_tables import remarks
from orchestrator.report.document import Cell, Column, Figure, Part, Section, Table, Text
from orchestrator.report.number_format import DASH, interval, number, percent, plain

MOST_WORKS = 8
"""Robots in the figure: as many as there are colours."""
ALLREDUCE = (
    "In all-reduce: rank 0's share of the time of iterations in which it exchanged sums with the others or waited for "
    "them; it is contained in the phases."
)
WAYS_APART = (
    "“jobs” trains as many policies as there are ranks, the other ways one; “subproc” is stock Stable-Baselines3 with "
    "a process for every environment, on as many cores."
)

ITSELF = {"median": 1.0, "low": None, "high": None}
"""What is compared with itself."""

Facts = Mapping[str, Any]


def experiment_section(works: Sequence[Facts]) -> list[Section]:
    """:param works: as :func:`orchestrator.report.rank_data.scaling` gives them."""
    if not works:
        return []
    parts: list[Part] = []
    shown = [work for work in works if any(row["speedup"] for row in work["rows"])][:MOST_WORKS]
    if shown:
        parts.append(_figure(shown))
    names = ("robot", "ranks", "mode", "env_steps/s", "speed-up", "efficiency", "in all-reduce")
    rows = [
        [
            Cell(text=plain(work["robot"])),
            Cell(text=str(row["ranks"])),
            Cell(text=row["mode"] or DASH),
            Cell(text=interval(row["env_steps_per_s"])),
            Cell(text="1" if row["ranks"] == work["base"] else interval(row["speedup"])),
            Cell(text=interval(row["efficiency"], percent)),
            Cell(text=interval(row["allreduce"], percent)),
        ]
        for work in works
        for row in work["rows"]
    ]
    caption = (
        "Jobs that several processes trained together. Speed-up: env_steps/s while iterating, against the least number "
        "of ranks with which the same robot, settings and seeds were trained; efficiency: that by how many times the "
        f"ranks there are. {ALLREDUCE}"
    )
    columns = [Column(name=name, numeric=name not in ("robot", "mode")) for name in names]
    return [Section(title="Ranks", parts=[*parts, Table(columns=columns, rows=rows, caption=caption)])]


def _figure(works: Sequence[Facts]) -> Figure:
    speedups: dict[str, dict[int, Any]] = {}
    efficiencies: dict[str, dict[int, Any]] = {}
    for work in works:
        for row in work["rows"]:
            if row["speedup"]:
                name = plain(work["robot"], 30) + (f" · {row['mode']}" if row["mode"] == "parameter-server" else "")
                speedups.setdefault(name, {work["base"]: ITSELF})[row["ranks"]] = row["speedup"]
                efficiencies.setdefault(name, {work["base"]: ITSELF})[row["ranks"]] = row["efficiency"]
    most = max(row["ranks"] for work in works for row in work["rows"])
    return Figure(
        name="ranks",
        title="Speed-up over ranks",
        caption=(
            "First: how many times the env_steps/s of the least number of ranks (mostly one) a job over more of them "
            "reaches. Second: that by how many times the ranks there are. The dashed line is the ideal over one rank. "
            "Vertical bars are 95 % intervals over seeds."
        ),
        draw=partial(figures.speedup, speedups, efficiencies, most, unit="ranks"),
    )


def benchmark_section(found: Facts | None, cores: int) -> list[Section]:
    """:param found: as :func:`orchestrator.bench.rank_analysis.facts` gives it.
    :param cores: as many ranks as have cores of their own.
    """
    if found is None or found["one"] is None:
        return []
    parts: list[Part] = [Text(sentences=[plain(one) for one in found["sentences"]])] if found["sentences"] else []
    speedups, efficiencies = (_curves(found["ways"], name) for name in ("speedup", "efficiency"))
    if speedups:
        parts.append(
            Figure(
                name="ranks",
                title="Many jobs or one wide one",
                caption=(
                    "First: how many times the env_steps/s of one job of one rank each way of using more cores "
                    f"reaches. Second: that by the ranks, or cores. {WAYS_APART} The dashed line is the ideal where "
                    f"{cores} of them have cores of their own."
                ),
                draw=partial(figures.speedup, speedups, efficiencies, cores, unit="ranks, or jobs"),
            )
        )
    about = [f"{plain(way)}: {plain(text)}." for way, text in (found["about"] or {}).items()]
    failed = [
        f"{plain(way)} over {ranks}: nothing could be measured. {plain('; '.join(why), 300)}"
        for way, numbers in found["failed"].items()
        for ranks, why in numbers.items()
    ]
    parts += [Text(sentences=about)] if about else []
    parts += [Text(sentences=failed, tone="bad")] if failed else []
    notes = [plain(note) for note in found["notes"]]
    parts += [_table(found), *([Text(sentences=notes, tone="dim")] if notes else [])]
    return [Section(title="Ranks", parts=parts)]


def _table(found: Facts) -> Table:
    levels = [("one rank", "1", found["one"])]
    levels += [(way, ranks, one) for way, numbers in found["ways"].items() for ranks, one in numbers.items()]
    rows = [
        [
            Cell(text=f"{plain(way)} × {ranks}" if ranks != "1" else way),
            Cell(text=("≤ " if one["at_most"] else "") + interval(one["throughput"])),
            Cell(text=number(1.0) if ranks == "1" else interval(one["speedup"])),
            Cell(text=DASH if ranks == "1" else interval(one["efficiency"], percent)),
            Cell(text=interval(one["allreduce"], percent)),
            Cell(text=str(one["throughput"]["n"])),
            Cell(text=plain("; ".join(remarks(one)), 200)),
        ]
        for way, ranks, one in levels
    ]
    names = ("way × ranks", "env_steps/s", "speed-up", "efficiency", "in all-reduce", "cells", "remarks")
    return Table(
        columns=[Column(name=name, numeric=name not in ("way × ranks", "remarks")) for name in names],
        rows=rows,
        caption=(
            "Medians over cells with their 95 % intervals; speed-up and efficiency are against one job of one rank. "
            f"{ALLREDUCE}"
        ),
    )


def _curves(ways: Mapping[str, Mapping[str, Facts]], name: str) -> dict[str, dict[int, Any]]:
    """All ways begin with the one rank that they are compared with, but Stable-Baselines3's own."""
    found = {way: {int(ranks): one[name] for ranks, one in levels.items() if one[name]} for way, levels in ways.items()}
    return {way: levels if way == "subproc" else {1: ITSELF, **levels} for way, levels in found.items() if levels}
