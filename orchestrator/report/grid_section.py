"""The section on the grid of the final evaluation: a line for one key, a heat map for two, and a
table.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from orchestrator.analysis.statistics import INTERVALS
from orchestrator.report import drawing
from orchestrator.report.document import Columns, Figure, Part, Section, table
from orchestrator.report.drawing import FACE, INK, SERIES
from orchestrator.report.experiment_facts import ReportedPoint, ReportedRobot
from orchestrator.report.number_format import interval, number, one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawn

MOST_PANELS = 12
MOST_LABELLED = 8
"""Values of a key up to which the cells of a heat map have their number."""
PALEST = 0.1


class GridPanel(NamedTuple):
    """One robot's grid of one or two keys."""

    robot: str
    keys: Sequence[str]
    values: Sequence[Sequence[float | str]]
    """Of each key, in the order of the job file."""
    points: Sequence[ReportedPoint]

    def mean(self, *indices: int) -> float | None:
        """The mean over seeds at a point; None: not known.

        :param indices: of its values in :attr:`values`, one for each key.
        """
        at = {
            key: values[index]
            for key, values, index in zip(self.keys, self.values, indices, strict=True)
        }
        mean = next((point["mean"] for point in self.points if point["at"] == at), None)
        return None if mean is None else mean["value"]


def grid_sections(robots: Sequence[ReportedRobot]) -> list[Section]:
    """No section where nothing was evaluated on a grid."""
    evaluated = [robot for robot in robots if robot["grid"]]
    if not evaluated:
        return []
    panels = [panel for robot in evaluated if (panel := _panel(robot)) is not None]
    several = any(len(robot["seeds"]) > 1 for robot in evaluated)
    seeds = " Of several seeds: the mean." if several else ""
    parts: list[Part] = []
    if panels:
        which = ""
        if len(panels) > MOST_PANELS:
            which = f" The figure shows the first {MOST_PANELS} robots of {len(panels):,}."
        figure = Figure(
            name="evaluation-grid",
            title="Evaluation grid",
            caption="Return of the finished policy, without exploration, on changed robots. A factor has an asterisk. "
            f"Colours of a heat map go from the lowest to the highest return of its robot.{seeds}{which}",
            draw=partial(draw, panels[:MOST_PANELS]),
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
        table(rows, columns, caption=caption, text=("robot", "at"), shown=0 if panels else 40)
    )
    return [Section(title="Evaluation grid", parts=parts)]


def _panel(robot: ReportedRobot) -> GridPanel | None:
    """None where a line or a heat map cannot show the grid."""
    points = robot["grid"]
    keys = list(points[0]["at"])
    if not 1 <= len(keys) <= 2 or any(list(point["at"]) != keys for point in points):
        return None
    if all(point["mean"] is None for point in points):
        return None
    values = [list(dict.fromkeys(point["at"][key] for point in points)) for key in keys]
    return GridPanel(robot["robot"], keys, values, points)


def draw(panels: Sequence[GridPanel]) -> Drawn:
    """One panel for each robot."""
    drawn, all_axes = drawing.panels(len(panels), columns=3, height_in=1.9)
    for axes, panel in zip(all_axes, panels, strict=True):
        if len(panel.keys) == 1:
            _draw_line(axes, panel)
        else:
            _draw_map(axes, panel)
        axes.set_title(one_line(panel.robot, 36), fontsize=7.5)
        axes.set_xlabel(one_line(panel.keys[0], 40), fontsize=7, labelpad=1)
        axes.set_xticks(*_ticks(panel.values[0]))
        axes.tick_params(labelsize=6)
    return drawn


def _draw_line(axes: Axes, panel: GridPanel) -> None:
    means = {index: panel.mean(index) for index in range(len(panel.values[0]))}
    known = {index: mean for index, mean in means.items() if mean is not None}
    axes.plot(list(known), list(known.values()), color=SERIES[0], marker="o", markersize=4)
    axes.set_xlim(-0.5, len(panel.values[0]) - 0.5)
    axes.set_ylabel("return", fontsize=7, labelpad=1)
    drawing.plain_ticks(axes, y=True)


def _draw_map(axes: Axes, panel: GridPanel) -> None:
    from matplotlib.patches import Rectangle

    columns = len(panel.values[0])
    rows = len(panel.values[1])
    means = {(x, y): panel.mean(x, y) for x in range(columns) for y in range(rows)}
    cells = {index: mean for index, mean in means.items() if mean is not None}
    low = min(cells.values())
    high = max(cells.values())
    for (x, y), mean in cells.items():
        strength = PALEST + (1 - PALEST) * ((mean - low) / (high - low) if high > low else 1.0)
        cell = Rectangle(
            (x - 0.5, y - 0.5),
            1,
            1,
            facecolor=SERIES[0],
            alpha=strength,
            edgecolor=FACE,
            linewidth=0.5,
        )
        axes.add_patch(cell)
        if max(columns, rows) <= MOST_LABELLED:
            colour = FACE if strength > 0.6 else INK
            axes.text(
                x, y, one_line(number(mean)), ha="center", va="center", fontsize=6, color=colour
            )
    axes.grid(visible=False)
    axes.set_xlim(-0.5, columns - 0.5)
    axes.set_ylim(-0.5, rows - 0.5)
    axes.set_yticks(*_ticks(panel.values[1]))
    axes.set_ylabel(one_line(panel.keys[1], 30), fontsize=7, labelpad=1)


def _ticks(values: Sequence[float | str]) -> tuple[list[int], list[str]]:
    indices = list(range(0, len(values), max(1, len(values) // MOST_LABELLED)))
    return indices, [one_line(_value_text(values[index]), 9) for index in indices]


def _value_text(value: float | str) -> str:
    return one_line(value) if isinstance(value, str) else f"{value:g}"
