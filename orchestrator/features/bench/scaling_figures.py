"""Throughput over numbers of processes or of ranks: speed-up, efficiency, and marks of bounds."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from orchestrator.analysis.statistics import EstimateFacts
from orchestrator.report import drawing
from orchestrator.report.drawing import DIM, MARKERS, SERIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawn

Curves: TypeAlias = Mapping[str, Mapping[int, EstimateFacts]]
"""Baseline → processes → estimate."""
Cut: TypeAlias = Mapping[str, Collection[int]]
"""Baseline → levels at which measurements were cut off, so that an estimate is a bound."""

DODGE = 0.09
"""Distance between the marks of two baselines, as a part of the distance between levels."""
LEGEND_COLUMNS = 4


def speedup(
    speedups: Curves,
    efficiencies: Curves,
    cut: Cut,
    capacity: int,
    *,
    unit: str = "processes at once",
) -> Drawn:
    """Speed-up and efficiency of every baseline against the ideal; ``unit`` of the levels."""
    drawn, (left, right), levels = pair_of_axes(speedups, legend_entries=len(speedups) + 1)
    draw_curves(left, speedups, levels, cut)
    draw_curves(right, efficiencies, levels, cut, scale=100)
    ideal = [min(level, capacity) for level in levels]
    left.plot(
        range(len(levels)), ideal, color=DIM, linestyle="--", linewidth=1, label="ideal", zorder=1
    )
    right.axhline(100, color=DIM, linestyle="--", linewidth=1, zorder=1)
    left.set_ylabel("speed-up")
    right.set_ylabel("efficiency (%)")
    for axes in (left, right):
        axes.set_ylim(bottom=0)
        axes.set_xlabel(unit)
        drawing.plain_ticks(axes, y=True, most=6)
    drawing.legend(drawn, *left.get_legend_handles_labels(), columns=LEGEND_COLUMNS)
    return drawn


def pair_of_axes(curves: Curves, legend_entries: int) -> tuple[Drawn, list[Axes], list[int]]:
    """Two axes side by side, with room for a legend above; and the levels."""
    legend_in = 0.2 * math.ceil(legend_entries / LEGEND_COLUMNS) - 0.1
    drawn, pair = drawing.panels(2, columns=2, height_in=2.2, legend_in=legend_in)
    return drawn, pair, sorted({level for levels in curves.values() for level in levels})


def draw_curves(
    axes: Axes,
    curves: Curves,
    levels: Sequence[int],
    cut: Cut,
    scale: float = 1.0,
    bound: str = "≤",
) -> None:
    """Draw each curve over ``levels``, with its intervals. :param bound: the mark of those in
    ``cut``.
    """
    for number, (name, points) in enumerate(curves.items()):
        shift = (number - (len(curves) - 1) / 2) * DODGE
        colour = SERIES[number % len(SERIES)]
        marker = MARKERS[number % len(MARKERS)]
        positions = {levels.index(level) + shift: points[level] for level in sorted(points)}
        values = [one["value"] * scale for one in positions.values()]
        axes.plot(list(positions), values, color=colour, linewidth=1, alpha=0.5)
        axes.plot(
            list(positions),
            values,
            color=colour,
            marker=marker,
            markersize=4.5,
            linewidth=0,
            label=name,
        )
        for position, one in positions.items():
            if one["low"] is not None and one["high"] is not None:
                axes.vlines(
                    position, one["low"] * scale, one["high"] * scale, color=colour, linewidth=1
                )
        for level in sorted(points.keys() & cut.get(name, ())):
            above: Any = {"xytext": (0, 5), "textcoords": "offset points", "ha": "center"}
            position = levels.index(level) + shift
            value = points[level]["value"] * scale
            axes.annotate(bound, (position, value), color=colour, **above)
    axes.set_xticks(range(len(levels)), list(map(str, levels)))
    axes.set_xlim(-0.45, len(levels) - 0.55)
    axes.set_xlabel("processes at once")
