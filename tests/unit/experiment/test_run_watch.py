"""What features say of a run directory while it is written, and those that fail."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.core import feature
from orchestrator.core.errors import LedgerBusyError
from orchestrator.core.feature import Feature
from orchestrator.core.paths import RunPaths
from orchestrator.experiment.from_outside import run_watch
from orchestrator.experiment.from_outside.run_snapshot import Snapshot
from orchestrator.experiment.from_outside.run_watch import (
    LiveChart,
    LiveColumn,
    LiveSection,
    LiveSeries,
    LiveTable,
    RunWatch,
    RunWatches,
    WatchReporter,
    annotated_snapshots,
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
    monkeypatch.setattr(feature, "_problems", {})
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
    (problem,) = feature._problems.values()
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
    assert feature._problems == {}


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


def drawn(**series: Any) -> LiveSection:
    """A section with a chart of one series."""
    line = LiveSeries(name="knee", **series)
    return LiveSection(
        title="x", text="y", charts=[LiveChart(title="t", x="x", y="y", series=[line])]
    )


def with_cell(cell: Any) -> LiveSection:
    """A section with a table of one cell."""
    table = LiveTable(title="Knees", columns=[LiveColumn(name="left")], rows=[[cell]])
    return LiveSection(title="x", text="y", tables=[table])


NARROW = LiveTable(title="Knees", columns=[LiveColumn(name="left")], rows=[["bent", "straight"]])
WRONG = {
    "news": (saying(look=["new"]), "expected News; this is 'new'"),
    "no news": (saying(look=None), "'NoneType' object is not iterable"),
    "message": (
        saying(look=[News(kind="knee", message=3)]),  # type: ignore[arg-type]
        "its News has another type: message: expected text, not 3",
    ),
    "bytes": (
        saying(note=Note(text=b"bent")),  # type: ignore[arg-type]
        'its Note has another type: text: expected text, not {"not JSON": "b\'bent\'"}',
    ),
    "note": (saying(note="a line"), "expected Note; this is 'a line'"),
    "text": (
        saying(note=Note(text=None)),
        "its Note has another type: text: expected text, not null",
    ),  # type: ignore[arg-type]
    "section": (saying(section={"title": "x"}), "expected LiveSection; this is {"),
    "charts": (
        saying(section=LiveSection(title="x", text="y", charts=None)),  # type: ignore[arg-type]
        "its LiveSection has another type: charts: expected a list, not null",
    ),
    "path": (
        saying(section=LiveSection(title="x", text=Path("y"))),  # type: ignore[arg-type]
        'its LiveSection has another type: text: expected text, not {"not JSON": "PosixPath(\'y\')"}',
    ),
    "points as text": (
        saying(section=drawn(points=[("1", "2")])),
        "series: [0]: points: [0]: [0]: expected a number",
    ),
    "a point of three": (
        saying(section=drawn(points=[(1, 2, 3)])),
        "points: [0]: expected 2 values",
    ),
    "a place that is no number": (
        saying(section=drawn(points=[(float("nan"), 2.0)])),
        "points: [0]: [0]: expected a number",
    ),
    "whether as text": (
        saying(section=drawn(points=[], is_dots="no")),
        "is_dots: expected true or false",
    ),
    **{
        f"a cell that is {cell!r}": (
            saying(section=with_cell(cell)),
            "rows: [0]: [0]: expected text",
        )
        for cell in (
            np.int64(3),
            np.float32(3),
            Decimal(3),
            Fraction(3),
            b"3",
            deque(["j0"]),
            True,
            {"j0"},
        )
    },
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
    (problem,) = feature._problems.values()
    assert "the feature feature 0 says nothing more of run: TypeError: " in problem
    assert why in problem


@pytest.mark.parametrize("cell", ["bent", 3, 2.5, np.float64(2.5), None, ["j0"], ("j0", "j1")])
def test_cells_are_texts_numbers_and_lists(cell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = watches(monkeypatch, saying(section=with_cell(cell)))
    found.look()
    (section,) = found.sections()
    assert section.tables[0].rows[0][0] == (tuple(cell) if isinstance(cell, list) else cell)


def test_what_is_not_finite_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    found = watches(
        monkeypatch,
        saying(section=drawn(points=[(1, float("nan"))])),
        saying(section=with_cell(float("inf"))),
    )
    found.look()
    chart, table = found.sections()
    assert chart.charts[0].series[0].points == ((1, None),)
    assert table.tables[0].rows == ((None,),)


def test_a_feature_cannot_change_what_it_has_said(monkeypatch: pytest.MonkeyPatch) -> None:
    cells: list[Any] = ["bent"]

    class Changing(RunWatch):
        def section(self) -> LiveSection:
            if len(cells) > 1:
                raise LedgerBusyError("it is locked")
            table = LiveTable(title="Knees", columns=[LiveColumn(name="left")], rows=[cells])
            return LiveSection(title="x", text="y", tables=[table])

    found = watches(monkeypatch, Changing())
    found.look()
    found.sections()
    cells.append(object())
    found.look()
    (section,) = found.sections()
    assert section.tables[0].rows == (("bent",),)


def test_news_are_told_even_if_the_line_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    found = watches(monkeypatch, saying(look=[News(kind="knee", message="bent")], note="a line"))
    assert [news.message for news in found.look()] == ["bent"]
    assert found.look() == []


def test_one_that_cannot_be_read_is_asked_nothing_until_the_next_look(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = watches(monkeypatch, Counter(raises_at=2, error=FileNotFoundError("no knees.json")))
    found.look()
    found.sections()
    assert not found.is_put_off
    found.look()
    assert found.is_put_off
    assert [section.text for section in found.sections()] == ["1"]
    assert "no knees.json" not in capsys.readouterr().err
    found.look()
    assert not found.is_put_off
    assert [section.text for section in found.sections()] == ["3"]


def test_who_traces_features_sees_why_one_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ORCHESTRATOR_TRACE_FEATURES", "1")
    found = watches(monkeypatch, Counter(raises_at=1, error=FileNotFoundError("no knees.json")))
    found.look()
    assert "FileNotFoundError: no knees.json" in capsys.readouterr().err


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
    (problem,) = feature._problems.values()
    assert "the feature broken says nothing more of run: ValueError: asked 1 times" in problem


def test_nothing_is_read_while_the_supervisor_runs_on_another_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch = Counter()
    watches(monkeypatch, watch)
    elsewhere = Snapshot(paths=RunPaths(Path("run")), rows=[], holder=None, written=1.0)
    here = replace(elsewhere, written=None)
    shown = list(annotated_snapshots(iter([elsewhere, here])))
    assert [len(snapshot.notes) for snapshot in shown] == [0, 1]
    assert [len(snapshot.news) for snapshot in shown] == [0, 1]
    assert watch.looks == 1
