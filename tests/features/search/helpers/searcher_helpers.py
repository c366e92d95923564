"""The process of a search as a supervisor has it beside itself, and examinations without a process."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import command_helpers as commands
import pytest
from supervisor_helpers import RecordingReporter

from orchestrator.core.messages import ExaminationAnswer, ExaminationRequest
from orchestrator.core.paths import RunPaths
from orchestrator.experiment.processes.side_process import SideProcess
from orchestrator.features.search import changed_search, search_process
from orchestrator.features.search.search_process import SearchBesideRun
from orchestrator.features.search.searcher.searcher import Searcher
from orchestrator.features.search.searcher.watchdog import Watchdog
from orchestrator.worker.robots.preflight_child import check


def searcher_of(paths: RunPaths, jobs_at_once: int = 1) -> Searcher:
    """A searcher in the place of a process, which goes on with what the ledger has."""
    return Searcher(
        paths=paths,
        experiment=changed_search.declared_experiment(paths),
        holder="me",
        watchdog=Watchdog(jobs_at_once=jobs_at_once),
    )


def make_turns(searcher: Searcher) -> None:
    """All turns until there is nothing more to be done."""
    while not searcher.history.is_over and searcher._turn():
        continue


@contextlib.contextmanager
def beginning(paths: RunPaths, jobs_at_once: int) -> Iterator[SearchBesideRun]:
    """Jobs are about to be launched; the searcher is started when it is looked after, and ends with
    the block."""
    slots: Any = SimpleNamespace(jobs_at_once=jobs_at_once)
    process = SearchBesideRun(paths=paths, reporter=RecordingReporter(), is_needed=True)
    process._experiment = changed_search.declared_experiment(paths)
    process._slots = slots
    process.begin(lambda: None)
    try:
        yield process
    finally:
        process.end()


def examine_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in this process examine robots themselves, which saves the start of a child process."""

    def ask(requests: Sequence[ExaminationRequest], **_: Any) -> list[ExaminationAnswer]:
        return [check(request) for request in requests]

    monkeypatch.setattr("orchestrator.experiment.examination.side_by_side.ask", ask)
    monkeypatch.setattr(
        "orchestrator.experiment.examination.examining_process.Child", contextlib.nullcontext
    )


def examine_no_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches that run in this process take the robots of the job file and of trials for good,
    which saves the processes that examine them."""
    commands.examine_nothing(monkeypatch)
    folders = [str(Path(__file__).parent), str(commands.REPOSITORY), os.environ.get("PYTHONPATH")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, folders)))

    def unexamining(*, arguments: Sequence[str], **how: Any) -> SideProcess:
        return SideProcess(arguments=["unexamining_searcher", *arguments[1:]], **how)

    monkeypatch.setattr(search_process, "SideProcess", unexamining)
