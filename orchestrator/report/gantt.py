"""Gantt charts: bars of jobs on the CPUs that they ran on, over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.report.drawing import FACE
from orchestrator.report.number_format import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LETTER_IN, FEWEST_LETTERS = 0.068, 4
"""Width of a letter in a bar's name, and the letters without which a name is left out."""
NAMED_LANE_IN, LABEL_IN = 0.11, 0.13
"""Height of a lane from which on its bars have names; height of a lane's label."""
MANY_BARS = 80
"""From so many bars in a lane on, their edges are thin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    name: str
    begin_s: float
    """From the begin of the chart."""
    end_s: float
    colour: str
    cpus: Sequence[int]
    node: str = ""

    @property
    def length_s(self) -> float:
        return self.end_s - self.begin_s


Lanes = Mapping[str, Sequence[Bar]]


def lanes(bars: Sequence[Bar]) -> Lanes:
    """CPU → its bars; where a bar has no CPUs, or CPUs of several machines, as few slots as hold all bars."""
    rows: dict[str, list[Bar]] = {}
    if all(bar.cpus and ", " not in bar.node for bar in bars):
        for node, cpu, place in sorted((bar.node, cpu, place) for place, bar in enumerate(bars) for cpu in bar.cpus):
            rows.setdefault(f"{node} CPU {cpu}".strip(), []).append(bars[place])
        return rows
    free_at: list[float] = []
    for bar in sorted(bars, key=lambda bar: bar.begin_s):
        slot = next((slot for slot, free in enumerate(free_at) if free <= bar.begin_s), len(free_at))
        free_at[slot : slot + 1] = [bar.end_s]
        rows.setdefault(f"slot {slot}", []).append(bar)
    return rows


def draw(axes: Axes, rows: Lanes, *, span_s: float, unit_s: float) -> None:
    """Bars with their names where there is room.

    :param span_s: seconds that the axis shows.
    :param unit_s: seconds of one unit of the axis.
    """
    extent, dots_per_in = axes.get_window_extent(), axes.figure.dpi
    width_in, lane_in = extent.width / dots_per_in, extent.height / dots_per_in / len(rows)
    for lane, bars in enumerate(rows.values()):
        for colour in dict.fromkeys(bar.colour for bar in bars):
            spans = [(bar.begin_s / unit_s, bar.length_s / unit_s) for bar in bars if bar.colour == colour]
            edge = 0.5 if len(bars) < MANY_BARS else 0.1
            axes.broken_barh(spans, (lane - 0.42, 0.84), facecolors=colour, edgecolors=FACE, linewidth=edge)
        for bar in bars if lane_in > NAMED_LANE_IN else ():
            letters = int(bar.length_s / max(span_s, 1e-9) * width_in / LETTER_IN) - 1
            if letters >= FEWEST_LETTERS:
                middle = (bar.begin_s + bar.end_s) / 2 / unit_s
                axes.text(middle, lane, plain(bar.name, letters), ha="center", va="center", fontsize=6.5, color=FACE)
    labelled = range(0, len(rows), max(1, round(LABEL_IN / lane_in)))
    axes.set_yticks(list(labelled), [list(rows)[lane] for lane in labelled])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, max(span_s / unit_s, 1e-9))
    axes.grid(visible=False, axis="y")
