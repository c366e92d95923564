"""What a policy loses on a grid of changed robots, and its figure."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from benchmarks import randomization_grid, search_figures
from benchmarks.randomization_grid import FRICTION, MASS, SHARES
from orchestrator.analysis.run_reader import EvaluatedPoint
from orchestrator.report import grid_section

pytestmark = pytest.mark.nightly


def seed(own: float, others: float) -> list[EvaluatedPoint]:
    """Returns on the robot of the file and on all others."""
    return [
        {
            "at": {MASS: mass, FRICTION: friction},
            "mean": own if mass == friction == "*1" else others,
        }
        for mass, friction in itertools.product(SHARES, SHARES)
    ]


def test_a_loss_is_the_share_of_the_own_return_that_the_grid_costs() -> None:
    assert randomization_grid.own_return(seed(200.0, 100.0)) == 200.0
    assert randomization_grid.loss(seed(200.0, 100.0)) == pytest.approx(0.5 * 24 / 25)
    assert randomization_grid.loss(seed(100.0, 100.0)) == 0.0


def test_the_figure_has_medians_over_the_seeds_as_shares(tmp_path: Path) -> None:
    panel = randomization_grid._panel(
        "with", [seed(200.0, 100.0), seed(100.0, 90.0), seed(100.0, 80.0)]
    )
    assert (panel.mean(0, 0), panel.mean(2, 2)) == (0.8, 1.0)
    search_figures.write(tmp_path, "grid", grid_section.draw, [panel, panel])
    assert (tmp_path / "grid.png").stat().st_size > 10_000
