"""The process of a search as a supervisor has it beside itself."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from supervisor_helpers import RecordingReporter

from orchestrator.core.paths import RunPaths
from orchestrator.features.search import changed_search
from orchestrator.features.search.search_process import SearchBesideRun


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
