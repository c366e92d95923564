"""What features have beside a run: the order of moments, and those that raise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from supervisor_helpers import RecordingReporter

from orchestrator.core.feature import Feature
from orchestrator.experiment import beside_run
from orchestrator.experiment.beside_run import BesideRun, PartsBesideRun
from orchestrator.experiment.run_end import RunOutcome
from orchestrator.jobfile import Experiment
from orchestrator.supervisor.stop_signals import StopRequests


class Part(BesideRun):
    """Notes what it is told; raises at one moment."""

    def __init__(self, raises: str = "", error: BaseException | None = None) -> None:
        self.moments: list[str] = []
        self._raises, self._error = raises, error or ValueError("the knee fell off")

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("_") or name == "moments":
            return super().__getattribute__(name)

        def note(*_: object, **__: object) -> None:
            self.moments.append(name)
            if name == self._raises:
                raise self._error

        return note


def made(monkeypatch: pytest.MonkeyPatch, *parts: BesideRun) -> tuple[PartsBesideRun, Any]:
    features = [
        (Feature(name=f"part {number}", about="x."), part) for number, part in enumerate(parts)
    ]
    monkeypatch.setattr(beside_run, "answers", lambda *_: iter(features))
    reporter = RecordingReporter()
    beside = PartsBesideRun(inner=reporter, outcome=RunOutcome(), stops=StopRequests())
    experiment = Experiment(
        name="t", max_parallel=None, order="as-listed", jobs=(), source="t.toml", base=Path()
    )
    beside.ask(experiment, Path("run"), is_listed=True)
    return beside, reporter


def whole_run(beside: PartsBesideRun) -> None:
    def is_stopped() -> bool:
        beside.tick_parts()
        return False

    with beside:
        beside.event("chosen", "x")
        beside.begin(lambda: None)
        beside.look_after()
        beside.tick(lambda: None)  # type: ignore[arg-type,return-value]
        is_stopped()
        beside.add_results(None, is_stopped)  # type: ignore[arg-type]
        beside.finish(is_stopped)
        beside.end()


ALL = [
    *("event", "begin", "look_after", "tick", "tick", "add_results", "finish"),
    *("end", "end", "after_end"),
]


def test_a_part_is_told_of_every_moment_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    part = Part()
    beside, reporter = made(monkeypatch, part)
    whole_run(beside)
    assert part.moments == ALL
    assert reporter.kinds() == ["chosen"]


@pytest.mark.parametrize("error", [ValueError("the knee fell off"), SystemExit(3)])
def test_a_part_that_raises_is_ended_and_the_others_go_on(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken, sound = Part("tick", error), Part()
    beside, reporter = made(monkeypatch, broken, sound)
    whole_run(beside)
    assert broken.moments == ["event", "begin", "look_after", "tick", "end"]
    assert sound.moments == ALL
    assert reporter.messages().count("the feature part 0 does nothing more for this run") == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_warning_of_a_part_goes_where_all_events_go(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    beside, reporter = made(monkeypatch, BesideRun())
    monkeypatch.setattr(reporter, "event", lambda kind, text, **_: print(text))

    class Warns(BesideRun):
        def tick(self) -> None:
            beside.inner.event("warning", "the server is away")

    beside._parts["part 0"] = Warns()
    beside.tick_parts()
    assert capsys.readouterr().out == "the server is away\n"


def test_all_parts_add_results_before_one_finishes(monkeypatch: pytest.MonkeyPatch) -> None:
    moments: list[str] = []

    class Notes(BesideRun):
        def __init__(self, name: str) -> None:
            self._name = name

        def add_results(self, *_: object) -> None:
            moments.append(f"{self._name} adds")

        def finish(self, is_stopped: Callable[[], bool]) -> None:
            moments.append(f"{self._name} finishes")

    beside, _ = made(monkeypatch, Notes("first"), Notes("second"))
    whole_run(beside)
    assert moments == ["first adds", "second adds", "first finishes", "second finishes"]


def test_a_part_that_another_one_has_left_out_is_not_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = Part("tick")

    class Asks(BesideRun):
        def finish(self, is_stopped: Callable[[], bool]) -> None:
            is_stopped()

    beside, _ = made(monkeypatch, Asks(), broken)
    with beside:
        beside.finish(lambda: bool(beside.tick_parts()))
    assert broken.moments == ["tick", "end"]


def test_a_refused_run_ends_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    part = Part()
    beside, _ = made(monkeypatch, part)
    with pytest.raises(KeyboardInterrupt), beside:
        raise KeyboardInterrupt
    assert part.moments == ["end", "after_end"]
