"""Figures of reports: what stands beside their axes is there whole."""

from __future__ import annotations

import pytest
from matplotlib.axes import Axes

from orchestrator.report import drawing
from orchestrator.report.document import Figure

pytestmark = pytest.mark.nightly


def left_end(axes: Axes) -> float:
    """Of what stands beside them."""
    box = axes.yaxis.get_tightbbox()
    assert box is not None
    return float(box.x0)


@pytest.mark.parametrize("largest", [4.0, 0.0043, -123456.7])
def test_labels_and_wide_ticks_are_neither_cut_nor_over_other_panels(largest: float) -> None:
    drawn, panels = drawing.panels(3, columns=2, height_in=1.5)
    for axes in panels:
        axes.plot([0, 1], [0.0, largest])
        axes.set_ylabel("distance_m / energy_j")
    drawing.render(Figure(name="wide", title="", caption="", draw=lambda: drawn))
    upper_left, upper_right, lower_left = panels
    assert left_end(upper_left) > 0
    assert left_end(lower_left) > 0
    assert left_end(upper_right) > upper_left.get_window_extent().x1
    widths = {round(axes.get_position().width, 6) for axes in panels}
    assert len(widths) == 1


def test_axes_with_room_stay_where_they_are() -> None:
    drawn = drawing.empty_figure(2.0)
    axes = drawing.axes_at(drawn, 1.0, 0.4, 6.0, 1.4)
    axes.plot([0, 1], [0, 1])
    before = axes.get_position().bounds
    drawing.render(Figure(name="roomy", title="", caption="", draw=lambda: drawn))
    assert axes.get_position().bounds == before
