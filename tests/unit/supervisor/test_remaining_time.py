"""The time that remains, by what running workers report or by the attempts that have ended."""

from __future__ import annotations

from dataclasses import replace

import pytest
from supervisor_helpers import (
    ledgers_closed,  # noqa: F401 - a fixture
)

from orchestrator.supervisor.remaining_time import EndedWork

TINY = EndedWork(attempts=47, env_steps=47 * 64, wall_s=47 * 2.0, begun=10.0, ended=57.0)
"""Two at once."""
LONG = replace(TINY, wall_s=47 * 600.0, ended=10.0 + 47 * 300.0)


@pytest.mark.parametrize(
    ("work", "rate", "running", "remaining_s"),
    [
        pytest.param(EndedWork(), 0.0, 2, None, id="nothing tells"),
        pytest.param(EndedWork(), 64.0, 2, 153.0, id="none has ended"),
        pytest.param(TINY, 0.0, 2, 153.0, id="short jobs that report no speed"),
        pytest.param(TINY, 640.0, 2, 153.0, id="short jobs, of which one reports a speed"),
        pytest.param(LONG, 0.0, 2, 153 * 300.0, id="long jobs before their first report"),
        pytest.param(LONG, 64.0, 2, 153.0, id="long jobs"),
        pytest.param(replace(TINY, attempts=1), 0.0, 2, None, id="fewer ends than run at once"),
    ],
)
def test_the_estimate(
    work: EndedWork, rate: float, running: int, remaining_s: float | None
) -> None:
    assert (
        work.remaining_s(steps_to_go=153 * 64, env_steps_per_s=rate, running=running) == remaining_s
    )
