"""How users name jobs."""

from __future__ import annotations

import pytest

from orchestrator.core.errors import UsageError
from orchestrator.core.job_patterns import resolve

JOBS = {"press-s0": "press", "press_servo-s0": "press_servo", "press_servo-s1": "press_servo"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("press", ["press-s0"]),
        ("press-s0", ["press-s0"]),
        ("press_servo-s1", ["press_servo-s1"]),
        ("*s0", ["press-s0", "press_servo-s0"]),
    ],
)
def test_an_exact_name_wins_over_longer_ones(name: str, expected: list[str]) -> None:
    assert resolve([name], JOBS) == expected


@pytest.mark.parametrize("name", ["pres", "press_servo", "pull"])
def test_a_beginning_of_several_jobs_or_of_none_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=name):
        resolve([name], JOBS)
