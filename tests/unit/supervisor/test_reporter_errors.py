"""Errors of whoever shows a run: it goes on, and the first one is recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from supervisor_helpers import Experiment, make_job

from orchestrator.core.paths import RunPaths
from orchestrator.experiment.directory import run_directory


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
