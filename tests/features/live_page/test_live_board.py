"""The pieces that the live page is made of: versions, growing curves, and rows that are read
again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from report_helpers import Trained, make_run_dir

from orchestrator.analysis import run_reader
from orchestrator.experiment import run_directory
from orchestrator.features.live_page import job_details
from orchestrator.features.live_page.board import Board, Changes


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
