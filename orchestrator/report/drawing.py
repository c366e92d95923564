"""Draw figures as SVG and PNG, in one style. In a page the same SVG follows the page's colours, light or
dark.
"""

from __future__ import annotations

import io
import logging
import math
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.etree import ElementTree

from orchestrator.report.document import Figure
from orchestrator.report.number_format import one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure as Drawn

WIDTH_IN = 8.4
"""Width of every figure; a page scales it, down to a width at which text is legible, and scrolls it
there."""
PNG_DPI = 150
AROUND_PANEL_IN = 0.62
"""Height of the title, ticks and label of a panel."""


class Colour(NamedTuple):
    """On a light and on a dark page."""

    light: str
    """Figures are drawn with it; a page replaces it by a variable."""
    dark: str


COLOURS = {
    "ink": Colour("#1f2328", "#e6edf3"),
    "dim": Colour("#59636e", "#9198a1"),
    "grid": Colour("#d8dee4", "#343b44"),
    "face": Colour("#fffffe", "#0f141a"),
    "blue": Colour("#0b6bb8", "#58a6ff"),
    "orange": Colour("#c8560a", "#f0883e"),
    "green": Colour("#1a7f45", "#3fb950"),
    "red": Colour("#c62834", "#ff7b72"),
    "purple": Colour("#7a48c9", "#bc8cff"),
    "teal": Colour("#0f7f86", "#39c5cf"),
    "yellow": Colour("#9a7000", "#d8a72a"),
    "pink": Colour("#b8357f", "#f778ba"),
    "gray": Colour("#8b949e", "#6e7781"),
}
INK = COLOURS["ink"].light
DIM = COLOURS["dim"].light
GRID = COLOURS["grid"].light
FACE = COLOURS["face"].light
SERIES = tuple(
    COLOURS[name].light
    for name in ("blue", "orange", "green", "purple", "red", "teal", "pink", "yellow")
)
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

SVG_NAMESPACE = "http://www.w3.org/2000/svg"
_REFERENCE = re.compile(r"(?:url\(|xlink:href=\")#([^)\"]+)")
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")
_VARIABLES = {colour.light: f"var(--{name})" for name, colour in COLOURS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """A figure in all its forms."""

    png: bytes
    svg: bytes
    """The figure as a separate SVG file, on white."""
    inline: str
    """The same as an SVG element for a page that defines the colours as ``--ink`` and so on."""


def render(figure: Figure) -> Rendered:
    """Draw ``figure`` in every form."""
    png = io.BytesIO()
    svg = io.BytesIO()
    # The same ids within the SVG at every run, and different ones in the figures of a page.
    with _own_settings({"svg.hashsalt": figure.name}):
        drawn = figure.draw()
        drawn.savefig(png, format="png", dpi=PNG_DPI, facecolor="white")
        drawn.savefig(
            svg,
            format="svg",
            facecolor=FACE,
            metadata={"Date": None, "Creator": None, "Format": None},
        )
    return Rendered(
        png=png.getvalue(), svg=svg.getvalue(), inline=_inline(svg.getvalue(), figure.title)
    )


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


def _inline(svg: bytes, title: str) -> str:
    """Return the ``<svg>`` element alone: sized by the page, in the page's colours, without unused ids."""
    ElementTree.register_namespace("", SVG_NAMESPACE)
    ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    root = ElementTree.fromstring(svg)  # noqa: S314 - made by matplotlib just now
    for metadata in root.findall(f"{{{SVG_NAMESPACE}}}metadata"):
        root.remove(metadata)
    used = set(_REFERENCE.findall(svg.decode()))
    for element in root.iter():
        if element.attrib.get("id") not in used:
            element.attrib.pop("id", None)
        if (style := element.get("style")) is not None:
            element.set(
                "style", _COLOUR.sub(lambda colour: _VARIABLES.get(colour[0], colour[0]), style)
            )
    for name in ("width", "height"):
        root.attrib.pop(name, None)
    root.set("role", "img")
    root.set("aria-label", title)
    return ElementTree.tostring(root, encoding="unicode")


# -- what figures share


class Phase(NamedTuple):
    """A phase of an iteration."""

    title: str
    colour: str


PHASES = {
    "env": Phase("physics and environment", COLOURS["blue"].light),
    "policy": Phase("policy", COLOURS["teal"].light),
    "gae": Phase("advantages (GAE)", COLOURS["yellow"].light),
    "backward": Phase("backward", COLOURS["orange"].light),
    "optimizer": Phase("optimiser step", COLOURS["purple"].light),
    "rest": Phase("rest, and what is not measured", COLOURS["gray"].light),
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


def short(value: float, digits: int = 3) -> str:
    """Format a tick with so many significant digits: ``1500000`` as ``1.5M``."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size * (1 - 0.5 / 10**digits):
            return f"{value / size:.{digits}g}{letter}".replace("-", "−")
    return f"{value:.{digits}g}".replace("-", "−")


def tick_text(axis: Axis, value: float, _position: object = None) -> str:
    """Format a tick of ``axis`` with the digits that tell its ticks apart, three to six."""
    ticks = axis.get_majorticklocs()
    texts = {digits: {short(tick, digits) for tick in ticks} for digits in (3, 4, 5)}
    return short(value, next((n for n in texts if len(texts[n]) == len(ticks)), 6))


def plain_ticks(axes: Axes, *, x: bool = False, y: bool = False, most: int = 5) -> None:
    """Set at most ``most`` ticks with short numbers on the given axes."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    chosen = [axis for axis, is_chosen in ((axes.xaxis, x), (axes.yaxis, y)) if is_chosen]
    for axis in chosen:
        axis.set_major_locator(MaxNLocator(most))
        axis.set_major_formatter(FuncFormatter(partial(tick_text, axis)))


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

LETTER_IN = 0.068
"""Width of a letter in a bar's name."""
FEWEST_LETTERS = 4
"""A name is left out where there is room for fewer of its letters."""
NAMED_LANE_IN = 0.11
"""Height of a lane from which on its bars have names."""
LABEL_IN = 0.13
"""Height of a lane's label."""


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
    """Draw bars with their names where there is room, on an axis of ``span_s`` seconds in units of
    ``unit_s`` seconds.
    """
    extent = axes.get_window_extent()
    width_in = extent.width / axes.figure.dpi
    lane_in = extent.height / axes.figure.dpi / len(rows)
    for lane, bars in enumerate(rows.values()):
        axes.broken_barh(
            [(bar.begin_s / unit_s, (bar.end_s - bar.begin_s) / unit_s) for bar in bars],
            (lane - 0.42, 0.84),
            facecolors=[bar.colour for bar in bars],
            edgecolors=FACE,
            linewidth=0.5 if len(bars) < 80 else 0.1,
        )
        for bar in bars if lane_in > NAMED_LANE_IN else ():
            share = (bar.end_s - bar.begin_s) / max(span_s, 1e-9)
            letters = int(share * width_in / LETTER_IN) - 1
            if letters >= FEWEST_LETTERS:
                axes.text(
                    (bar.begin_s + bar.end_s) / 2 / unit_s,
                    lane,
                    one_line(bar.name, letters),
                    ha="center",
                    va="center",
                    fontsize=6.5,
                    color=FACE,
                )
    labelled = range(0, len(rows), max(1, round(LABEL_IN / lane_in)))
    axes.set_yticks(list(labelled), [list(rows)[lane] for lane in labelled])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, max(span_s / unit_s, 1e-9))
    axes.grid(visible=False, axis="y")
