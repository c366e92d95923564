"""Draw figures as SVG and PNG, in one style."""

from __future__ import annotations

import io
import logging
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from orchestrator.report.document import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawn

WIDTH_IN = 8.4
"""Width of every figure; a page scales it, down to a width at which text is legible, and scrolls it
there."""
PNG_DPI = 150
AROUND_PANEL_IN = 0.62
"""Height of the title, ticks and label of a panel."""


INK = "#1f2328"
DIM = "#59636e"
GRID = "#d8dee4"
FACE = "#fffffe"
BLUE = "#0b6bb8"
ORANGE = "#c8560a"
GREEN = "#1a7f45"
RED = "#c62834"
PURPLE = "#7a48c9"
TEAL = "#0f7f86"
YELLOW = "#9a7000"
PINK = "#b8357f"
GRAY = "#8b949e"
SERIES = (BLUE, ORANGE, GREEN, PURPLE, RED, TEAL, PINK, YELLOW)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")

STYLE: Any = {
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8.5,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "legend.fontsize": 7.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.edgecolor": DIM,
    "xtick.color": DIM,
    "ytick.color": DIM,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "grid.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "grid.color": GRID,
    "lines.linewidth": 1.4,
    "text.parse_math": False,  # a robot's name may contain dollar signs
    "svg.fonttype": "none",  # text stays text: small, searchable, in the page's own font
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """A figure as the content of its two files, on white."""

    png: bytes
    svg: bytes


def render(figure: Figure) -> Rendered:
    """Draw ``figure`` in both forms."""
    png = io.BytesIO()
    svg = io.BytesIO()
    with _own_settings({"svg.hashsalt": figure.name}):  # the same ids within the SVG at every run
        drawn = figure.draw()
        drawn.savefig(png, format="png", dpi=PNG_DPI, facecolor="white")
        drawn.savefig(svg, format="svg", facecolor="white", metadata={"Date": None})
    return Rendered(png=png.getvalue(), svg=svg.getvalue())


@contextmanager
def _own_settings(settings: Any) -> Iterator[None]:
    """Use matplotlib's defaults with our style, whatever a user's ``matplotlibrc`` or a notebook's
    ``MPLBACKEND`` say.

    Warnings about matplotlib's cache, and about characters that the font of the PNG lacks, as in a
    robot's name, are hidden.
    """
    log = logging.getLogger("matplotlib")
    level = log.level
    log.setLevel(logging.ERROR)
    backend = os.environ.pop("MPLBACKEND", None)  # one that is not installed would end the import
    try:
        import matplotlib as mpl
        import matplotlib.figure  # finds the fonts

        with mpl.rc_context(), warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", ".*(missing from font|natively supports)", UserWarning
            )
            mpl.rcdefaults()
            mpl.rcParams.update(STYLE | settings)
            yield
    finally:
        log.setLevel(level)
        if backend is not None:
            os.environ["MPLBACKEND"] = backend


# -- what figures share


class Phase(NamedTuple):
    """A phase of an iteration."""

    title: str
    colour: str


PHASES = {
    "env": Phase("physics and environment", BLUE),
    "policy": Phase("policy", TEAL),
    "gae": Phase("advantages (GAE)", YELLOW),
    "backward": Phase("backward", ORANGE),
    "optimizer": Phase("optimiser step", PURPLE),
    "rest": Phase("rest, and what is not measured", GRAY),
}
"""In their order."""


def empty_figure(height_in: float, *, arranged: bool = False) -> Drawn:
    """Return an empty figure of the common width.

    :param arranged: whether matplotlib makes room for labels and legends around the axes.
    """
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH_IN, height_in), layout="constrained" if arranged else None)


def axes_at(drawn: Drawn, left: float, bottom: float, width: float, height: float) -> Axes:
    """Add axes with a light grid at a place given in inches."""
    height_in = drawn.get_size_inches()[1]
    axes = drawn.add_axes(
        (left / WIDTH_IN, bottom / height_in, width / WIDTH_IN, height / height_in)
    )
    axes.grid(visible=True)
    return axes


def panels(
    amount: int, *, columns: int, height_in: float, legend_in: float = 0.0
) -> tuple[Drawn, list[Axes]]:
    """Return a figure with ``amount`` small axes in rows of at most ``columns``.

    :param height_in: of the axes, without their titles and labels.
    :param legend_in: height of a legend above all of them.
    """
    columns = min(columns, amount)
    rows = math.ceil(amount / columns)
    drawn = empty_figure(rows * (height_in + AROUND_PANEL_IN) + legend_in, arranged=True)
    grid = drawn.add_gridspec(rows, columns)
    axes = [drawn.add_subplot(grid[divmod(index, columns)]) for index in range(amount)]
    for one in axes:
        one.grid(visible=True)
    return drawn, axes


