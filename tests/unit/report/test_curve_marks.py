"""What features mark on the learning curves of a report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orchestrator.analysis import run_reader
from orchestrator.report import figures


def test_a_column_rises_where_the_iteration_before_has_ended(tmp_path: Path) -> None:
    file = tmp_path / "progress.csv"
    assert run_reader.rises(file, "curriculum/stage") == []
    rows = [(100, 1), (200, 1), (300, 2), (400, 3), (500, 3)]
    lines = [f"{steps},{steps / 10},{stage}" for steps, stage in rows]
    file.write_text(
        "\n".join(["time/total_timesteps,rollout/ep_rew_mean,curriculum/stage", *lines, "600,1"])
    )
    assert run_reader.rises(file, "curriculum/stage") == [200.0, 300.0]
    file.write_text("time/total_timesteps,rollout/ep_rew_mean\n100,1\n")
    assert run_reader.rises(file, "curriculum/stage") == []


def test_a_mark_is_on_the_curve_of_its_job() -> None:
    robots: Any = [{"robot": "hopper", "jobs": ["a", "b", "c"]}]
    curve = [(100.0, 0.0), (200.0, 1.0), (300.0, 5.0)]
    jobs: Any = {
        "a": {"curve": curve, "marks": {"one": [150.0], "another": [300.0]}},
        "b": {"curve": curve, "marks": {"one": []}},
        "c": {"curve": [], "marks": {"one": []}},
    }
    [axes] = figures.learning_curves(robots, jobs).axes
    marks = [
        tuple(zip(*line.get_data(), strict=True)) for line in axes.lines if line.get_marker() == "^"
    ]
    assert marks == [((150.0, 0.5), (300.0, 5.0))]
