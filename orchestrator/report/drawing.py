"""Figures as SVG and PNG: one style, and colours that a page can change between light and dark."""

from __future__ import annotations

import io
import logging
import math
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from orchestrator.report.document import Figure
from orchestrator.report.number_format import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawn

WIDE_IN, NARROW_IN = 9.6, 4.2
"""For screens and paper; for phones."""
PNG_DPI = 150
LETTER_IN, LEAST_LETTERS = 0.068, 4
"""Width of a letter in a bar's name; a name of fewer tells nothing."""

COLOURS = {
    "ink": ("#1f2328", "#e6edf3"),
    "dim": ("#59636e", "#9198a1"),
    "grid": ("#d8dee4", "#343b44"),
    "face": ("#fffffe", "#0f141a"),
    "blue": ("#0b6bb8", "#58a6ff"),
    "orange": ("#c8560a", "#f0883e"),
    "green": ("#1a7f45", "#3fb950"),
    "red": ("#c62834", "#ff7b72"),
    "purple": ("#7a48c9", "#bc8cff"),
    "teal": ("#0f7f86", "#39c5cf"),
    "yellow": ("#9a7000", "#d8a72a"),
    "pink": ("#b8357f", "#f778ba"),
    "gray": ("#8b949e", "#6e7781"),
}
"""Name → light, dark. The light one is drawn; in a page it stands for the name."""
INK, DIM, GRID, FACE = (COLOURS[name][0] for name in ("ink", "dim", "grid", "face"))
SERIES = tuple(COLOURS[name][0] for name in ("blue", "orange", "green", "purple", "red", "teal", "pink", "yellow"))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")

STYLE: Any = {
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "legend.fontsize": 7.5,
    "text.color": INK,
    "text.parse_math": False,  # a robot's name may hold dollar signs
    "axes.edgecolor": DIM,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "axes.formatter.use_mathtext": False,
    "axes.unicode_minus": True,
    "xtick.color": DIM,
    "ytick.color": DIM,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "figure.facecolor": "none",
    "svg.fonttype": "none",  # text stays text: small, searchable, in the page's own font
}

