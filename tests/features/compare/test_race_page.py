"""What a race has found, in the report of its run directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from report_helpers import Page, Trained, make_run_dir

from orchestrator import report
from orchestrator.features.compare.race_notes import RESULTS

FOUND: dict[str, Any] = {
    "run_dir": "runs/bodies",
    "race_dir": "runs/bodies-race-child-parent",
    "by": "distance_m",
    "jobs": [
        {"name": "parent", "values": [1.0, 1.2, 0.9], "mean": 1.0333},
        {"name": "child", "values": [2.0, 2.4, 1.9], "mean": 2.1},
    ],
    "seeds": [0, 1, 2],
    "trained": 4,
    "outcome": "higher",
    "difference": {"value": 1.0667, "low": 0.5, "high": 1.6, "n": 3},
    "p": 0.012,
    "most_seeds": 30,
    "smallest_difference": None,
    "settings": [{"what": "task_options.healthy_reward", "a": "0.2", "b": "5.0"}],
    "remarks": ["seed 3 left out for both, as one has no value."],
}


def page(run_dir: Path, results: object) -> Path:
    make_run_dir(run_dir, [Trained()])
    (run_dir / RESULTS).write_text(json.dumps(results))
    return report.make(run_dir)


@pytest.mark.usefixtures("undrawn")
def test_the_report_of_a_race_begins_with_what_it_has_found(tmp_path: Path) -> None:
    done = page(tmp_path / "run", {"distance_m": FOUND})
    text = Page(done).text
    assert "Race by distance_m" in text
    sentence = "child is higher than parent by 1.07"
    assert text.index(sentence) < text.rindex("Findings") < text.rindex("All jobs")
    assert "task_options.healthy_reward" in text
    facts = json.loads((done.parent / "report.json").read_text())
    assert facts["race"]["distance_m"]["outcome"] == "higher"


@pytest.mark.parametrize("results", [[], {"distance_m": FOUND | {"seeds": "many"}}])
@pytest.mark.usefixtures("undrawn")
def test_what_no_race_writes_is_left_out(results: object, tmp_path: Path) -> None:
    assert "Race by" not in Page(page(tmp_path / "run", results)).text
