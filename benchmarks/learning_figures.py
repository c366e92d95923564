"""The pictures of :mod:`benchmarks.learning`, in the style of the package's reports."""

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
    dashes: Literal["-", "--"]
    marker: str


STYLES = (
    Style(SERIES[0], "-", MARKERS[0]),
    Style(SERIES[1], "--", MARKERS[1]),
)
"""Styles of the reference side, and of the one that is compared with it."""
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
    """Learning curves of two learners; the same robots on both sides."""
    return [_picture("learning-curves", "Learning curves", lambda: curves(labels, sides))]


def published_results(label: str, robots: Robots) -> list[Picture]:
    """Final returns of the long runs beside published ones.

    :param robots: each of :data:`published.ROBOTS`.
    """
    return [_picture("learning-published", "Among published results", lambda: among(label, robots))]


def _picture(name: str, title: str, draw: Callable[[], Drawn]) -> Picture:
    return name, drawing.render(Figure(name=name, title=title, caption="", draw=draw)).png


def curves(labels: Sequence[str], sides: Sequence[Robots]) -> Drawn:
    """One panel per robot: thin lines are seeds, thick lines their means as far as all seeds
    reach."""
    from matplotlib.lines import Line2D

    robots = list(sides[0])
    drawn, found = drawing.panels(len(robots), columns=3, height_in=1.45, legend_in=ABOVE_IN)
    for axes, robot in zip(found, robots, strict=True):
        _fill_curves(axes, [side[robot] for side in sides])
        axes.set_title(robot)
    found[0].set_ylabel("mean return", labelpad=1)
    handles = [
        Line2D([], [], color=style.colour, linestyle=style.dashes, linewidth=1.8)
        for style in STYLES
    ]
    drawing.legend(drawn, handles, labels, columns=len(labels))
    return drawn


def _fill_curves(axes: Axes, sides: Sequence[Sequence[Trained]]) -> None:
    for trained, style in zip(sides, STYLES, strict=True):
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
