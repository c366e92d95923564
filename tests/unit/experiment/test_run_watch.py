"""What features say of a run directory while it is written, and those that fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.client import run_watch
from orchestrator.client.events import News, Note
from orchestrator.client.run_snapshot import Snapshot
from orchestrator.client.run_watch import (
    LiveSection,
    RunWatch,
    RunWatches,
    with_notes,
)
from orchestrator.core.errors import LedgerBusyError
from orchestrator.core.feature import Feature
from orchestrator.core.paths import RunPaths


class Counter(RunWatch):
    """Counts its looks; one of them may raise."""

    def __init__(self, raises_at: int = 0, error: BaseException | None = None) -> None:
        self.looks = 0
        self._raises_at = raises_at
        self._error = error or ValueError("the knee fell off")

    def look(self) -> Sequence[News]:
        self.looks += 1
        if self.looks == self._raises_at:
            raise self._error
        return [News(kind="counted", message=str(self.looks))]

    def note(self) -> Note:
        return Note(text=f"{self.looks} looks")

    def section(self) -> LiveSection:
        return LiveSection(title="Looks", text=str(self.looks))


def watches(monkeypatch: pytest.MonkeyPatch, *given: RunWatch | None) -> RunWatches:
    features = tuple(
        Feature(name=f"feature {place}", about="x.", watch=lambda _, watch=watch: watch)
        for place, watch in enumerate(given)
    )
    monkeypatch.setattr(run_watch, "features", lambda: features)
    return RunWatches(RunPaths(Path("run")))


def texts(found: RunWatches) -> list[str]:
    return [note.text for note in found.notes]


def test_each_feature_says_a_line_and_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    found = watches(monkeypatch, Counter(), RunWatch(), Counter())
    assert [news.message for news in found.look()] == ["1", "1"]
    assert texts(found) == ["1 looks", "1 looks"]
    assert [section.text for section in found.sections()] == ["1", "1"]
    assert [news.message for news in found.look()] == ["2", "2"]


def test_a_feature_that_has_nothing_to_say_is_asked_again_until_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[RunWatch | None] = [None, None, Counter()]
    late = Feature(name="late", about="x.", watch=lambda _: given.pop(0))
    monkeypatch.setattr(run_watch, "features", lambda: (late,))
    found = RunWatches(RunPaths(Path("run")))
    assert [len(found.look()) for _ in range(2)] == [0, 0]
    assert found.notes == []
    assert [[news.message for news in found.look()] for _ in range(2)] == [["1"], ["2"]]
    assert given == []


@pytest.mark.parametrize(
    "error", [LedgerBusyError("it is locked"), FileNotFoundError("it is being replaced")]
)
def test_what_was_said_stands_while_a_run_directory_cannot_be_read(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = watches(monkeypatch, Counter(raises_at=2, error=error))
    found.look()
    assert found.look() == []
    assert texts(found) == ["1 looks"]
    assert [news.message for news in found.look()] == ["3"]


def test_news_are_told_even_if_the_line_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    class WithoutLine(Counter):
        def note(self) -> Note:
            raise FileNotFoundError("no knees.json")

    found = watches(monkeypatch, WithoutLine())
    assert [news.message for news in found.look()] == ["1"]


def test_nothing_is_read_while_the_supervisor_runs_on_another_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch = Counter()
    watches(monkeypatch, watch)
    elsewhere = Snapshot(paths=RunPaths(Path("run")), rows=[], holder=None, written=1.0)
    here = replace(elsewhere, written=None)
    assert [len(with_notes(snapshot).notes) for snapshot in (elsewhere, here)] == [0, 1]
    assert watch.looks == 1