def short(value: float) -> str:
    """Return a number with three significant digits: ``1500000`` as ``1.5M``."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def plain_ticks(axes: Axes, *, x: bool = False, y: bool = False, most: int = 5) -> None:
    """Set at most ``most`` ticks with plain numbers on the given axes."""
    from matplotlib.ticker import MaxNLocator, ScalarFormatter

    chosen = [axis for axis, is_chosen in ((axes.xaxis, x), (axes.yaxis, y)) if is_chosen]
    for axis in chosen:
        axis.set_major_locator(MaxNLocator(most))
        axis.set_major_formatter(ScalarFormatter())


def legend(drawn: Drawn, handles: Sequence[Any], labels: Sequence[str], *, columns: int) -> None:
    """Add a legend along the upper edge of the figure."""
    spacing: Any = {"borderaxespad": 0.2, "handlelength": 1.6, "columnspacing": 1.4}
    drawn.legend(handles, labels, loc="outside upper left", ncols=columns, **spacing)


def colour_legend(
    drawn: Drawn, colours: Sequence[str], labels: Sequence[str], *, columns: int
) -> None:
    """Add a legend of colours along the upper edge."""
    from matplotlib.patches import Patch

    legend(drawn, [Patch(facecolor=colour) for colour in colours], labels, columns=columns)


def phase_legend(drawn: Drawn) -> None:
    phases = PHASES.values()
    colours = [phase.colour for phase in phases]
    colour_legend(drawn, colours, [phase.title for phase in phases], columns=3)


def time_unit(span_s: float) -> tuple[float, str]:
    """Return the unit that suits ``span_s``: its seconds and its name."""
    if span_s > 3 * 3600.0:
        return 3600.0, "hours"
    if span_s > 3 * 60.0:
        return 60.0, "minutes"
    return 1.0, "seconds"


# -- Gantt charts: bars of jobs on the CPUs that they ran on, over time

MOST_NAMED_BARS = 200
"""The bars of a chart have names if there are no more of them."""
MOST_LABELS = 30
"""Lanes of a chart that have a label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    name: str
    begin_s: float
    """Seconds from the beginning of the chart."""
    end_s: float
    colour: str
    cpus: Sequence[int]
    node: str = ""


Lanes = Mapping[str, Sequence[Bar]]


def lanes(bars: Sequence[Bar]) -> Lanes:
    """Return the bars of each CPU. If a bar has no CPUs, or those of several machines, return as few
    slots as hold all bars.
    """
    rows: dict[str, list[Bar]] = {}
    if all(bar.cpus and ", " not in bar.node for bar in bars):
        for node, cpu in sorted({(bar.node, cpu) for bar in bars for cpu in bar.cpus}):
            rows[f"{node} CPU {cpu}".strip()] = [
                bar for bar in bars if bar.node == node and cpu in bar.cpus
            ]
        return rows
    for bar in sorted(bars, key=lambda bar: bar.begin_s):
        free = (slot for slot, taken in rows.items() if taken[-1].end_s <= bar.begin_s)
        rows.setdefault(next(free, f"slot {len(rows)}"), []).append(bar)
    return rows


def gantt(axes: Axes, rows: Lanes, *, span_s: float, unit_s: float) -> None:
    """Draw bars with their names, each as far as there is room in its bar, on an axis of ``span_s``
    seconds in units of ``unit_s`` seconds.
    """
    are_named = sum(map(len, rows.values())) <= MOST_NAMED_BARS
    for lane, bars in enumerate(rows.values()):
        patches = axes.barh(
            [lane] * len(bars),
            [(bar.end_s - bar.begin_s) / unit_s for bar in bars],
            left=[bar.begin_s / unit_s for bar in bars],
            height=0.84,
            color=[bar.colour for bar in bars],
            edgecolor=FACE,
            linewidth=0.4,
        )
        for bar, patch in zip(bars, patches, strict=True):
            if are_named:
                name = axes.annotate(
                    bar.name,
                    (patch.get_x(), lane),
                    xytext=(3, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=6.5,
                    color=FACE,
                )
                name.set_clip_path(patch)
    labelled = range(0, len(rows), math.ceil(len(rows) / MOST_LABELS))
    axes.set_yticks(labelled, [list(rows)[lane] for lane in labelled])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, max(span_s / unit_s, 1e-9))
    axes.grid(visible=False, axis="y")
