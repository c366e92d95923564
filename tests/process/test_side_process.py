"""Processes beside a supervisor, such as that of a search: how they end, and are started again."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from supervisor_helpers import RecordingReporter

from orchestrator.core.paths import RunPaths
from orchestrator.experiment import search_process
from orchestrator.experiment.search_process import SearchProcess
from orchestrator.experiment.side_process import SideProcess

ENDS = ("platform",)
"""A module that prints a line and ends."""
SILENT = ("abc",)


def has_ended(process: SideProcess) -> None:
    assert process._popen is not None
    process._popen.wait()


def test_a_process_that_ended_before_it_was_told_can_be_ended(tmp_path: Path) -> None:
    process = SideProcess(arguments=ENDS, run_dir=tmp_path, log=tmp_path / "track" / "track.log")
    process.start()
    has_ended(process)
    with contextlib.suppress(BrokenPipeError):
        process.tell(b"\n")
    process.end()
    assert process.exit_code == 0


def test_a_process_that_ends_without_a_word_has_no_earlier_reason(tmp_path: Path) -> None:
    process = SideProcess(arguments=SILENT, run_dir=tmp_path, log=tmp_path / "process.log")
    process.log.write_text("the reason of the one before\n")
    process.start()
    has_ended(process)
    assert process.why_it_ended() == "its process ended with exit code 0"


@pytest.mark.parametrize("steady_s", [math.inf, -1.0])
def test_a_searcher_that_had_worked_for_long_is_started_again_without_end(
    steady_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_process, "STEADY_S", steady_s)
    slots: Any = SimpleNamespace(lanes=1)
    paths, reporter = RunPaths(tmp_path), RecordingReporter()
    searcher = SearchProcess(paths=paths, holder="me", slots=slots, reporter=reporter)
    searcher._process, searcher._is_needed = (
        SideProcess(arguments=SILENT, run_dir=tmp_path, log=paths.search_log),
        True,
    )
    searcher.look_after()
    starts = 1
    while searcher.may_add_jobs and starts <= search_process.MOST_STARTS:
        has_ended(searcher._process)
        searcher.look_after()
        starts += searcher.may_add_jobs
    assert starts == search_process.MOST_STARTS + (steady_s < 0)
    assert bool(searcher.problem) is paths.search_stopped.exists() is (steady_s > 0)
    searcher._process.end()
