"""The figures of a search, drawn from its facts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from statistics import median
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from orchestrator.features.search.declaration.spec import Direction, identity, sign_of
from orchestrator.features.search.main_effects import bins
from orchestrator.features.search.point_text import value_text
from orchestrator.features.search.report_data import (
    ReportedDimension,
    ReportedTrial,
    SearchFacts,
)
from orchestrator.features.search.shown_trials import ArchiveElite
from orchestrator.report import drawing
from orchestrator.report.drawing import DIM, FACE, GRID, INK, SERIES
from orchestrator.report.number_format import number, one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawn

Spent: TypeAlias = Literal["env_steps", "elapsed_s"]
BLUE = SERIES[0]
ORANGE = SERIES[1]
MOST_PAIRS = 3
LARGEST_LABELLED = 14
"""Cells on an axis of an archive up to which the number of the trial is written into a cell."""
PALEST = 0.2
WIDE = 10
"""Ratio of the ends of a logarithmic axis from which on its ticks have equal ratios."""
BESIDE = 0.03
"""How far the dots of trials that did not go on are to the right of their rung."""


def best_so_far(facts: SearchFacts, drawn_trials: Sequence[ReportedTrial]) -> Drawn:
    """For each objective, the best value and those of trials, over env_steps and over time."""
    objectives = facts["objectives"]
    drawn, panels = drawing.panels(2 * len(objectives), columns=2, height_in=1.6)
    unit_s, unit = drawing.time_unit(facts["elapsed_s"])
    ended = [one for one in drawn_trials if one["trial"] in facts["spent"]]
    spent_by_end = [facts["spent"][one["trial"]] for one in ended if one["values"]]
    for place, name in enumerate(objectives):
        best = facts["improvements"][name]
        values = [one["values"][place] for one in ended if one["values"]]
        ends = ((1.0, facts["env_steps"]), (unit_s, facts["elapsed_s"]))
        for part, (scale, end) in enumerate(ends):
            axes = panels[2 * place + part]
            spent: Spent = "env_steps" if part == 0 else "elapsed_s"
            at = [getattr(by_then, spent) / scale for by_then in spent_by_end]
            axes.scatter(at, values, s=8, color=BLUE, alpha=0.5, linewidths=0)
            moments = [one[spent] / scale for one in best]
            heights = [one["value"] for one in best]
            if best:
                axes.step(
                    [*moments, max(end / scale, *moments)],
                    [*heights, heights[-1]],
                    where="post",
                    color=ORANGE,
                )
            drawing.plain_ticks(axes, x=True, y=True)
            axes.set_xlim(left=0)
            axes.set_xlabel("env_steps of all trials" if part == 0 else f"{unit} of the search")
        panels[2 * place].set_ylabel(one_line(name, 30), color=INK)
    return drawn


def effects(dimensions: Sequence[ReportedDimension], outcomes: Sequence[str]) -> Drawn:
    """A bar for each dimension and outcome: its share of the variance."""
    bar_in = 0.15
    below = 0.42
    left = 2.6
    right = 0.5
    above = 0.3 if len(outcomes) > 1 else 0.1
    height_in = (bar_in * len(outcomes) + 0.09) * len(dimensions)
    drawn = drawing.empty_figure(below + height_in + above)
    axes = drawing.axes_at(drawn, left, below, drawing.WIDTH_IN - left - right, height_in)
    thick = 0.84 / len(outcomes)
    colours = [SERIES[place % len(SERIES)] for place in range(len(outcomes))]
    for place, name in enumerate(outcomes):
        shares = [100 * (one["effects"][name]["share"] or 0.0) for one in dimensions]
        at = [row + (place - (len(outcomes) - 1) / 2) * thick for row in range(len(dimensions))]
        axes.barh(at, shares, height=thick * 0.9, color=colours[place])
        for row, share in zip(at, shares, strict=True):
            axes.text(share + 0.6, row, f"{share:.0f}", va="center", fontsize=7, color=DIM)
    axes.set_yticks(range(len(dimensions)), [one_line(one["key"], 44) for one in dimensions])
    axes.set_ylim(len(dimensions) - 0.5, -0.5)
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of the variance between trials")
    axes.grid(visible=False, axis="y")
    if len(outcomes) > 1:
        drawing.colour_legend(drawn, colours, [one_line(name, 40) for name in outcomes], columns=4)
    return drawn


def slices(
    dimensions: Sequence[ReportedDimension],
    finished: Sequence[ReportedTrial],
    drawn_trials: Sequence[ReportedTrial],
    objective: str,
    place: int,
) -> Drawn:
    """The value of ``objective`` against each dimension; the line joins medians of all finished.

    :param place: of the objective among all.
    """
    drawn, panels = drawing.panels(len(dimensions), columns=3, height_in=1.5)
    shown = [one for one in drawn_trials if one["values"]]
    for axes, dimension in zip(panels, dimensions, strict=True):
        axes.scatter(
            _along(dimension, shown),
            _values(shown, place),
            s=9,
            color=BLUE,
            alpha=0.5,
            linewidths=0,
        )
        middles = _medians(
            _along(dimension, finished), _values(finished, place), ordered=not dimension["choices"]
        )
        if len(middles) > 1:
            axes.plot(*zip(*middles, strict=True), color=ORANGE, marker="o", markersize=2.5)
        if dimension["choices"]:
            labels = [one_line(value_text(choice), 12) for choice in dimension["choices"]]
            axes.set_xticks(range(len(labels)), labels)
            axes.set_xlim(-0.5, len(labels) - 0.5)
        elif dimension["log"]:
            _log_axis(axes, dimension)
        else:
            drawing.plain_ticks(axes, x=True)
        drawing.plain_ticks(axes, y=True)
        axes.set_xlabel(one_line(dimension["key"], 44))
    for axes in panels[::3]:
        axes.set_ylabel(one_line(objective, 24), color=INK)
    return drawn


def _log_axis(axes: Axes, dimension: ReportedDimension) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    ratio = (dimension["high"] or 1.0) / (dimension["low"] or 1.0)
    axes.set_xscale("log")
    drawing.plain_ticks(axes, x=True)
    if ratio > WIDE:
        axes.xaxis.set_major_locator(
            LogLocator(10, subs=(1.0, 3.0) if ratio < WIDE**3 else (1.0,), numticks=6)
        )
    axes.xaxis.set_minor_formatter(NullFormatter())


def _values(trials: Iterable[ReportedTrial], place: int) -> list[float]:
    return [one["values"][place] for one in trials if one["values"]]


def _along(dimension: ReportedDimension, trials: Iterable[ReportedTrial]) -> list[float]:
    """Their values of ``dimension``; of choices their places."""
    values = [one["point"][dimension["key"]] for one in trials]
    if not dimension["choices"]:
        return [float(value) for value in values]
    known = {identity(choice): place for place, choice in enumerate(dimension["choices"])}
    return [float(known[identity(value)]) for value in values]


def _medians(
    places: Sequence[float], values: Sequence[float], *, ordered: bool
) -> list[tuple[float, float]]:
    """Of each group of neighbours, or of each choice."""
    groups: dict[float, list[tuple[float, float]]] = {}
    labels = bins(places) if ordered else places
    for label, place, value in zip(labels, places, values, strict=True):
        groups.setdefault(label, []).append((place, value))
    return [
        (median(place for place, _ in group), median(value for _, value in group))
        for _, group in sorted(groups.items())
    ]


def parallel(
    dimensions: Sequence[ReportedDimension],
    drawn_trials: Sequence[ReportedTrial],
    best: Sequence[int],
    objective: str,
    direction: Direction,
) -> Drawn:
    """A line for each finished trial through its values and its result, the value of ``objective``."""
    from matplotlib.collections import LineCollection

    shown = [one for one in drawn_trials if one["values"]]
    values = _values(shown, 0)
    low = min(values)
    high = max(values)
    columns = [_units(dimension, shown) for dimension in dimensions]
    columns.append([(value - low) / (high - low) if high > low else 0.5 for value in values])
    lines = dict(zip((one["trial"] for one in shown), zip(*columns, strict=True), strict=True))
    leading = dict.fromkeys(best[: max(1, len(best) // 10)])
    left = 0.5
    below = 0.9
    right = 0.45
    above = 0.5
    height_in = 2.1
    drawn = drawing.empty_figure(below + height_in + above)
    axes = drawing.axes_at(drawn, left, below, drawing.WIDTH_IN - left - right, height_in)
    for chosen, colour, width, alpha in (
        ([one for one in lines if one not in leading], BLUE, 0.5, 0.35),
        ([one for one in leading if one in lines], ORANGE, 1.1, 0.9),
    ):
        paths = [list(enumerate(lines[one])) for one in chosen]
        axes.add_collection(LineCollection(paths, colors=colour, linewidths=width, alpha=alpha))
    ends = [*map(_ends, dimensions), (number(low), number(high))]
    for place, (bottom, top) in enumerate(ends):
        axes.axvline(place, color=DIM, linewidth=0.7)
        for text, at, vertical in ((bottom, -0.03, "top"), (top, 1.03, "bottom")):
            axes.text(
                place, at, one_line(text, 12), ha="center", va=vertical, fontsize=6.5, color=DIM
            )
    names = [one_line(one["key"], 28) for one in dimensions] + [one_line(objective, 28)]
    axes.set_xticks(range(len(names)), names, rotation=22, ha="right")
    axes.tick_params(axis="x", pad=12, length=0)
    axes.set_yticks([])
    axes.set_xlim(-0.3, len(names) - 0.7)
    axes.set_ylim(-0.02, 1.02)
    axes.grid(visible=False)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    rank = "highest" if direction == "maximize" else "lowest"
    drawing.colour_legend(
        drawn, (ORANGE, BLUE), (f"the tenth with the {rank} values", "others"), columns=2
    )
    return drawn


def _units(dimension: ReportedDimension, trials: Sequence[ReportedTrial]) -> list[float]:
    """Where their values lie, 0 to 1."""
    import math

    places = _along(dimension, trials)
    low = 0.0
    high = float(max(1, len(dimension["choices"]) - 1))
    if dimension["low"] is not None and dimension["high"] is not None:
        low = dimension["low"]
        high = dimension["high"]
    if dimension["log"]:
        return [math.log(place / low) / math.log(high / low) for place in places]
    return [(place - low) / (high - low) for place in places]


def _ends(dimension: ReportedDimension) -> tuple[str, str]:
    if dimension["choices"]:
        return value_text(dimension["choices"][0]), value_text(dimension["choices"][-1])
    return value_text(dimension["low"]), value_text(dimension["high"])


def rungs(rungs_at: Sequence[int], drawn_trials: Sequence[ReportedTrial], compared: str) -> Drawn:
    """What trials are compared by at each rung; those that went on from it in another colour."""
    from matplotlib.collections import LineCollection

    left = 0.65
    below = 0.42
    right = 0.2
    above = 0.3
    height_in = 2.2
    drawn = drawing.empty_figure(below + height_in + above)
    axes = drawing.axes_at(drawn, left, below, drawing.WIDTH_IN - left - right, height_in)
    stayed: list[tuple[float, float]] = []
    went: list[tuple[float, float]] = []
    lines: list[list[tuple[float, float]]] = []
    for one in drawn_trials:
        points = [
            (float(place), value) for place, value in enumerate(one["rungs"]) if value is not None
        ]
        lines += [points] if len(points) > 1 else []
        for place, value in points:
            if place < one["went_on"]:
                went.append((place, value))
            else:
                stayed.append((place + BESIDE, value))
    axes.add_collection(LineCollection(lines, colors=BLUE, linewidths=0.5, alpha=0.4))
    for dots, colour, size, order in ((stayed, DIM, 9, 2), (went, BLUE, 14, 3)):
        if dots:
            across, up = zip(*dots, strict=True)
            axes.scatter(across, up, s=size, color=colour, alpha=0.6, linewidths=0, zorder=order)
    axes.set_xticks(range(len(rungs_at)), [drawing.short(steps) for steps in rungs_at])
    axes.set_xlim(-0.4, len(rungs_at) - 0.6)
    axes.set_xlabel("env_steps of the rung")
    axes.set_ylabel(f"{compared} in training")
    drawing.plain_ticks(axes, y=True)
    drawing.colour_legend(drawn, (BLUE, DIM), ("went on", "did not go on"), columns=2)
    return drawn


def archive_map(facts: SearchFacts) -> Drawn:
    """The cells of the archive along its first two axes, the best in the strongest colour.

    Of further axes the best counts.
    """
    from matplotlib.patches import Rectangle

    axes_of = facts["axes"][:2]
    columns = axes_of[0]["cells"]
    rows = axes_of[1]["cells"] if len(axes_of) > 1 else 1
    sign = sign_of(facts["directions"][0])
    best = _best_of_cells(facts["archive"], sign)
    values = [elite["value"] for elite in best.values()]
    low = min(values)
    high = max(values)
    left = 0.65
    below = 0.45
    right = 0.2
    above = 0.35
    width_in = drawing.WIDTH_IN - left - right
    height_in = min(max(0.4, width_in * rows / columns), 4.2)
    drawn = drawing.empty_figure(below + height_in + above)
    axes = drawing.axes_at(drawn, left, below, width_in, height_in)
    axes.add_patch(Rectangle((0, 0), columns, rows, facecolor=GRID, alpha=0.35, linewidth=0))
    style: Any = {"facecolor": BLUE, "edgecolor": FACE, "linewidth": 0.5}
    for (column, row), elite in best.items():
        share = (elite["value"] - low) / (high - low) if high > low else 1.0
        strength = PALEST + (1 - PALEST) * (share if sign > 0 else 1 - share)
        axes.add_patch(Rectangle((column, row), 1, 1, alpha=strength, **style))
        if columns <= LARGEST_LABELLED and rows <= LARGEST_LABELLED:
            colour = FACE if strength > 0.6 else INK
            middle = (column + 0.5, row + 0.5)
            label = str(elite["trial"])
            axes.text(*middle, label, ha="center", va="center", fontsize=6.5, color=colour)
    axes.grid(visible=False)
    axes.set_xlim(0, columns)
    axes.set_ylim(0, rows)
    _cell_ticks(axes.xaxis, axes_of[0])
    axes.set_xlabel(one_line(axes_of[0]["name"], 60))
    if len(axes_of) > 1:
        _cell_ticks(axes.yaxis, axes_of[1])
        axes.set_ylabel(one_line(axes_of[1]["name"], 30))
    else:
        axes.set_yticks([])
    worst, top = (low, high) if sign > 0 else (high, low)
    labels = [f"{one_line(facts['objectives'][0], 30)} {number(value)}" for value in (worst, top)]
    handles = [Rectangle((0, 0), 1, 1, facecolor=BLUE, alpha=alpha) for alpha in (PALEST, 1.0)]
    drawing.legend(drawn, handles, labels, columns=2)
    return drawn


def _best_of_cells(
    archive: Iterable[ArchiveElite], sign: float
) -> dict[tuple[int, int], ArchiveElite]:
    """Column and row of a cell → its best trial, over the cells that differ in further axes.

    :param sign: 1 where the largest value is the best, otherwise −1.
    """
    best: dict[tuple[int, int], ArchiveElite] = {}
    for elite in archive:
        column, row = (*elite["cell"], 0)[:2]
        known = best.get((column, row))
        if known is None or sign * elite["value"] > sign * known["value"]:
            best[column, row] = elite
    return best


def _cell_ticks(axis: Any, of: Any) -> None:
    count = of["cells"]
    places = list(range(0, count + 1, max(1, round(count / 8))))
    width = (of["high"] - of["low"]) / count
    axis.set_ticks(places, [drawing.short(of["low"] + place * width) for place in places])


def front(facts: SearchFacts, drawn_trials: Sequence[ReportedTrial]) -> Drawn:
    """Trials by each pair of objectives; those of the Pareto front in another colour."""
    names = facts["objectives"]
    pairs = list(combinations(range(len(names)), 2))[:MOST_PAIRS]
    drawn, panels = drawing.panels(len(pairs), columns=3, height_in=2.3, legend_in=0.25)
    members = set(facts["front"])
    for axes, (one, other) in zip(panels, pairs, strict=True):
        for is_member, colour, size in ((False, BLUE, 9), (True, ORANGE, 18)):
            chosen = [trial for trial in drawn_trials if (trial["trial"] in members) == is_member]
            pairs_of = sorted(
                (value[one], value[other]) for trial in chosen if (value := trial["values"])
            )
            if pairs_of:
                across, up = zip(*pairs_of, strict=True)
                axes.scatter(
                    across, up, s=size, color=colour, alpha=0.7, linewidths=0, zorder=2 + is_member
                )
                if is_member and len(names) == 2:
                    axes.plot(across, up, color=colour, linewidth=0.8)
        axes.set_xlabel(one_line(names[one], 36))
        axes.set_ylabel(one_line(names[other], 36), labelpad=1)
        drawing.plain_ticks(axes, x=True, y=True)
    drawing.colour_legend(
        drawn, (ORANGE, BLUE), ("Pareto front", "other finished trials"), columns=2
    )
    return drawn
