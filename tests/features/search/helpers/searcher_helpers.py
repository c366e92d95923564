"""The process of a search as a supervisor has it beside itself, and examinations without a process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from supervisor_helpers import RecordingReporter

from orchestrator.core.messages import ExaminationAnswer, ExaminationRequest
from orchestrator.core.paths import RunPaths
from orchestrator.features.search import changed_search
from orchestrator.features.search.search_process import SearchBesideRun
from orchestrator.worker.robots.preflight_child import check


@contextlib.contextmanager
def beginning(paths: RunPaths, lanes: int) -> Iterator[SearchBesideRun]:
    """Jobs are about to be launched; the searcher is started when it is looked after, and ends with
    the block."""
    slots: Any = SimpleNamespace(lanes=lanes)
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
