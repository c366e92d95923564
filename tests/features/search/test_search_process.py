"""The process of a search beside a supervisor: how it is watched, and started again."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from supervisor_helpers import RecordingReporter

from orchestrator.core.paths import RunPaths
from orchestrator.experiment.processes.side_process import SideProcess
from orchestrator.features.search import search_process
from orchestrator.features.search.search_paths import SearchPaths
from orchestrator.features.search.search_process import SearchBesideRun
from orchestrator.features.search.searcher import watchdog

SILENT = ("abc",)
"""A module that ends without a word."""


@pytest.mark.parametrize("steady_s", [math.inf, -1.0])
def test_a_searcher_that_had_worked_for_long_is_started_again_without_end(
    steady_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_process, "STEADY_S", steady_s)
    delays: list[int] = []

    def no_delay(failures: int) -> float:
        delays.append(failures)
        return 0.0

    monkeypatch.setattr(search_process, "backoff_s", no_delay)
    slots: Any = SimpleNamespace(jobs_at_once=1)
    paths = RunPaths(tmp_path)
    process = SideProcess(arguments=SILENT, run_dir=tmp_path, log=SearchPaths(paths.root).log)
    searcher = SearchBesideRun(paths=paths, reporter=RecordingReporter(), is_needed=True)
    searcher._slots = slots
    searcher._process = process
    searcher.before_turn()
    starts = 1
    while searcher.may_add_jobs() and starts <= search_process.MOST_STARTS:
        assert process._popen is not None
        process._popen.wait()
        searcher.before_turn()
        searcher.before_turn()
        starts += searcher.may_add_jobs()
    assert starts == search_process.MOST_STARTS + (steady_s < 0)
    assert bool(searcher.problem()) is SearchPaths(paths.root).stopped.exists() is (steady_s > 0)
    waits_longer = list(range(1, search_process.MOST_STARTS - 1))
    assert delays == (waits_longer if steady_s > 0 else []), "the first time it does not wait"
    searcher.end()


def test_a_call_of_a_sampler_ends_from_inside_before_it_counts_as_hanging() -> None:
    assert search_process.SILENT_S > watchdog.LIMIT_S + watchdog.TICK_S
