"""The section on the grid of the final evaluation: a table, and a line where it has one key."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from orchestrator.analysis.statistics import INTERVALS
from orchestrator.report import drawing
from orchestrator.report.document import Columns, Figure, Part, Section, table
from orchestrator.report.drawing import SERIES
from orchestrator.report.experiment_facts import ReportedPoint, ReportedRobot
from orchestrator.report.number_format import interval, one_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawn

MOST_PANELS = 12
MOST_LABELLED = 8
"""Values on an axis that have a label."""


def grid_sections(robots: Sequence[ReportedRobot]) -> list[Section]:
    """No section where nothing was evaluated on a grid."""
    evaluated = [robot for robot in robots if robot["grid"]]
    if not evaluated:
        return []
    drawn = [robot for robot in evaluated if _has_one_key(robot)]
    several = any(len(robot["seeds"]) > 1 for robot in evaluated)
    seeds = " Of several seeds: the mean." if several else ""
    parts: list[Part] = []
    if drawn:
        which = ""
        if len(drawn) > MOST_PANELS:
            which = f" The figure shows the first {MOST_PANELS} robots of {len(drawn):,}."
        figure = Figure(
            name="evaluation-grid",
            title="Evaluation grid",
            caption="Return of the finished policy, without exploration, on changed robots. A factor has an asterisk."
            f"{seeds}{which}",
            draw=partial(draw, drawn[:MOST_PANELS]),
        )
        parts.append(figure)
    columns: Columns[tuple[ReportedRobot, ReportedPoint]] = {
        "robot": lambda row: one_line(row[0]["robot"]),
        "at": lambda row: ", ".join(
            f"{one_line(key)} = {_value_text(value)}" for key, value in row[1]["at"].items()
        ),
        "return": lambda row: interval(row[1]["mean"]),
    }
    rows = [(robot, point) for robot in evaluated for point in robot["grid"]]
    caption = "Mean return of the episodes at every point of the grid."
    if several:
        caption += f" Of several seeds: the mean with its 95 % interval ({INTERVALS}) in brackets."
    parts.append(
        table(rows, columns, caption=caption, text=("robot", "at"), shown=0 if drawn else 40)
    )
    return [Section(title="Evaluation grid", parts=parts)]


def _has_one_key(robot: ReportedRobot) -> bool:
    """Whether a line can show the grid."""
    keys = {key for point in robot["grid"] for key in point["at"]}
    return len(keys) == 1 and any(point["mean"] for point in robot["grid"])


def draw(robots: Sequence[ReportedRobot]) -> Drawn:
    """Draw a panel for each robot: return against the values of the key, in the order of the job
    file.
    """
    drawn, all_axes = drawing.panels(len(robots), columns=3, height_in=1.9)
    for axes, robot in zip(all_axes, robots, strict=True):
        (key,) = robot["grid"][0]["at"]
        values = [point["at"][key] for point in robot["grid"]]
        means = [point["mean"] for point in robot["grid"]]
        known = [(place, mean["value"]) for place, mean in enumerate(means) if mean]
        axes.plot(*zip(*known, strict=True), color=SERIES[0], marker="o", markersize=4)
        axes.set_xlim(-0.5, len(values) - 0.5)
        axes.set_ylabel("return", fontsize=7, labelpad=1)
        drawing.plain_ticks(axes, y=True)
        axes.set_title(one_line(robot["robot"], 36), fontsize=7.5)
        axes.set_xlabel(one_line(key, 40), fontsize=7, labelpad=1)
        labelled = range(0, len(values), max(1, len(values) // MOST_LABELLED))
        axes.set_xticks(
            list(labelled), [one_line(_value_text(values[place]), 9) for place in labelled]
        )
        axes.tick_params(labelsize=6)
    return drawn


def _value_text(value: float | str) -> str:
    return one_line(value) if isinstance(value, str) else f"{value:g}"
