"""``--until``: what a user may write, and how a run stops in time."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path

import pytest
from supervisor_helpers import (
    FOREVER,
    Run,
    ledgers_closed,  # noqa: F401 - a fixture
    make_job,
    names,
)

from orchestrator.client import end_time
from orchestrator.core.errors import UsageError


@pytest.mark.parametrize(
    ("text", "seconds"), [("2h", 7200), ("1h30min", 5400), (" 90 min", 5400), ("1d", 86_400)]
)
def test_a_duration_counts_from_now(text: str, seconds: float) -> None:
    before = time.time()
    assert before + seconds <= end_time.parse(text, 30.0) <= time.time() + seconds


class Clock(datetime):
    """It is 17:59:50 on the last day of February of a leap year."""

    @classmethod
    def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
        return datetime(2028, 2, 29, 17, 59, 50)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("18:00", (2028, 2, 29, 18, 0)),
        ("18:00:30", (2028, 2, 29, 18, 0, 30)),
        ("17:59", (2028, 3, 1, 17, 59)),
        ("0:15", (2028, 3, 1, 0, 15)),
    ],
)
def test_a_time_of_day_is_the_next_one(
    text: str, moment: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(end_time, "datetime", Clock)
    monkeypatch.setattr(time, "time", Clock.now().timestamp)
    assert datetime.fromtimestamp(end_time.parse(text, 5.0)) == datetime(*moment)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        "soon",
        "90",
        "2 weeks",
        "25:00",
        "18:5",
        "1000d",
        "30s",
    ],
)
def test_anything_else_and_a_time_that_is_too_near_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        end_time.parse(text, 30.0)


class Passing:
    """The time of day, which passes with the simulated clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.experiment: Run | None = None
        monkeypatch.setattr(time, "time", self._now)

    def _now(self) -> float:
        return 1e9 + (0.0 if self.experiment is None else self.experiment.fake.now())


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> Passing:
    return Passing(monkeypatch)


def test_everything_is_asked_to_stop_the_grace_time_before_and_can_be_resumed(
    tmp_path: Path, passing: Passing
) -> None:
    jobs = [make_job(name) for name in names(5)]
    experiment = Run(tmp_path, jobs, lambda _: FOREVER, until=1e9 + 100, grace_s=20.0)
    passing.experiment = experiment
    assert set(experiment.go().values()) == {"PENDING"}
    assert experiment.exit_code == 130
    assert 80 <= experiment.fake.time_s <= 81
    assert len(experiment.order) == 2
    (stopping,) = (event.message for event in experiment.events("stopping"))
    assert f"--until {datetime.fromtimestamp(1e9 + 100):%H:%M:%S}" in stopping
    assert "20 s" in stopping


def test_after_that_time_nothing_is_launched(tmp_path: Path, passing: Passing) -> None:
    experiment = passing.experiment = Run(tmp_path, [make_job()], until=1e9 + 10, grace_s=20.0)
    assert experiment.go() == {"a-s0": "PENDING"}
    assert experiment.order == []


def test_a_run_that_ends_earlier_is_not_stopped(tmp_path: Path, passing: Passing) -> None:
    experiment = passing.experiment = Run(tmp_path, [make_job()], until=1e9 + 100, grace_s=20.0)
    assert experiment.go() == {"a-s0": "SUCCEEDED"}
    assert experiment.exit_code == 0
