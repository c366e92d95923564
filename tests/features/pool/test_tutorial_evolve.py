"""Every command and script of the tutorial, in order, with a small budget."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tutorial_helpers import Reader


@pytest.mark.slow
def test_a_body_is_evolved(tmp_path: Path) -> None:
    reader = Reader(
        tmp_path,
        {"50_000": "2_048", "BODIES, FIRST = 30": "BODIES, FIRST = 3", "range(5)": "range(1)"},
    )
    outputs = reader.follow("tutorial-evolve.md")
    bodies = re.findall(
        r"^body (\d): .* m; best -?\d+\.\d m", outputs["python evolve.py"], re.MULTILINE
    )
    assert bodies == ["1", "2", "3"]
