"""One minute of the campaign of faults."""

from __future__ import annotations

import pytest

from tests.soak.campaign import play

pytestmark = pytest.mark.nightly


@pytest.mark.timeout(1800)
def test_a_minute_of_faults_loses_nothing() -> None:
    lines: list[str] = []
    result = play(1, 1.0, lines.append)
    assert result.shortfalls == {}, lines
    assert result.applied, lines
