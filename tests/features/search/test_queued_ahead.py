"""How many jobs of a search wait while others train."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path

import command_helpers as commands
import pytest
from searcher_helpers import make_turns, searcher_of
from supervisor_helpers import ledgers_closed  # noqa: F401 - a fixture
from trial_helpers import Told, search_run

from orchestrator.features.search.queued_ahead import queued_ahead, queued_late
from orchestrator.features.search.search_events import SearchEvent


@pytest.mark.parametrize(
    ("sampler", "jobs_at_once", "waiting"),
    [
        ("tpe", 1, 1),
        ("tpe", 8, 4),
        ("tpe", 1000, 250),
        ("random", 16, 16),
        (None, 16, 16),
    ],
)
def test_a_sampler_that_learns_is_asked_late(
    sampler: str | None, jobs_at_once: int, waiting: int
) -> None:
    assert queued_ahead(sampler, jobs_at_once) == waiting


def test_a_further_seed_is_decided_late_whatever_the_sampler_is() -> None:
    assert [queued_late(running) for running in (0, 2, 16, 1000)] == [1, 2, 4, 250]


@pytest.mark.usefixtures("ledgers_closed")
def test_a_search_queues_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands.examine_nothing(monkeypatch)
    paths = search_run(
        tmp_path / "run", [Told(values=[1.0])], is_over=False, sampler="tpe", trials=100
    )
    searcher = searcher_of(paths, jobs_at_once=8)
    searcher._record([SearchEvent(kind="began", content={"lanes": 8})])
    with contextlib.closing(searcher._examiner):
        make_turns(searcher)
    states = Counter(row.state.name for row in searcher.ledger.jobs())
    assert states["PENDING"] == queued_ahead("tpe", 8)
