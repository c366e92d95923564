"""Examining thousands of robots: how much time each may take, and what shows that something
happens."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from supervisor_helpers import make_job

from orchestrator.core.messages import ExaminationAnswer, ExaminationRequest
from orchestrator.examination import (
    examination_requests,
    preflight,
    side_by_side,
)
from orchestrator.terminal.run_view import LiveReporter


def requests_for(robots: int, monkeypatch: pytest.MonkeyPatch) -> Sequence[ExaminationRequest]:
    seen: list[ExaminationRequest] = []

    def ask(requests: Sequence[ExaminationRequest], **_: Any) -> list[ExaminationAnswer]:
        seen.extend(requests)
        return [ExaminationAnswer()] * len(requests)

    monkeypatch.setattr(side_by_side, "ask", ask)
    jobs = [
        replace(make_job(str(number)), xml_source=Path(f"/{number}.xml"))
        for number in range(robots)
    ]
    preflight.examine(jobs, staging=Path("/staging"), processes=2)
    return seen


@pytest.mark.parametrize(("robots", "all_s"), [(1, 0.25), (120, 30.0), (1500, 30.0)])
def test_stability_tests_of_many_robots_share_half_a_minute(
    robots: int, all_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [request.simulate_s for request in requests_for(robots, monkeypatch)]
    assert sum(given) == pytest.approx(all_s)
    assert min(given) == max(given) >= examination_requests.LEAST_SIMULATE_S


def test_a_terminal_shows_the_examination_in_one_line_that_is_redrawn() -> None:
    screen = io.StringIO()
    reporter = LiveReporter(Console(file=screen, force_terminal=True, width=60))
    for done in (1200, 2400):
        reporter.event("examining", f"examining: {done:,} of 5,000 robots")
    reporter.close()
    _, between = screen.getvalue().split("1,200 of 5,000", 1)
    assert "\n" not in between.split("2,400 of 5,000", 1)[0]
