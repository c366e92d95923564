"""The figures of docs/measurements/search.md, in the style of the package's reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.learning_figures import ABOVE_IN, STYLES
from orchestrator.core.files.atomic_files import write_whole
from orchestrator.report import drawing
from orchestrator.report.document import Figure
from orchestrator.report.drawing import DIM

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The best value so far of one search, and the env_steps of all of its trainings by then."""

    env_steps: Sequence[int]
    values: Sequence[float]
    whole: int
    """env_steps of the search from its beginning to its end."""

    def best(self, env_steps: int) -> float:
        """The best value after so many env_steps; the first value, if it came later."""
        known = (
            value
            for spent, value in zip(self.env_steps, self.values, strict=True)
            if spent <= env_steps
        )
        return max(known, default=self.values[0])

    def until(self, value: float) -> int | None:
        """env_steps when the best was first at least ``value``; None: it never was."""
        return next(
            (
                spent
                for spent, best in zip(self.env_steps, self.values, strict=True)
                if best >= value
            ),
            None,
        )


def best_so_far(searches: Mapping[str, Sequence[Curve]]) -> Drawn:
    """One colour for each kind of search: thin lines are seeds, the thick one is their median."""
    import numpy as np

    drawn, (axes,) = drawing.panels(1, columns=1, height_in=2.2, legend_in=ABOVE_IN)
    for curves, style in zip(searches.values(), STYLES, strict=False):
        for one in curves:
            steps = [*one.env_steps, one.whole]
            values = [*one.values, one.values[-1]]
            axes.step(steps, values, where="post", color=style.colour, linewidth=0.6, alpha=0.5)
        grid = np.linspace(
            max(one.env_steps[0] for one in curves), min(one.whole for one in curves), 200
        )
        each = [
            np.array(one.values)[np.searchsorted(one.env_steps, grid, side="right") - 1]
            for one in curves
        ]
        axes.plot(
            grid, np.median(each, axis=0), color=style.colour, linestyle=style.dashes, linewidth=1.8
        )
    _finish(axes, "env_steps of all trials", "best eval_mean so far")
    _legend(drawn, list(searches))
    return drawn


def beside_grids(searches: Sequence[Curve], grids: Sequence[tuple[float, int]]) -> Drawn:
    """Searches, and at the right the best of a grid with the env_steps of all of it: one colour for
    each seed.

    :param grids: ``(best value, env_steps)``, one for each search.
    """
    drawn, (axes,) = drawing.panels(1, columns=1, height_in=2.2)
    for seed, (one, (value, whole)) in enumerate(zip(searches, grids, strict=True)):
        colour = drawing.SERIES[seed % len(drawing.SERIES)]
        axes.step(
            [*one.env_steps, one.whole],
            [*one.values, one.values[-1]],
            where="post",
            color=colour,
            linewidth=1.2,
        )
        axes.plot([0, whole], [value, value], color=colour, linestyle=":", linewidth=0.9)
        axes.scatter(whole, value, s=26, color=colour, marker="s")
    _finish(axes, "env_steps of all trials", "best eval_mean so far")
    return drawn


def children(pairs: Sequence[tuple[int, int]], most: int) -> Drawn:
    """A mark for each body: env_steps to the return of the parent, from nothing and with the policy
    of the parent."""
    drawn, (axes,) = drawing.panels(1, columns=2, height_in=2.4)
    axes.plot([0, most], [0, most], color=DIM, linewidth=0.8)
    axes.plot([0, most], [0, most / 3], color=DIM, linewidth=0.8, linestyle="--")
    inherited, alone = zip(*pairs, strict=True)
    axes.scatter(alone, inherited, s=18, color=STYLES[0].colour, alpha=0.6, linewidths=0)
    _finish(axes, "from nothing: env_steps", "with the policy: env_steps")
    return drawn


def write(folder: Path | None, name: str, drawn: Any, *arguments: Any) -> None:
    """Write a figure into ``folder``, if there is one. :param drawn: function of this module."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        figure = Figure(name=name, title=name, caption="", draw=lambda: drawn(*arguments))
        write_whole(folder / f"{name}.png", drawing.render(figure).png)


def _finish(axes: Any, below: str, left: str) -> None:
    axes.set_xlim(left=0)
    axes.set_xlabel(below, labelpad=1)
    axes.set_ylabel(left, labelpad=1)
    drawing.plain_ticks(axes, x=True, y=True)


def _legend(drawn: Drawn, labels: Sequence[str]) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=style.colour, linestyle=style.dashes, linewidth=1.8)
        for style in STYLES
    ]
    drawing.legend(drawn, handles[: len(labels)], labels, columns=len(labels))
