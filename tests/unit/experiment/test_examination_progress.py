"""Examining thousands of robots: how much time each may take, and what shows that something
happens."""

from __future__ import annotations

import cProfile
import io
import itertools
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest
from rich.console import Console
from supervisor_helpers import RecordingReporter, make_job

from orchestrator.core.messages import ExaminationAnswer, ExaminationRequest
from orchestrator.experiment import session
from orchestrator.experiment.examination import (
    examination_requests,
    examining_process,
    preflight,
    side_by_side,
)
from orchestrator.terminal import output
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


class InstantChild:
    """In place of an examining process: finds every robot good, at once."""

    started: int
    nothing: IO[bytes]
    answered, hung = 0, False

    def __init__(self) -> None:
        InstantChild.started += 1

    def __enter__(self) -> InstantChild:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def fileno(self) -> int:
        return self.nothing.fileno()

    def suits(self, _: ExaminationRequest) -> bool:
        return True

    def ask(self, request: ExaminationRequest, time_limit_s: float) -> None:
        pass

    def answer(self, *, can_be_read: bool) -> ExaminationAnswer:
        return ExaminationAnswer()


def cost_of_variants(number: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Child processes and calls in this one for so many variants of one robot."""
    robot, InstantChild.started = Path("/robot.xml"), 0
    specs = [
        {"model_edits": {"geom.foot.size": [1.0 + index]}} for index in range(100, 100 + number)
    ]
    jobs = [
        replace(make_job(f"v{index:04}", spec=spec), xml_source=robot)
        for index, spec in enumerate(specs)
    ]
    profile = cProfile.Profile()
    with Path(os.devnull).open("rb") as InstantChild.nothing:
        monkeypatch.setattr(examining_process, "Child", InstantChild)
        profile.enable()
        verdicts = preflight.examine(jobs, staging=Path("/staging"), processes=2)
        profile.disable()
    assert len(verdicts) == number
    return InstantChild.started, sum(entry.callcount for entry in profile.getstats())


def test_a_further_variant_costs_the_supervisors_side_as_much_however_many_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    costs = [cost_of_variants(number, monkeypatch) for number in (4, 80, 160, 240)]
    (_, few), (_, more), (children, many) = costs[1:]  # the first filled caches
    assert many - more == pytest.approx(more - few, rel=0.01)
    assert children == 2


def test_a_long_examination_is_reported_at_times_and_a_short_one_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds = itertools.count()
    monkeypatch.setattr(session.time, "monotonic", lambda: next(seconds) / 2)
    reporter = RecordingReporter()
    watch = session._ExaminationReport(reporter)
    for done in range(40):
        watch(done, 5000)
    assert {kind for kind, _, _ in reporter.events} == {"examining"}
    assert 2 <= len(reporter.events) <= 40 / 2 / session.REPORT_EVERY_S
    assert reporter.events[0][2]["examined"] > 0
    assert reporter.events[-1][2]["robots"] == 5000


def test_a_terminal_shows_the_examination_in_one_line_that_is_redrawn() -> None:
    screen = io.StringIO()
    reporter = LiveReporter(Console(file=screen, force_terminal=True, width=60))
    for done in (1200, 2400):
        reporter.event("examining", f"examining: {done:,} of 5,000 robots")
    reporter.close()
    _, between = screen.getvalue().split("1,200 of 5,000", 1)
    assert "\n" not in between.split("2,400 of 5,000", 1)[0]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_dry_run_shows_on_a_terminal_that_it_examines(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: is_terminal, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", screen)
    with output.examination() as watch:
        watch(1200, 5000)
    assert ("examining" in screen.getvalue()) == is_terminal
