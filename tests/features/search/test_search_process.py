"""The process of a search beside a supervisor: how it is watched, and started again."""

from __future__ import annotations

import math
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from supervisor_helpers import RecordingReporter
from trial_helpers import Told, search_run

from orchestrator.core.job import Paused, Pending
from orchestrator.core.paths import RunPaths
from orchestrator.experiment.directory import run_directory
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


def test_it_is_started_again_when_its_delay_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(search_process.time, "monotonic", lambda: now)
    slots: Any = SimpleNamespace(jobs_at_once=1)
    process = SideProcess(arguments=SILENT, run_dir=tmp_path, log=SearchPaths(tmp_path).log)
    reporter = RecordingReporter()
    searcher = SearchBesideRun(paths=RunPaths(tmp_path), reporter=reporter, is_needed=True)
    searcher._slots = slots
    searcher._process = process
    searcher.before_turn()
    for starts, delay_s in ((2, 0.0), (3, 1.0), (4, 2.0)):
        assert process._popen is not None
        process._popen.wait()
        searcher.before_turn()
        assert searcher._starts_again_at == now + delay_s
        now += delay_s / 2
        searcher.before_turn()
        assert process.starts == (starts - 1 if delay_s else starts)
        now += delay_s / 2
        searcher.before_turn()
        assert process.starts == starts
    assert "it is started again in 2 s" in reporter.messages()
    searcher.end()


@pytest.mark.parametrize("is_resumed", [True, False])
def test_it_is_started_again_when_the_user_has_resumed_a_job_just_as_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_resumed: bool
) -> None:
    (tmp_path / "waits_for_user.py").write_text(
        f"raise SystemExit({search_process.WAITS_FOR_USER})"
    )
    folders = [str(tmp_path), os.environ.get("PYTHONPATH")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, folders)))
    paths = search_run(tmp_path / "run", [Told()], is_over=False)
    process = SideProcess(
        arguments=["waits_for_user"], run_dir=paths.root, log=SearchPaths(paths.root).log
    )
    searcher = SearchBesideRun(paths=paths, reporter=RecordingReporter(), is_needed=True)
    searcher._slots = SimpleNamespace(jobs_at_once=1)  # type: ignore[assignment]
    searcher._process = process
    with run_directory.opened_ledger(paths) as ledger:
        searcher._ledger = ledger
        ledger.set_state("hopper-t00000-s0", Paused())
        searcher.before_turn()
        assert process._popen is not None
        process._popen.wait()
        searcher.before_turn()
        assert not searcher.may_add_jobs()
        if is_resumed:
            ledger.set_state("hopper-t00000-s0", Pending())
        searcher.before_turn()
        assert searcher.may_add_jobs() == is_resumed
        assert process.starts == (2 if is_resumed else 1)
    searcher.end()


def test_one_that_cannot_be_started_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the kernel has no memory for a fork."""

    def start(_: SideProcess, *more: str) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(SideProcess, "start", start)
    monkeypatch.setattr(search_process, "backoff_s", lambda _: 0.0)
    process = SideProcess(arguments=SILENT, run_dir=tmp_path, log=SearchPaths(tmp_path).log)
    searcher = SearchBesideRun(
        paths=RunPaths(tmp_path), reporter=RecordingReporter(), is_needed=True
    )
    searcher._slots = SimpleNamespace(jobs_at_once=1)  # type: ignore[assignment]
    searcher._process = process
    turns = 0
    while searcher.may_add_jobs():
        searcher.before_turn()
        turns += 1
    assert turns == search_process.MOST_STARTS
    problem = searcher.problem()
    assert problem is not None
    assert "could not be started: [Errno 12] Cannot allocate memory" in problem.what


def test_a_call_of_a_sampler_ends_from_inside_before_it_counts_as_hanging() -> None:
    assert search_process.SILENT_S > watchdog.LIMIT_S + watchdog.TICK_S
