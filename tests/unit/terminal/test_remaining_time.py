"""The time that remains, by what running workers report or by the jobs that have ended."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.terminal.jobs_table import remaining_s


def two_at_once(seconds: float) -> list[dict[str, Any]]:
    """47 jobs of 64 env_steps that took so long each, two at once, the last one alone."""
    return [
        {"env_steps": 64, "started_at": 10.0 + start, "ended_at": 10.0 + start + seconds}
        for start in (number // 2 * seconds for number in range(47))
    ]


SHORT = two_at_once(2.0)
LONG = two_at_once(600.0)


@pytest.mark.parametrize(
    ("done", "rate", "expected"),
    [
        pytest.param([], 0.0, None, id="nothing tells"),
        pytest.param([], 64.0, 141.0, id="none has ended"),
        pytest.param(SHORT, 0.0, 141 * 48 / 47, id="short jobs that report no speed"),
        pytest.param(SHORT, 640.0, 141 * 48 / 47, id="short jobs, of which one reports a speed"),
        pytest.param(LONG, 0.0, 141 * 300 * 48 / 47, id="long jobs before their first report"),
        pytest.param(SHORT[:1], 0.0, None, id="fewer ends than run at once"),
    ],
)
def test_the_estimate(done: list[dict[str, Any]], rate: float, expected: float | None) -> None:
    found = remaining_s(done, steps_to_go=141 * 64, env_steps_per_s=rate, running=2)
    assert found == (None if expected is None else pytest.approx(expected))
