"""The key ``terrain`` of ``[jobs.randomize]``: ``"rough(0.05)"``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from orchestrator.core.decoding import Table

TERRAIN = "terrain"
CELL_M = 0.25
MOST_HEIGHT_M = 2.0
LEAST_CELL_M = 0.02
MOST_CELL_M = 2.0
_EXPECTED = (
    f'expected "rough(height)" or "rough(height, cell)" in metres, with a height above 0 and up to {MOST_HEIGHT_M:g} '
    f"and cells from {LEAST_CELL_M:g} to {MOST_CELL_M:g}"
)
_NUMBER = r"\s*(\d+(?:\.\d*)?|\.\d+)\s*"
_ROUGH = re.compile(rf"\s*rough\s*\({_NUMBER}(?:,{_NUMBER})?\)\s*\Z")


@dataclass(frozen=True, slots=True)
class Terrain:
    """A rough floor."""

    height_m: float
    """Between its lowest and its highest point."""
    cell_m: float
    """Distance between neighbouring points of its grid, each of which has a random height."""


def terrain_of(randomize: Table) -> Terrain | None:
    """That of the table ``randomize`` of a job. :raises ValueError: it is no terrain."""
    return parse_terrain(randomize[TERRAIN]) if TERRAIN in randomize else None


def parse_terrain(text: object) -> Terrain:
    """:raises ValueError: it is no terrain."""
    match = _ROUGH.match(text) if isinstance(text, str) else None
    if match is not None:
        terrain = Terrain(float(match[1]), float(match[2] or CELL_M))
        is_high = 0 < terrain.height_m <= MOST_HEIGHT_M
        if is_high and LEAST_CELL_M <= terrain.cell_m <= MOST_CELL_M:
            return terrain
    raise ValueError(f"{text!r:.60} is no terrain; {_EXPECTED}")