SVG_NAMESPACE = "http://www.w3.org/2000/svg"
LINK = "{http://www.w3.org/1999/xlink}href"
_REFERENCE = re.compile(r"url\(#([^)]+)\)")
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")
_NAMES = {light: name for name, (light, _) in COLOURS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """A figure in all its forms."""

    png: bytes
    svg: bytes
    """A file of its own, on white."""
    wide: str
    narrow: str
    """SVG elements for a page that defines the colours as ``--ink`` and so on."""


def render(figure: Figure) -> Rendered:
    """Draw ``figure`` in every form."""
    with _own_settings(), _missing_glyphs_are_no_news():
        wide = figure.draw(WIDE_IN)
        png = io.BytesIO()
        wide.savefig(png, format="png", dpi=PNG_DPI, facecolor="white")
        svg = _svg(wide, figure.name, facecolor="white")
        return Rendered(
            png=png.getvalue(),
            svg=svg,
            wide=_inline(_svg(wide, f"{figure.name}-wide"), figure.title),
            narrow=_inline(_svg(figure.draw(NARROW_IN), f"{figure.name}-narrow"), figure.title),
        )


@contextmanager
def _own_settings() -> Iterator[None]:
    """Our style upon matplotlib's defaults, whatever a user's ``matplotlibrc`` or a notebook's ``MPLBACKEND`` say.

    Without a word on its caches: where the home directory cannot be written, it makes its own.
    """
    log = logging.getLogger("matplotlib")
    level = log.level
    log.setLevel(logging.ERROR)
    backend = os.environ.pop("MPLBACKEND", None)  # one that is not installed would end the import
    try:
        import matplotlib as mpl
        import matplotlib.figure  # finds the fonts

        with mpl.rc_context():
            mpl.rcdefaults()
            mpl.rcParams.update(STYLE)
            yield
    finally:
        log.setLevel(level)
        if backend is not None:
            os.environ["MPLBACKEND"] = backend


@contextmanager
def _missing_glyphs_are_no_news() -> Iterator[None]:
    """A robot may have a name that the font of the PNG cannot show; the page's own can."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*missing from font.*", category=UserWarning)
        warnings.filterwarnings("ignore", message=".*natively supports.*", category=UserWarning)
        yield


def _svg(drawn: Drawn, salt: str, facecolor: str = "none") -> bytes:
    import matplotlib as mpl

    buffer = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": salt}):
        drawn.savefig(
            buffer, format="svg", facecolor=facecolor, metadata={"Date": None, "Creator": None, "Format": None}
        )
    return buffer.getvalue()


def _inline(svg: bytes, title: str) -> str:
    """The ``<svg>`` element alone: sized by the page, in the page's colours, without ids that nothing refers to."""
    ElementTree.register_namespace("", SVG_NAMESPACE)
    ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    root = ElementTree.fromstring(svg)  # noqa: S314 - we have just made it
    for metadata in root.findall(f"{{{SVG_NAMESPACE}}}metadata"):
        root.remove(metadata)
    used = set()
    for element in root.iter():
        used |= {name for value in element.attrib.values() for name in _REFERENCE.findall(value)}
        used.add(element.attrib.get(LINK, "").removeprefix("#"))
    for element in root.iter():
        if element.attrib.get("id") not in used:
            element.attrib.pop("id", None)
        if "style" in element.attrib:
            element.set("style", _COLOUR.sub(_variable, element.attrib["style"]))
    for name in ("width", "height"):
        root.attrib.pop(name, None)
    root.set("role", "img")
    root.set("aria-label", title)
    return ElementTree.tostring(root, encoding="unicode")


def _variable(match: re.Match[str]) -> str:
    name = _NAMES.get(match[0])
    return match[0] if name is None else f"var(--{name})"


# -- what figures share

PHASES = {
    "env": ("physics and environment", COLOURS["blue"][0]),
    "policy": ("policy", COLOURS["teal"][0]),
    "gae": ("advantages (GAE)", COLOURS["yellow"][0]),
    "backward": ("backward", COLOURS["orange"][0]),
    "optimizer": ("optimiser step", COLOURS["purple"][0]),
    "rest": ("rest (losses, buffers, logging)", COLOURS["gray"][0]),
}
"""Of an iteration, in its order: what readers call it, and its colour."""


def sheet(width_in: float, height_in: float) -> Drawn:
    from matplotlib.figure import Figure

    return Figure(figsize=(width_in, height_in))


def axes_at(drawn: Drawn, left: float, bottom: float, width: float, height: float) -> Axes:
    """Axes at a place given in inches, with a light grid."""
    whole_width, whole_height = drawn.get_size_inches()
    axes = drawn.add_axes((left / whole_width, bottom / whole_height, width / whole_width, height / whole_height))
    axes.grid(visible=True)
    return axes


def panels(
    width_in: float, amount: int, *, least_in: float, height_in: float, most: int = 4, above_all: float = 0.0
) -> tuple[Drawn, list[Axes]]:
    """``amount`` small axes side by side, as many in a row as fit at ``least_in`` each.

    :param above_all: inches kept free for a legend.
    """
    columns = max(1, min(most, amount, int(width_in / least_in)))
    rows = math.ceil(amount / columns)
    left, below, above, between = 0.55, 0.48, 0.3, 0.08
    drawn = sheet(width_in, rows * (height_in + below + above) + above_all)
    cell = width_in / columns
    found = []
    for index in range(amount):
        row, column = divmod(index, columns)
        bottom = (rows - 1 - row) * (height_in + below + above) + below
        found.append(axes_at(drawn, column * cell + left, bottom, cell - left - between, height_in))
    return drawn, found


def is_narrow(width_in: float) -> bool:
    return width_in < (WIDE_IN + NARROW_IN) / 2


def short(value: float, _position: object = None) -> str:
    """``1500000`` → ``1.5M``: for ticks."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size * 0.9995:
            return f"{value / size:.3g}{letter}".replace("-", "−")
    return f"{value:.3g}".replace("-", "−")


def plain_ticks(axes: Axes, *, x: bool = False, y: bool = False, most: int = 5) -> None:
    """Few ticks with short numbers on the axes asked for."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    for axis in ([axes.xaxis] if x else []) + ([axes.yaxis] if y else []):
        axis.set_major_locator(MaxNLocator(most))
        axis.set_major_formatter(FuncFormatter(short))


def legend(drawn: Drawn, handles: Sequence[Any], labels: Sequence[str], *, columns: int) -> None:
    """A legend along the upper edge of the figure."""
    height = drawn.get_size_inches()[1]
    drawn.legend(
        handles,
        labels,
        loc="upper left",
        bbox_to_anchor=(0.0, 1 - 0.02 / height),
        ncols=columns,
        borderaxespad=0.2,
        handlelength=1.6,
        columnspacing=1.4,
    )


def swatches(drawn: Drawn, colours: Sequence[str], labels: Sequence[str], *, columns: int) -> None:
    """A legend of colours along the upper edge."""
    from matplotlib.patches import Patch

    legend(drawn, [Patch(facecolor=colour) for colour in colours], labels, columns=columns)


def time_unit(span_s: float) -> tuple[float, str]:
    """Seconds in the unit that suits ``span_s``, and its name."""
    units = ((3600.0, "hours"), (60.0, "minutes"))
    return next(((size, name) for size, name in units if span_s > 3 * size), (1.0, "seconds"))


def take_slot(free_at: list[float], begin: float, end: float) -> int:
    """The first lane that is free at ``begin``, or a new one; ``free_at``, when each becomes free, is updated."""
    slot = next((slot for slot, free in enumerate(free_at) if free <= begin), len(free_at))
    free_at[slot : slot + 1] = [end]
    return slot


def name_bar(axes: Axes, lane: float, middle: float, room_in: float, name: str) -> None:
    """A name within its bar, ``room_in`` inches long; cut where it is too long, left out where little would remain."""
    letters = int(room_in / LETTER_IN) - 1
    if letters >= LEAST_LETTERS:
        text = plain(name, letters)
        axes.text(middle, lane, text, ha="center", va="center", fontsize=6.5, color=FACE)
