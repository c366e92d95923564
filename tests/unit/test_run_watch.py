"""What features say of a run directory while it is written, and those that fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.core import feature
from orchestrator.core.errors import LedgerBusyError
from orchestrator.core.feature import Feature
from orchestrator.core.paths import RunPaths
from orchestrator.experiment import run_watch
from orchestrator.experiment.control import Snapshot
from orchestrator.experiment.run_watch import (
    LiveColumn,
    LiveSection,
    LiveTable,
    RunWatch,
    RunWatches,
    WatchReporter,
    annotated,
)
from orchestrator.supervisor.events import News, Note, SilentReporter


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


@pytest.fixture(autouse=True)
def no_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature, "_problems", [])
    monkeypatch.setattr(feature, "_told", set())


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


def test_one_that_raises_says_nothing_more_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = watches(monkeypatch, Counter(raises_at=2), Counter())
    assert len(found.look()) == 2
    assert len(found.look()) == 1
    assert texts(found) == ["2 looks"]
    assert len(found.sections()) == 1
    (problem,) = feature._problems
    assert "feature 0 says nothing more of run: ValueError: the knee fell off" in problem
    assert len(found.look()) == 1


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
    assert feature._problems == []


def test_one_that_exits_says_nothing_more_and_a_run_warns_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = watches(monkeypatch, Counter(raises_at=1, error=SystemExit("enough")), Counter())
    monkeypatch.setattr(run_watch, "RunWatches", lambda _: found)
    told: list[tuple[str, str]] = []

    class Reporter(SilentReporter):
        def event(self, kind: str, message: str, **facts: object) -> None:
            told.append((kind, message))

    reporter = WatchReporter(Reporter(), found.paths)
    for _ in range(2):
        (note,) = reporter.look()
    assert note.text == "2 looks"
    (warning,) = [message for kind, message in told if kind == "warning"]
    assert "feature 0 says nothing more of run: SystemExit: enough" in warning


def saying(**said: object) -> RunWatch:
    """A watch whose methods of these names return these."""
    methods = {name: lambda _, value=value: value for name, value in said.items()}
    return type("Saying", (RunWatch,), methods)()


NARROW = LiveTable(title="Knees", columns=[LiveColumn(name="left")], rows=[["bent", "straight"]])
WRONG = {
    "news": (saying(look=["new"]), "expected News; this is 'new'"),
    "no news": (saying(look=None), "'NoneType' object is not iterable"),
    "message": (saying(look=[News(kind="knee", message=3)]), "message of its News is 3"),  # type: ignore[arg-type]
    "note": (saying(note="a line"), "expected Note; this is 'a line'"),
    "text": (saying(note=Note(text=None)), "text of its Note is None"),  # type: ignore[arg-type]
    "section": (saying(section={"title": "x"}), "expected LiveSection; this is {"),
    "charts": (
        saying(section=LiveSection(title="x", text="y", charts=None)),  # type: ignore[arg-type]
        "charts of its LiveSection is None",
    ),
    "path": (
        saying(section=LiveSection(title="x", text=Path("y"))),  # type: ignore[arg-type]
        "text of its LiveSection is PosixPath('y')",
    ),
    "row": (
        saying(section=LiveSection(title="x", text="y", tables=[NARROW])),
        "a row of the table 'Knees' has 2 cells, and the table 1 columns",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_no_content_is_left_out_and_the_others_stand(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong, why = WRONG[what]
    found = watches(monkeypatch, wrong, Counter())
    for looks in ("1", "2"):
        assert [news.message for news in found.look()] == [looks]
        assert texts(found) == [f"{looks} looks"]
        assert [section.title for section in found.sections()] == ["Looks"]
    (problem,) = feature._problems
    assert "the feature feature 0 says nothing more of run: TypeError: " in problem
    assert why in problem


def test_a_feature_whose_watch_cannot_be_made_is_asked_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[RunPaths] = []

    def watch(paths: RunPaths) -> RunWatch:
        asked.append(paths)
        raise ValueError(f"asked {len(asked)} times")

    broken = Feature(name="broken", about="x.", watch=watch)
    monkeypatch.setattr(run_watch, "features", lambda: (broken,))
    found = RunWatches(RunPaths(Path("run")))
    assert [found.look() for _ in range(3)] == [[], [], []]
    (problem,) = feature._problems
    assert "the feature broken says nothing more of run: ValueError: asked 1 times" in problem


def test_nothing_is_read_while_the_supervisor_runs_on_another_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch = Counter()
    watches(monkeypatch, watch)
    elsewhere = Snapshot(paths=RunPaths(Path("run")), rows=[], holder=None, written=1.0)
    here = replace(elsewhere, written=None)
    shown = list(annotated(iter([elsewhere, here])))
    assert [len(snapshot.notes) for snapshot in shown] == [0, 1]
    assert [len(snapshot.news) for snapshot in shown] == [0, 1]
    assert watch.looks == 1
