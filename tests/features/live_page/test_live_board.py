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
from supervisor_helpers import make_job

from orchestrator.analysis import run_reader
from orchestrator.analysis.curve_reader import CurveReader
from orchestrator.core.job import Cancelled, Paused, Succeeded
from orchestrator.core.paths import RunPaths
from orchestrator.experiment import run_directory, run_index
from orchestrator.experiment.run_follower import RunFollower
from orchestrator.experiment.run_index import RunEntry
from orchestrator.experiment.worker_logs import LogReader
from orchestrator.features.live_page import folder_source, job_details
from orchestrator.features.live_page.board import Board, Changes
from orchestrator.features.live_page.feed import Feed, Source
from orchestrator.features.live_page.folder_source import (
    SEARCH_EVERY_S,
    SEARCH_LATEST_S,
    SEARCH_SHARE,
    FolderSource,
    key_of,
)
from orchestrator.ledger import Ledger
from orchestrator.ledger.row_reader import RowReader


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
    monkeypatch.setattr("orchestrator.features.live_page.feed.LOOK_EVERY_S", 0.0)
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


def test_after_an_unexpected_error_another_source_reads_everything_anew(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("orchestrator.features.live_page.feed.LOOK_EVERY_S", 0.0)
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
        feed = Feed(lambda: Breaks(is_whole=len(made) == 2))
        for _ in range(2):
            seen = [message async for message in feed.messages() if message.startswith("data")]
            assert [json.loads(message[6:])["grow"]["points"] for message in seen] == [[1]]
            assert "ZeroDivisionError" in feed.problem
        points: list[int] = []
        async with contextlib.aclosing(feed.messages()) as messages:
            async for message in messages:
                if message.startswith("data"):
                    points += json.loads(message[6:])["grow"]["points"]
                if len(points) >= 3:
                    break
        return points

    assert asyncio.run(look()) == [1, 2, 3]
    assert len(made) == 3
    assert capsys.readouterr().err.count("Traceback") == 1, "the same error is told once"


def curve_file(folder: Path, *rows: tuple[int, float]) -> Path:
    path = folder / "progress.csv"
    lines = [
        "time/total_timesteps,rollout/ep_rew_mean",
        *(f"{steps},{value}" for steps, value in rows),
    ]
    path.with_suffix(".new").write_text("\n".join(lines) + "\n")
    return path.with_suffix(".new").rename(path)


def test_a_curve_is_read_on_from_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "progress.csv"
    reader = CurveReader(path, total=12_000)
    assert reader.read() == ([], False)
    curve_file(tmp_path, (100, 1.0), (150, 1.5))
    assert reader.read() == ([(100.0, 1.0)], False), "thinned to a point every 100 env_steps"
    with path.open("a") as file:
        file.write("200,2.0\n300,3")
        file.flush()
        assert reader.read() == ([(200.0, 2.0)], False), "a line is taken in when it is whole"
        file.write(".5\n")
    assert reader.read() == ([(300.0, 3.5)], False)
    assert not reader.is_due(350)
    assert reader.is_due(400)
    assert reader.is_due(100), "training has gone back"


def test_a_curve_that_was_cut_back_starts_over(tmp_path: Path) -> None:
    path = curve_file(tmp_path, (100, 1.0), (200, 2.0), (300, 3.0))
    reader = CurveReader(path, total=12_000)
    reader.read()
    curve_file(tmp_path, (100, 1.0), (200, 2.0), (300, 3.0), (400, 4.0))
    assert reader.read() == ([(400.0, 4.0)], False), "rewritten with a column more"
    curve_file(tmp_path, (100, 1.0), (200, 9.0))
    assert reader.read() == ([(100.0, 1.0), (200.0, 9.0)], True)


def test_rows_that_are_read_again_are_those_of_the_summary(tmp_path: Path) -> None:
    paths = make_run_dir(
        tmp_path / "run", [Trained(name=f"r{number}", state="PENDING") for number in range(4)]
    )
    ledger, reader = Ledger.open(paths.ledger), RowReader()
    try:
        reader.update(ledger)
        before = dict(reader.rows)
        assert list(before.values()) == ledger.summary()
        ledger.set_progress([("j1-s0", 300, 2.0, 5.0, "fast")])
        ledger.set_state("j2-s0", Paused())
        reader.update(ledger)
        assert list(reader.rows.values()) == ledger.summary()
        assert [job_id for job_id, row in reader.rows.items() if row is not before[job_id]] == [
            "j1-s0",
            "j2-s0",
        ]
        ledger.delete_job("j0-s0")
        ledger.put_jobs([(9, make_job("new-s0"), None)])
        ledger.set_state("j3-s0", Cancelled())
        reader.update(ledger)
        assert list(reader.rows.values()) == ledger.summary()
    finally:
        ledger.abandon()


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


def test_a_follower_reads_only_what_has_changed(tmp_path: Path) -> None:
    paths = make_run_dir(
        tmp_path / "run", [Trained(state="RUNNING"), Trained(name="other", state="PENDING")]
    )
    follower = RunFollower(paths.root)
    first = follower.look()
    assert first is not None
    assert first.snapshot is not None
    assert (first.condition, [row["state"] for row in first.snapshot.rows]) == (
        "killed",
        ["PENDING", "PENDING"],
    )
    assert follower.look() is None
    with run_directory.opened_ledger(paths) as ledger:
        ledger.set_state("j1-s0", Succeeded())
        ledger.commit()
    second = follower.look()
    assert second is not None
    assert second.snapshot is not None
    assert [row["state"] for row in second.snapshot.rows] == ["PENDING", "SUCCEEDED"]
    assert second.snapshot.rows[0] is first.snapshot.rows[0]


def test_a_follower_of_a_ledger_that_is_replaced_reads_the_new_one(tmp_path: Path) -> None:
    first = make_run_dir(tmp_path / "run", [Trained(), Trained(name="other")])
    follower = RunFollower(first.root)
    follower.look()
    make_run_dir(tmp_path / "another", [Trained(seed=7)])
    RunPaths(tmp_path / "another").ledger.replace(first.ledger)
    seen = follower.look()
    assert seen is not None
    assert seen.snapshot is not None
    assert [row["job_id"] for row in seen.snapshot.rows] == ["j0-s7"]


def test_a_new_ledger_with_the_inode_number_of_a_removed_one_is_another_one(tmp_path: Path) -> None:
    first = make_run_dir(tmp_path / "run", [Trained(state="FAILED", message="the knee fell off")])
    follower = RunFollower(first.root)
    follower.look()
    before = follower.generation
    with run_directory.opened_ledger(first) as ledger:
        ledger.set_state("j0-s0", Paused())
        ledger.commit()
    follower.look()
    assert follower.generation == before
    other = make_run_dir(
        tmp_path / "another", [Trained(state="FAILED", message="the hip fell off")]
    )
    with run_directory.opened_ledger(other) as ledger:
        ledger.change("UPDATE attempts SET queue_s = queue_s + 0.001")
        ledger.commit()
    first.ledger.write_bytes(other.ledger.read_bytes())
    follower.look()
    assert follower.generation == before + 1


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
    takes_s = 2 * SEARCH_EVERY_S * SEARCH_SHARE
    clock, searches = SimpleNamespace(now=1000.0), []
    below = run_index.below

    def slow_below(folder: Path) -> Iterator[RunEntry]:
        searches.append(clock.now)
        clock.now += takes_s
        yield from below(folder)

    monkeypatch.setattr(run_index, "below", slow_below)
    monkeypatch.setattr(folder_source, "time", SimpleNamespace(monotonic=lambda: clock.now))
    first = make_run_dir(tmp_path / "one", [Trained()]).root
    source = FolderSource(tmp_path)
    assert source.find(key_of(str(first))) is not None
    later = make_run_dir(tmp_path / "two", [Trained()]).root
    for _ in range(19):
        clock.now += SEARCH_EVERY_S / 10
        assert source.find("unknown") is None
        source.read()
    assert len(searches) == 1
    clock.now += SEARCH_EVERY_S / 10
    takes_s = 5.0
    assert source.find(key_of(str(later))) is not None
    assert len(searches) == 2
    last = make_run_dir(tmp_path / "three", [Trained()]).root
    clock.now += SEARCH_LATEST_S
    assert source.find(key_of(str(last))) is not None, (
        "a search that takes long is repeated all the same"
    )


def test_a_log_that_is_left_half_read_continues_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.experiment.worker_logs.CHUNK", 4)
    path = tmp_path / "worker.log"
    path.write_text("0123456789")
    reader = LogReader(path, 0)
    assert next(reader.new_text()) == "0123"
    assert list(reader.new_text()) == ["4567", "89"]
    assert list(reader.new_text()) == []
