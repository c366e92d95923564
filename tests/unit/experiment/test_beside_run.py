"""What features have beside a run: the order of moments, and those that raise."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from supervisor_helpers import RecordingReporter

from orchestrator.core.feature import Feature
from orchestrator.core.job import Cause, Failed, State
from orchestrator.experiment import beside_run
from orchestrator.experiment.beside_run import BesideRun, PartsBesideRun, RunProblem
from orchestrator.experiment.directory.run_end import RunOutcome
from orchestrator.experiment.planning.run_plan import RunOptions
from orchestrator.jobfile import Experiment
from orchestrator.ledger import Ledger
from orchestrator.supervisor.events import DetachableReporter
from orchestrator.supervisor.stop_signals import StopRequests

EXPERIMENT = Experiment(
    name="t", max_parallel=None, order="as-listed", jobs=(), source="t.toml", base=Path()
)


OPTIONS = RunOptions(run_dir=Path("run"))


class Part(BesideRun):
    """Notes what it is told; raises at one moment."""

    def __init__(self, raises: str = "") -> None:
        self.moments: list[str] = []
        self._raises = raises

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("_") or name == "moments":
            return super().__getattribute__(name)

        def note(*_: object, **__: object) -> None:
            self.moments.append(name)
            if name == self._raises:
                raise ValueError("the knee fell off")

        return note


def made(monkeypatch: pytest.MonkeyPatch, *parts: Any) -> tuple[PartsBesideRun, Any]:
    features = [
        (Feature(name=f"part {number}", about="x."), part) for number, part in enumerate(parts)
    ]
    monkeypatch.setattr(beside_run, "answers", lambda *_: iter(features))
    reporter = RecordingReporter()
    beside = PartsBesideRun(inner=reporter, outcome=RunOutcome(), stops=StopRequests())
    beside.ask(EXPERIMENT, Path("run"), is_listed=True)
    return beside, reporter


def whole_run(beside: PartsBesideRun) -> None:
    def is_stopped() -> bool:
        beside.after_turn()
        return False

    with beside:
        beside.event("chosen", "x")
        beside.begin(lambda: None)
        beside.before_turn()
        beside.tick(lambda: None)  # type: ignore[arg-type,return-value]
        is_stopped()
        beside.add_results(None, is_stopped)  # type: ignore[arg-type]
        beside.finish(is_stopped)
        beside.end()


ALL = [
    *("event", "begin", "before_turn", "after_turn", "after_turn", "add_results", "finish"),
    *("end", "after_end"),
]


def test_a_part_is_told_of_every_moment_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    part = Part()
    beside, reporter = made(monkeypatch, part)
    whole_run(beside)
    assert part.moments == ALL
    assert reporter.kinds() == ["chosen"]


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


def test_a_refused_run_ends_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    part = Part()
    beside, _ = made(monkeypatch, part)
    with pytest.raises(KeyboardInterrupt), beside:
        raise KeyboardInterrupt
    assert part.moments == ["end", "after_end"]


def test_what_a_part_raises_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Part("before_turn")
    other = Part()
    beside, _ = made(monkeypatch, other, broken)
    with pytest.raises(ValueError, match="the knee fell off"), beside:
        beside.before_turn()
    assert broken.moments == other.moments == ["before_turn", "end", "after_end"]


@pytest.mark.parametrize("moment", ["end", "after_end"])
def test_what_a_part_raises_at_the_end_keeps_no_other_from_being_told(
    moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Part()
    beside, _ = made(monkeypatch, Part(moment), other)
    with pytest.raises(ValueError, match="the knee fell off"), beside:
        pass
    assert other.moments == ["end", "after_end"]


@pytest.mark.parametrize("moment", ["event", "after_turn"])
def test_what_a_part_raises_when_it_is_told_of_something_ends_the_run(
    moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Part(moment)
    other = Part()
    beside, reporter = made(monkeypatch, broken, other)
    recorded: list[Exception] = []

    def record(error: Exception) -> str:
        recorded.append(error)
        return "it is recorded"

    as_the_supervisor_has_it = DetachableReporter(beside, record)
    as_the_supervisor_has_it.event("launched", "x")
    as_the_supervisor_has_it.tick(lambda: None)  # type: ignore[arg-type,return-value]
    assert beside.has_failed
    with pytest.raises(ValueError, match="the knee fell off"), beside:
        beside.before_turn()
    assert recorded == []
    assert reporter.kinds() == ["launched"], "whoever ends the run says why, and nobody else"
    assert other.moments == ["event", "after_turn", "end", "after_end"]


def test_what_is_run_is_what_the_parts_make_of_it_one_after_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Renames(BesideRun):
        def before_plan(
            self, experiment: Experiment, options: RunOptions, ledger: Ledger | None
        ) -> tuple[Experiment, RunOptions]:
            return dataclasses.replace(experiment, name=experiment.name + "t"), options

    beside, _ = made(monkeypatch, Renames(), BesideRun(), Renames())
    found, options = beside.before_plan(EXPERIMENT, OPTIONS, None)
    assert (found.name, options) == ("ttt", OPTIONS)


class Judges(BesideRun):
    def __init__(self, code: int | None, what: str = "", *, may_add_jobs: bool = False) -> None:
        self._code = code
        self._what = what
        self._may_add_jobs = may_add_jobs

    def exit_code(
        self, states: Mapping[str, State], *, is_interrupted: bool, is_stopping: bool
    ) -> int | None:
        return self._code

    def problem(self) -> RunProblem | None:
        return RunProblem(what=self._what, advice="Mend it.") if self._what else None

    def may_add_jobs(self) -> bool:
        return self._may_add_jobs


@pytest.mark.parametrize(
    ("codes", "expected"), [((), 1), ((None,), 1), ((0, None), 0), ((0, 130, 1), 130)]
)
def test_the_largest_exit_code_of_parts_counts_in_place_of_that_of_the_jobs(
    codes: Sequence[int | None], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside, _ = made(monkeypatch, *map(Judges, codes))
    assert beside.exit_code(FAILED, is_interrupted=False, is_stopping=False) == expected


FAILED: Mapping[str, State] = {"a": Failed(cause=Cause.ERROR, message="it fell")}


def test_a_part_may_add_jobs_and_say_why_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    beside, _ = made(monkeypatch, BesideRun(), Judges(0))
    assert not beside.may_add_jobs()
    assert beside.problem() is None
    beside, _ = made(monkeypatch, Judges(0, may_add_jobs=True), Judges(1, "it has stopped"))
    assert beside.may_add_jobs()
    assert beside.problem() == RunProblem(what="it has stopped", advice="Mend it.")


def test_every_part_is_ended_once_also_where_one_raises_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = [Part("end"), Part()]
    beside, _ = made(monkeypatch, *parts)
    with pytest.raises(ValueError, match="the knee fell off"):
        beside.end()
    beside.end()
    assert [part.moments for part in parts] == [["end"], ["end"]]
