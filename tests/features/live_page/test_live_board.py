"""The pieces that the live page is made of: versions, growing curves, and rows that are read
again."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from report_helpers import Trained, make_run_dir

from orchestrator.analysis import run_reader
from orchestrator.core import pacer
from orchestrator.experiment.directory import run_directory, run_index
from orchestrator.experiment.directory.run_index import RunEntry
from orchestrator.experiment.from_outside.run_follower import RunFollower
from orchestrator.features.live_page import feed, job_details
from orchestrator.features.live_page.board import Board, Changes
from orchestrator.features.live_page.feed import Feed, Source
from orchestrator.features.live_page.folder_source import (
    SEARCH,
    FolderSource,
    key_of,
)


def changes(
    *drop: str, restart: tuple[str, ...] = (), grow: dict[str, list[int]] | None = None, **put: int
) -> Changes:
    made = Changes(drop=list(drop), grow=grow or {}, restart=set(restart))
    for name, value in put.items():
        made.set(name, value)
    return made


def test_a_viewer_gets_what_is_newer_than_what_it_has() -> None:
    board = Board()
    assert board.apply(changes(a=1, b=1, grow={"c": [1, 2]}))
    assert json.loads(board.since(0)) == {
        "version": 1,
        "put": {"a": 1, "b": 1},
        "grow": {"c": [1, 2]},
        "restart": ["c"],
    }
    assert not board.apply(changes(a=1)), "the same is no news"
    assert not board.apply(changes(grow={"c": []})), "nor is nothing"
    assert board.since(1) == ""
    assert board.apply(changes(a=2))
    assert board.apply(changes("b", grow={"c": [3]}))
    assert json.loads(board.since(1)) == {
        "version": 3,
        "put": {"a": 2},
        "grow": {"c": [3]},
        "drop": ["b"],
    }
    assert json.loads(board.since(2)) == {
        "version": 3,
        "put": {},
        "grow": {"c": [3]},
        "drop": ["b"],
    }
    board.apply(changes(restart=("c",), grow={"c": [9]}))
    assert json.loads(board.since(3)) == {
        "version": 4,
        "put": {},
        "grow": {"c": [9]},
        "restart": ["c"],
    }
    assert json.loads(board.since(0))["grow"] == {"c": [9]}


def test_when_a_source_is_over_a_viewer_gets_everything_from_another_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feed, "READING", dataclasses.replace(feed.READING, every_s=0.0))
    made: list[Iterator[Changes]] = []

    def source() -> Source:
        told = (
            [changes(a=1, b=1, grow={"c": [1]}), Changes(is_over=True)],
            [changes(a=1, grow={"c": [2]})],
        )
        made.append(iter(told[len(made)]))
        return SimpleNamespace(read=lambda: next(made[-1], Changes()))

    async def look() -> list[str]:
        seen = []
        async with contextlib.aclosing(Feed(source).messages()) as messages:
            async for message in messages:
                seen.append(message)
                if len(seen) == 4:
                    break
        return seen

    clock, first, again, second = asyncio.run(look())
    assert clock.startswith("event: clock")
    assert json.loads(first[6:]) == {
        "version": 1,
        "put": {"a": 1, "b": 1},
        "grow": {"c": [1]},
        "restart": ["c"],
    }
    assert again.startswith("event: clock")
    assert json.loads(second[6:]) == {
        "version": 1,
        "put": {"a": 1},
        "grow": {"c": [2]},
        "restart": ["c"],
    }


def test_who_looks_after_a_while_is_told_of_when_the_first_state_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feed, "READING", dataclasses.replace(feed.READING, every_s=0.0))
    told = iter([changes(a=1)])
    source = SimpleNamespace(read=lambda: next(told, Changes()))

    async def look(looked_at: Feed, last: str) -> list[str]:
        seen: list[str] = []
        async with contextlib.aclosing(looked_at.messages()) as messages:
            async for message in messages:
                seen.append(message.partition(":")[2].split()[0])
                if seen[-1].startswith(last):
                    break
        return seen

    async def look_twice() -> tuple[list[str], list[str]]:
        looked_at = Feed(lambda: source)
        first = await look(looked_at, "{")
        while looked_at._reading is not None and not looked_at._reading.done():
            await asyncio.sleep(0.01)
        return first, await look(looked_at, "current")

    first, second = asyncio.run(look_twice())
    assert [one[:1] for one in first] == ["c", "{"], "clock, and what there is"
    assert second[:2] == ["clock", "stale"]
    assert second[-1] == "current"


def test_after_an_unexpected_error_another_source_reads_everything_anew(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(feed, "READING", dataclasses.replace(feed.READING, every_s=0.0))
    made: list[Source] = []

    class Breaks:
        """The points of its second reading are lost."""

        def __init__(self, *, is_whole: bool) -> None:
            self._readings, self._is_whole = 0, is_whole
            made.append(self)

        def read(self) -> Changes:
            self._readings += 1
            if self._readings == 2 and not self._is_whole:
                raise ZeroDivisionError
            return changes(grow={"points": [self._readings]})

    async def look() -> list[int]:
        broken = Feed(lambda: Breaks(is_whole=len(made) == 2))
        for _ in range(2):
            seen = [message async for message in broken.messages() if message.startswith("data")]
            assert [json.loads(message[6:])["grow"]["points"] for message in seen] == [[1]]
            assert "ZeroDivisionError" in broken.problem
        points: list[int] = []
        async with contextlib.aclosing(broken.messages()) as messages:
            async for message in messages:
                if message.startswith("data"):
                    points += json.loads(message[6:])["grow"]["points"]
                if len(points) >= 3:
                    break
        return points

    assert asyncio.run(look()) == [1, 2, 3]
    assert len(made) == 3
    assert capsys.readouterr().err.count("Traceback") == 1, "the same error is told once"


def test_files_of_an_open_job_are_read_again_when_they_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = make_run_dir(tmp_path / "run", [Trained(attempts=3), Trained(name="other", attempts=2)])
    readings: list[str] = []
    read_regular = run_reader.read_regular
    monkeypatch.setattr(
        run_reader, "read_regular", lambda path: readings.append(path.name) or read_regular(path)
    )
    first = job_details.details(paths.root, "j0-s0")
    assert first is not None
    with run_directory.opened_ledger(paths) as ledger:
        numbers = [one["number"] + 1 for one in ledger.attempts() if one["job_id"] == "j0-s0"]
    assert [one["number"] for one in first["ended"]] == numbers == [1, 2, 3]
    assert job_details.details(paths.root, "j0-s0") == first
    assert sorted(readings) == ["progress.csv", "timings.csv"]
    with paths.job("j0-s0").progress_csv.open("a") as file:
        file.write("6,99999,1.5,0.1,0.1\n")
    again = job_details.details(paths.root, "j0-s0")
    assert again is not None
    assert again["curve"][-1] == (99999, 1.5)
    assert sorted(readings) == ["progress.csv", "progress.csv", "timings.csv"]


def test_an_attempt_that_a_cluster_places_later_leaves_the_page_as_it_is(tmp_path: Path) -> None:
    paths = make_run_dir(tmp_path / "run", [Trained(state="RUNNING")])
    follower = RunFollower(paths.root)
    follower.look()
    before = follower.generation
    with run_directory.opened_ledger(paths) as ledger:
        attempt = ledger.last_attempt("j0-s0")
        ledger.place_attempt(
            dataclasses.replace(attempt, node="far", started_at=attempt.started_at + 60)
        )
        ledger.set_progress([("j0-s0", 64, None, None, None)])
        ledger.commit()
    assert follower.look() is not None
    assert follower.generation == before


def test_unknown_addresses_make_it_search_no_sooner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    takes_s = 2 * SEARCH.every_s * SEARCH.share
    clock, searches = SimpleNamespace(now=1000.0), []
    below = run_index.below

    def slow_below(folder: Path) -> Iterator[RunEntry]:
        searches.append(clock.now)
        clock.now += takes_s
        yield from below(folder)

    monkeypatch.setattr(run_index, "below", slow_below)
    monkeypatch.setattr(pacer, "time", SimpleNamespace(monotonic=lambda: clock.now))
    first = make_run_dir(tmp_path / "one", [Trained()]).root
    source = FolderSource(tmp_path)
    assert source.run_dir(key_of(str(first))) is not None
    later = make_run_dir(tmp_path / "two", [Trained()]).root
    for _ in range(19):
        clock.now += SEARCH.every_s / 10
        assert source.run_dir("unknown") is None
        source.read()
    assert len(searches) == 1
    clock.now += SEARCH.every_s / 10
    takes_s = 5.0
    assert source.run_dir(key_of(str(later))) is not None
    assert len(searches) == 2
    last = make_run_dir(tmp_path / "three", [Trained()]).root
    clock.now += SEARCH.longest_s
    assert source.run_dir(key_of(str(last))) is not None, (
        "a search that takes long is repeated all the same"
    )
