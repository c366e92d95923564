"""The section of an experiment about ranks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from orchestrator.analysis.statistics import INTERVALS, EstimateFacts
from orchestrator.report import scaling_figures as figures
from orchestrator.report.document import Columns, Figure, Part, Section, table
from orchestrator.report.experiment_facts import RanksOfRobot, RanksRow
from orchestrator.report.number_format import DASH, interval, one_line, percent

MOST_ROBOTS = 8
"""Robots in the figure, as many as there are colours."""
ALLREDUCE = (
    "In all-reduce: share of rank 0's time in exchanges with the other ranks, waiting included."
)
ITSELF: EstimateFacts = {"value": 1.0, "low": None, "high": None, "n": 1}
"""The ratio of the base of a comparison to itself."""


def ranks_sections(robots: Sequence[RanksOfRobot]) -> list[Section]:
    """No section where no job had several ranks."""
    if not robots:
        return []
    columns: Columns[tuple[RanksOfRobot, RanksRow]] = {
        "robot": lambda row: one_line(row[0]["robot"]),
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
        f"by the ratio of the numbers of ranks. {ALLREDUCE} Of several seeds: means with 95 % intervals "
        f"({INTERVALS}) in brackets."
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
                name = one_line(robot["robot"], 30)
                if row["mode"] == "parameter-server":
                    name += f" · {row['mode']}"
                speedups.setdefault(name, {robot["base"]: ITSELF})[row["ranks"]] = row["speedup"]
                efficiencies.setdefault(name, {robot["base"]: ITSELF})[row["ranks"]] = row[
                    "efficiency"
                ]
    most = max(row["ranks"] for robot in robots for row in robot["rows"])
    return Figure(
        name="ranks",
        title="Speed-up over ranks",
        caption="Left: env_steps/s relative to the fewest ranks (mostly one). Right: that divided by the ratio of the "
        "numbers of ranks. Dashed: the ideal relative to one rank. Vertical bars are 95 % intervals over seeds "
        f"({INTERVALS}).",
        draw=partial(figures.speedup, speedups, efficiencies, {}, most, unit="ranks"),
    )
