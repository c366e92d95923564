"""The table of vendors' robots in docs/urdf.md is the one that the full tier's tests check."""

from __future__ import annotations

from pathlib import Path

from vendor_robots import ROBOTS, table_text

DOCUMENT = Path(__file__).parents[3] / "docs" / "urdf.md"


def test_the_document_has_the_robots_that_are_checked() -> None:
    assert table_text() in DOCUMENT.read_text(encoding="utf-8")
    assert len({(robot.package, robot.file) for robot in ROBOTS}) >= 20
