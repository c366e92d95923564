"""The key ``terrain`` of the table ``randomize``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jobfile_helpers import HOPPER, resolve

from orchestrator.core.numbers.terrain import Terrain, parse_terrain


def test_a_terrain_has_a_height_and_cells() -> None:
    assert parse_terrain("rough(0.05)") == Terrain(0.05, 0.25)
    assert parse_terrain(" rough ( .1 , 0.5 ) ") == Terrain(0.1, 0.5)


@pytest.mark.parametrize(
    "text",
    [
        "rough",
        "rough(-0.1)",
        "rough(3)",
        "rough(0.1, 0.001)",
        "stairs(0.1)",
        0.05,
    ],
)
def test_what_is_no_terrain_is_refused_with_what_is_one(text: Any) -> None:
    with pytest.raises(ValueError):
        parse_terrain(text)


def test_a_job_file_takes_a_terrain_and_starts(place: Path) -> None:
    randomize = {"terrain": "rough(0.05)", "start": {"joints": "uniform(-0.1, 0.1)"}}
    [job] = resolve(place, {**HOPPER, "randomize": randomize}).jobs
    assert job.spec.randomize == {"terrain": "rough(0.05)", "start.joints": "uniform(-0.1, 0.1)"}
