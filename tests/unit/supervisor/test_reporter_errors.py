"""Errors of whoever shows a run: it goes on, and the first one is recorded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from supervisor_helpers import Experiment, RecordingReporter, make_job

from orchestrator import api
from orchestrator.core.errors import SupervisorError
from orchestrator.core.paths import RunPaths
from orchestrator.executors.base import Event
from orchestrator.executors.fake import NEVER, Behaviour, FakeExecutor
from orchestrator.experiment.directory import run_directory
from orchestrator.supervisor.active_attempts import ActiveAttempt
from orchestrator.supervisor.events import DetachableReporter
from orchestrator.supervisor.recorder import Recorder
from orchestrator.terminal.notebook_view import NotebookReporter


def raises(kind: str, message: str, **facts: Any) -> None:
    raise KeyError(f"no colour for {kind}")


@pytest.mark.parametrize("error", [KeyError("no colour"), BrokenPipeError("the terminal is gone")])
def test_the_first_error_of_a_reporter_is_recorded_with_its_traceback_and_the_run_goes_on(
    tmp_path: Path, error: Exception
) -> None:
    experiment = Experiment(tmp_path, [make_job(name) for name in ("a", "b", "c")])
    shown = experiment.reporter.event

    def event(kind: str, message: str, **facts: Any) -> None:
        if kind == "launched":
            raise error
        shown(kind, message, **facts)

    experiment.reporter.event = event  # type: ignore[method-assign]
    assert set(experiment.run().values()) == {"SUCCEEDED"}
    log = experiment.paths.error_log.read_text()
    assert log.count("Traceback") == 1
    assert f"{type(error).__name__}: {error}" in log
    assert experiment.reporter.kinds().count("warning") == 1
    assert str(experiment.paths.error_log) in experiment.reporter.messages()
    assert experiment.reporter.kinds().count("succeeded") == 3


def test_an_error_that_cannot_be_recorded_yet_is_so_when_it_comes_again() -> None:
    recorded: list[Exception] = []
    answers = iter([None, "it is here"])

    def record(error: Exception) -> str | None:
        recorded.append(error)
        return next(answers)

    inner = RecordingReporter()
    inner.event = raises  # type: ignore[method-assign]
    reporter = DetachableReporter(inner, record)
    for kind in ("examining", "launched", "succeeded"):
        reporter.event(kind, "")
    assert list(map(str, recorded)) == [
        "'no colour for examining'",
        "'no colour for launched'",
    ]


def test_nothing_is_written_to_a_run_directory_that_this_process_has_not_taken(
    tmp_path: Path,
) -> None:
    paths = RunPaths(tmp_path / "run")
    record = run_directory.error_record(paths.root)
    assert record(ValueError("too early")) is None
    assert not paths.root.exists()
    paths.root.mkdir()
    paths.lock.write_text('{"pid": 1, "pid_start": 0.5, "host": "another", "since": "then"}')
    assert record(ValueError("of another run")) is None
    with run_directory.claim(paths.root):
        where = record(ValueError("within the run"))
    assert where == f"its traceback is in {paths.error_log}"
    record(ValueError("after its end"))
    log = paths.error_log.read_text()
    assert "within the run" in log
    assert "after its end" in log
    assert "too early" not in log
    assert "of another run" not in log


def test_a_notebook_whose_last_table_cannot_be_drawn_leaves_the_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("IPython")
    paths = RunPaths(tmp_path / "run")

    def broken(self: NotebookReporter) -> None:
        raise ZeroDivisionError("no column is left")

    monkeypatch.setattr(api, "is_notebook", lambda: True)
    monkeypatch.setattr(NotebookReporter, "_draw", broken)
    with api._reporter(paths.root, show=True), run_directory.claim(paths.root):
        pass
    assert "ZeroDivisionError: no column is left" in paths.error_log.read_text()


def test_errors_after_the_one_that_ends_a_run_are_recorded_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Once(FakeExecutor):
        def poll(self, timeout_s: float) -> Sequence[Event]:
            if self.time_s > 5 and not experiment.supervisor._termination.stops_requested:
                raise KeyError("the first")
            return FakeExecutor.poll(self, timeout_s)

    def broken(self: Recorder, *_: object, **options: Any) -> bool:
        if options.get("final"):
            raise KeyError("the second")
        return end_turn(self, *_, **options)

    end_turn = Recorder.end_turn
    monkeypatch.setattr(Recorder, "end_turn", broken)
    fake = Once(behave=lambda launch: Behaviour(after_s=NEVER, exits_within_s=1.0))
    experiment = Experiment(tmp_path, [make_job("a")], executor=fake, now=fake.now)
    with pytest.raises(SupervisorError, match="the first"):
        experiment.run()
    log = experiment.paths.error_log.read_text()
    assert "KeyError: 'the first'" in log
    assert "KeyError: 'the second'" in log


def test_each_different_error_is_recorded_once_with_its_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Faulty(FakeExecutor):
        polls_while_draining = 0

        def poll(self, timeout_s: float) -> Sequence[Event]:
            if self.time_s > 5 and not experiment.supervisor._termination.stops_requested:
                raise KeyError("the first")
            if self.time_s > 5:
                self.polls_while_draining += 1
            if self.polls_while_draining in (2, 3):
                raise ValueError(f"number {self.polls_while_draining}")
            return FakeExecutor.poll(self, timeout_s)

    def broken(self: Recorder, attempt: ActiveAttempt) -> None:
        if experiment.supervisor._termination.stops_requested:
            raise OverflowError(attempt.handle.job_id)

    monkeypatch.setattr(Recorder, "note_progress", broken)
    talker = Behaviour(after_s=NEVER, progress_every_s=0.5, exits_within_s=3.0)
    fake = Faulty(behave=lambda launch: talker)
    experiment = Experiment(
        tmp_path, [make_job(name) for name in ("a", "b")], executor=fake, now=fake.now
    )
    with pytest.raises(SupervisorError, match="the first"):
        experiment.run()
    log = experiment.paths.error_log.read_text()
    assert log.count("\nValueError: number") == 1
    assert log.count("\nOverflowError: ") == 1
    assert re.search(r"ValueError in .*, line \d+: 2 times in all", log)
    assert re.search(r"OverflowError in .*, line \d+: 2 times in all", log)
