"""The figures of docs/measurements/learning.md and of learning over ranks, in the style of the
package's reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from benchmarks import published
from benchmarks.learning_runs import MEASURES, Trained, values
from orchestrator.core.files.atomic_files import write_whole
from orchestrator.report import drawing
from orchestrator.report.document import Figure
from orchestrator.report.drawing import DIM, INK, MARKERS, SERIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawn

Robots: TypeAlias = Mapping[str, Sequence[Trained]]
"""Robot → results of its seeds."""
Picture: TypeAlias = tuple[str, bytes]
"""Name of a file without its suffix, and the PNG."""


class Style(NamedTuple):
    """The style of a learner, distinguishable also in greyscale."""

    colour: str
    dashes: Literal["-", "--", ":"]
    marker: str


STYLES = (
    Style(SERIES[0], "-", MARKERS[0]),
    Style(SERIES[1], "--", MARKERS[1]),
    Style(SERIES[2], ":", MARKERS[2]),
)
"""Styles of the reference side, and of those that are compared with it."""
OURS = STYLES[1]
GRID_POINTS = 100
ABOVE_IN = 0.3
"""Space for a legend."""
ROW_IN = 0.19
NAMES_IN = 1.9
SAME = SERIES[2]
"""Colour of sources with the same settings."""


def write(folder: Path, pictures: Iterable[Picture]) -> None:
    """Write them into ``folder``. :raises OSError:"""
    for name, png in pictures:
        write_whole(folder / f"{name}.png", png, durable=False)


def comparison(labels: Sequence[str], sides: Sequence[Robots]) -> list[Picture]:
    """Learning curves and final returns of two learners; the same robots on both sides."""
    return [
        _picture("learning-curves", "Learning curves", lambda: curves(labels, sides)),
        _picture("learning-returns", "Final returns", lambda: final_returns(labels, sides)),
    ]


def side_by_side(name: str, title: str, labels: Sequence[str], sides: Sequence[Robots]) -> Picture:
    """Learning curves and final returns of one robot. :param labels: three at most, as of
    ``sides``."""
    from matplotlib.lines import Line2D

    def draw() -> Drawn:
        drawn, (left, right) = drawing.panels(2, columns=2, height_in=1.7, legend_in=ABOVE_IN)
        for axes, fill in ((left, _fill_curves), (right, _fill_returns)):
            fill(axes, [next(iter(side.values())) for side in sides], STYLES)
            axes.set_title(next(iter(sides[0])))
        left.set_ylabel("mean return", labelpad=1)
        styles = STYLES[: len(labels)]
        handles = [
            Line2D(
                [], [], color=one.colour, linestyle=one.dashes, marker=one.marker, markersize=4.5
            )
            for one in styles
        ]
        drawing.legend(drawn, handles, labels, columns=len(labels))
        return drawn

    return _picture(name, title, draw)


def published_results(label: str, robots: Robots) -> list[Picture]:
    """Learning curves of the long runs, and their final returns beside published ones.

    :param robots: each of :data:`published.ROBOTS`.
    """
    return [
        _picture(
            "learning-published-curves",
            "Learning curves",
            lambda: curves([label], [robots], styles=[OURS]),
        ),
        _picture("learning-published", "Among published results", lambda: among(label, robots)),
    ]


def _picture(name: str, title: str, draw: Callable[[], Drawn]) -> Picture:
    return name, drawing.render(Figure(name=name, title=title, caption="", draw=draw)).png


def curves(
    labels: Sequence[str], sides: Sequence[Robots], styles: Sequence[Style] = STYLES[:2]
) -> Drawn:
    """One panel per robot: thin lines are seeds, thick lines their means as far as all seeds
    reach."""
    from matplotlib.lines import Line2D

    robots = list(sides[0])
    drawn, found = drawing.panels(len(robots), columns=3, height_in=1.45, legend_in=ABOVE_IN)
    for axes, robot in zip(found, robots, strict=True):
        _fill_curves(axes, [side[robot] for side in sides], styles)
        axes.set_title(robot)
    found[0].set_ylabel("mean return", labelpad=1)
    handles = [
        Line2D([], [], color=style.colour, linestyle=style.dashes, linewidth=1.8)
        for style in styles
    ]
    drawing.legend(drawn, handles, labels, columns=len(labels))
    return drawn


def _fill_curves(axes: Axes, sides: Sequence[Sequence[Trained]], styles: Sequence[Style]) -> None:
    for trained, style in zip(sides, styles, strict=False):
        for one in trained:
            if one.curve:
                axes.plot(
                    *zip(*one.curve, strict=True), color=style.colour, linewidth=0.6, alpha=0.45
                )
        _mean(axes, trained, style)
    axes.set_xlim(left=0)
    axes.set_xlabel("env_steps", labelpad=1)
    drawing.plain_ticks(axes, x=True, y=True)


def _mean(axes: Axes, trained: Sequence[Trained], style: Style) -> None:
    import numpy as np

    seeds = [np.array(one.curve).T for one in trained if one.curve]
    if not seeds:
        return
    begin = max(steps[0] for steps, _ in seeds)
    end = min(steps[-1] for steps, _ in seeds)
    grid = np.linspace(begin, end, GRID_POINTS)
    middle = np.mean([np.interp(grid, steps, returns) for steps, returns in seeds], axis=0)
    axes.plot(grid, middle, color=style.colour, linewidth=1.8, linestyle=style.dashes)


def final_returns(labels: Sequence[str], sides: Sequence[Robots]) -> Drawn:
    """One panel per robot: a mark per seed and a bar at the mean, for training and, where there is
    one, evaluation."""
    from matplotlib.lines import Line2D

    robots = list(sides[0])
    drawn, found = drawing.panels(len(robots), columns=4, height_in=1.6, legend_in=ABOVE_IN)
    for axes, robot in zip(found, robots, strict=True):
        _fill_returns(axes, [side[robot] for side in sides], STYLES)
        axes.set_title(robot)
    found[0].set_ylabel("return", labelpad=1)
    handles = [
        Line2D(
            [],
            [],
            color=style.colour,
            marker=style.marker,
            markersize=4.5,
            linestyle="none",
            alpha=0.75,
        )
        for style in STYLES[: len(labels)]
    ]
    drawing.legend(drawn, handles, labels, columns=len(labels))
    return drawn


def _fill_returns(axes: Axes, sides: Sequence[Sequence[Trained]], styles: Sequence[Style]) -> None:
    step = 0.72 / len(sides)
    for column, measure in enumerate(MEASURES):
        for place, (trained, style) in enumerate(zip(sides, styles, strict=False)):
            middle = column + step * (place - (len(sides) - 1) / 2)
            _strip(axes, middle, values(trained, measure), style, reach=0.42 * step)
    axes.set_xticks(range(len(MEASURES)), ["training", "evaluation"])
    axes.set_xlim(-0.5, len(MEASURES) - 0.5)
    axes.grid(visible=False, axis="x")
    drawing.plain_ticks(axes, y=True)


def _strip(axes: Axes, middle: float, found: Sequence[float], style: Style, reach: float) -> None:
    """Horizontal offsets of marks, so that equal ones do not hide each other."""
    if not found:
        return
    places = [middle + 0.04 * (place - (len(found) - 1) / 2) for place in range(len(found))]
    axes.scatter(
        places, found, s=20, color=style.colour, marker=style.marker, alpha=0.75, linewidths=0
    )
    mean = sum(found) / len(found)
    axes.plot([middle - reach, middle + reach], [mean, mean], color=INK, linewidth=1.4)


def among(label: str, robots: Robots) -> Drawn:
    """One panel per robot, one line per source: this program first, a mark per seed; a published
    spread is a thin line.

    Shaded is what :func:`published.band` says of the same settings.
    """
    from matplotlib.lines import Line2D

    sources = [*published.RECIPE, *published.OTHERS]
    names = [f"{label}, training", f"{label}, evaluation"]
    names += [f"{source.name} ({source.versions})" for source in sources]
    height = ROW_IN * len(names)
    below = 0.48
    above = 0.3
    right = 0.1
    drawn = drawing.empty_figure(height + below + above + ABOVE_IN)
    width = (drawing.WIDTH_IN - NAMES_IN) / len(robots)
    for place, (robot, trained) in enumerate(robots.items()):
        axes = drawing.axes_at(drawn, NAMES_IN + place * width, below, width - right, height)
        axes.axvspan(*published.band(robot), color=SAME, alpha=0.1, linewidth=0)
        for line, measure in enumerate(MEASURES):
            found = values(trained, measure)
            axes.scatter(
                found,
                [line] * len(found),
                s=20,
                color=OURS.colour,
                marker=OURS.marker,
                alpha=0.6,
                linewidths=0,
            )
            if found:
                axes.scatter(sum(found) / len(found), line, s=60, color=INK, marker="|")
        for line, source in enumerate(sources, start=len(MEASURES)):
            _reported(axes, line, source.returns.get(robot), same=source in published.RECIPE)
        axes.set_title(robot)
        axes.set_yticks(range(len(names)), names if place == 0 else [""] * len(names))
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_xlim(left=0)
        axes.set_xlabel("return", labelpad=1)
        drawing.plain_ticks(axes, x=True)
    marks = (
        (OURS.marker, OURS.colour, "one seed, here"),
        ("|", INK, "their mean"),
        ("D", SAME, "same settings"),
    )
    handles = [
        Line2D([], [], color=colour, marker=marker, markersize=4.5, linestyle="none")
        for marker, colour, _ in (*marks, ("o", DIM, ""))
    ]
    drawing.legend(drawn, handles, [*(label for *_, label in marks), "other settings"], columns=4)
    return drawn


def _reported(axes: Axes, line: int, one: published.Reported | None, *, same: bool) -> None:
    if one is None:
        return
    colour = SAME if same else DIM
    axes.scatter(one.mean, line, s=22, color=colour, marker="D" if same else "o")
    if one.low is not None and one.high is not None:
        axes.plot([one.low, one.high], [line, line], color=colour, linewidth=1.2)
