"""The key ``terrain`` of the table ``randomize``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from jobfile_helpers import HOPPER, problems, resolve

from orchestrator.core.errors import SpecError
from orchestrator.core.numbers.terrain import Terrain, parse_terrain


def test_a_terrain_has_a_height_and_cells() -> None:
    assert parse_terrain("rough(0.05)") == Terrain(0.05, 0.25)
    assert parse_terrain(" rough ( .1 , 0.5 ) ") == Terrain(0.1, 0.5)


@pytest.mark.parametrize(
    "text",
    [
        "rough",
        "rough()",
        "rough(-0.1)",
        "rough(0)",
        "rough(3)",
        "rough(0.1, 0.001)",
        "stairs(0.1)",
        0.05,
        None,
    ],
)
def test_what_is_no_terrain_is_refused_with_what_is_one(text: Any) -> None:
    with pytest.raises(
        ValueError, match=re.escape('expected "rough(height)" or "rough(height, cell)" in metres')
    ):
        parse_terrain(text)


def test_a_terrain_that_follows_the_training_is_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="a terrain cannot change over the training"):
        parse_terrain("rough(linear(0, 0.1))")


def test_a_job_file_takes_a_terrain_and_starts(place: Path) -> None:
    randomize = {"terrain": "rough(0.05)", "start": {"joints": "uniform(-0.1, 0.1)"}}
    [job] = resolve(place, {**HOPPER, "randomize": randomize}).jobs
    assert job.spec.randomize == {"terrain": "rough(0.05)", "start.joints": "uniform(-0.1, 0.1)"}


@pytest.mark.parametrize(
    ("randomize", "message"),
    [
        (
            {"observation.noise.*": "choice(0, 1)"},
            '"observation.noise.*": choice does not fit here',
        ),
        ({"terrain": "uniform(0, 1)"}, "\"terrain\": 'uniform(0, 1)' is no terrain"),
        ({"start.height": "uniform(-1, 1)"}, '"start.height": may draw -1; expected at least 0'),
        ({"start.turn": "scale(0, 1)"}, '"start.turn": scale does not fit here'),
        ({"start.pose": "uniform(0, 1)"}, "unknown kind of element"),
    ],
)
def test_what_is_wrong_is_named_with_key_and_cure(
    place: Path, randomize: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError) as error:
        resolve(place, {**HOPPER, "randomize": randomize})
    assert any(
        where == "jobs[0].randomize" and message in text for where, text in problems(error)
    ), problems(error)
