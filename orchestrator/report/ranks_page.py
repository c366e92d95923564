"""The sections about ranks: of an experiment, and of ``bench --ranks``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from orchestrator.analysis.statistics import EstimateFacts
from orchestrator.bench.rank_analysis import RankFacts
from orchestrator.report import benchmark_figures as figures
from orchestrator.report.benchmark_tables import bounded, failures, remarks
from orchestrator.report.document import Columns, Figure, Part, Section, Table, Text, table
from orchestrator.report.experiment_facts import RanksOfRobot, RanksRow
from orchestrator.report.number_format import DASH, interval, number, percent, plain

MOST_ROBOTS = 8
"""Robots in the figure, as many as there are colours."""
ALLREDUCE = (
    "In all-reduce: share of rank 0's time in exchanges with the other ranks, waiting included."
)
ITSELF: EstimateFacts = {"median": 1.0, "low": None, "high": None, "n": 1}
"""The ratio of the base of a comparison to itself."""

Facts = Mapping[str, Any]


def experiment_section(robots: Sequence[RanksOfRobot]) -> list[Section]:
    if not robots:
        return []
    columns: Columns[tuple[RanksOfRobot, RanksRow]] = {
        "robot": lambda row: plain(row[0]["robot"]),
        "ranks": lambda row: str(row[1]["ranks"]),
        "mode": lambda row: row[1]["mode"] or DASH,
        "env_steps/s": lambda row: interval(row[1]["env_steps_per_s"]),
        "speed-up": lambda row: "1" if row[1] is row[0]["rows"][0] else interval(row[1]["speedup"]),
        "efficiency": lambda row: interval(row[1]["efficiency"], percent),
        "in all-reduce": lambda row: interval(row[1]["allreduce"], percent),
    }
    caption = (
        "Jobs that several processes (ranks) trained together. Speed-up: env_steps/s during iterations, relative to "
        "the fewest ranks with which the same robot, settings and seeds were trained. Efficiency: the speed-up divided "
        f"by the ratio of the numbers of ranks. {ALLREDUCE}"
    )
    rows = [(robot, row) for robot in robots for row in robot["rows"]]
    compared = [robot for robot in robots if any(row["speedup"] for row in robot["rows"])][
        :MOST_ROBOTS
    ]
    parts: list[Part] = [_figure(compared)] if compared else []
    return [
        Section(
            title="Ranks",
            parts=[*parts, table(rows, columns, caption=caption, text=("robot", "mode"))],
        )
    ]


def _figure(robots: Sequence[RanksOfRobot]) -> Figure:
    speedups: dict[str, dict[int, EstimateFacts]] = {}
    efficiencies: dict[str, dict[int, EstimateFacts]] = {}
    for robot in robots:
        for row in robot["rows"]:
            if row["speedup"] and row["efficiency"]:
                name = plain(robot["robot"], 30) + (
                    f" · {row['mode']}" if row["mode"] == "parameter-server" else ""
                )
                speedups.setdefault(name, {robot["base"]: ITSELF})[row["ranks"]] = row["speedup"]
                efficiencies.setdefault(name, {robot["base"]: ITSELF})[row["ranks"]] = row[
                    "efficiency"
                ]
    most = max(row["ranks"] for robot in robots for row in robot["rows"])
    return Figure(
        name="ranks",
        title="Speed-up over ranks",
        caption="Left: env_steps/s relative to the fewest ranks (mostly one). Right: that divided by the ratio of the "
        "numbers of ranks. Dashed: the ideal relative to one rank. Vertical bars are 95 % intervals over seeds.",
        draw=partial(figures.speedup, speedups, efficiencies, {}, most, unit="ranks"),
    )


def benchmark_section(result: Facts | None, cores: int) -> list[Section]:
    """:param result: as :func:`orchestrator.bench.rank_analysis.facts` gives it.
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
        "env_steps/s": lambda row: bounded(row[2]["throughput"], row[2], number),
        "speed-up": lambda row: (
            number(1.0) if row[1] == "1" else bounded(row[2]["speedup"], row[2], number)
        ),
        "efficiency": lambda row: (
            DASH if row[1] == "1" else bounded(row[2]["efficiency"], row[2], percent)
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
