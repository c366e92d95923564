"""Processes of features beside a run: when they are started, restarted and told that it ends."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command_helpers import wait_until

from orchestrator.core.feature import Feature
from orchestrator.core.paths import RunPaths
from orchestrator.server import companions
from orchestrator.server.companions import (
    ALL_ENDED,
    CANNOT_GO_ON,
    DONE,
    WAITS_FOR_USER,
    Companion,
    Companions,
    Kind,
)

PROGRAM = f"""
import pathlib, sys
run_dir, code, *_ = sys.argv[1:]
with (pathlib.Path(run_dir) / "starts").open("a") as starts:
    starts.write("x")
if code == "patient":
    line = sys.stdin.buffer.readline()
    sys.exit({DONE} if line == {ALL_ENDED!r} else 1)
print("search: it has no idea")
sys.exit(int(code))
"""
"""A companion that ends at once with a code, or when it is told that all jobs have ended."""


@pytest.fixture(autouse=True)
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stand_in.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)


@contextlib.contextmanager
def beside(
    folder: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind, what: str, **how: Any
) -> Iterator[tuple[Companions, list[str]]]:
    """A run with one companion, and the warnings about it."""
    companion = Companion(
        name="search", kind=kind, module="stand_in", arguments=[what], log=folder / "log", **how
    )
    made = Feature(name="it", about="x.")
    monkeypatch.setattr(companions, "answers", lambda *_: [(made, [companion])])
    warnings: list[str] = []
    found = Companions(
        paths=RunPaths(folder),
        report=lambda _, message: warnings.append(message),
        jobs_at_once=lambda: 1,
    )
    facts: Any = None
    found.begin(facts)
    with contextlib.closing(found):
        yield found, warnings


def starts(folder: Path) -> int:
    path = folder / "starts"
    return len(path.read_text()) if path.exists() else 0


def look_until(
    found: Companions, condition: Callable[[], object], what: str, *, is_idle: bool = True
) -> None:
    def holds() -> object:
        found.tick(has_work=False, is_idle=is_idle)
        return condition()

    wait_until(holds, what)


def test_one_that_fails_is_started_again_after_longer_pauses_and_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delays: list[int] = []

    def no_delay(failures: int) -> float:
        delays.append(failures)
        return 0.0

    monkeypatch.setattr(companions, "backoff_s", no_delay)
    stopped = tmp_path / "stopped"
    with beside(tmp_path, monkeypatch, "makes jobs", "1", stopped_file=stopped) as (
        found,
        warnings,
    ):
        assert found.holds_run
        look_until(found, lambda: found.problem, "it is given up")
        assert not found.holds_run
    assert starts(tmp_path) == companions.MOST_STARTS
    assert delays == list(range(1, companions.MOST_STARTS - 1)), "the first time it does not wait"
    assert len(warnings) == companions.MOST_STARTS
    assert stopped.read_text() == "it has no idea"


def test_one_that_cannot_go_on_is_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with beside(tmp_path, monkeypatch, "makes jobs", str(CANNOT_GO_ON)) as (found, _):
        look_until(found, lambda: found.problem, "it has stopped")
    assert found.problem == "the search has stopped: it has no idea"
    assert starts(tmp_path) == 1


def test_one_that_waits_for_the_user_goes_on_when_jobs_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with beside(tmp_path, monkeypatch, "makes jobs", str(WAITS_FOR_USER)) as (found, _):
        look_until(found, lambda: not found.are_adding, "it waits")
        assert not found.holds_run
        found.tick(has_work=True, is_idle=False)
        assert found.holds_run
        look_until(found, lambda: starts(tmp_path) == 2, "it is started again")


def test_one_that_begins_at_the_end_is_started_when_nothing_else_holds_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with beside(tmp_path, monkeypatch, "at end", str(DONE)) as (found, warnings):
        found.tick(has_work=True, is_idle=False)
        assert starts(tmp_path) == 0
        assert found.holds_run
        look_until(found, lambda: not found.holds_run, "it has ended")
        assert starts(tmp_path) == 1
        found.tick(has_work=True, is_idle=False)  # a job was retried
        assert found.holds_run
        look_until(found, lambda: not found.holds_run, "it has ended again")
        assert starts(tmp_path) == 2
    assert warnings == []


@pytest.mark.parametrize("kind", ["beside", "after"])
def test_the_end_waits_for_one_that_is_told_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    with beside(tmp_path, monkeypatch, kind, "patient", patience_s=60.0) as (found, warnings):
        look_until(found, lambda: starts(tmp_path), "it runs", is_idle=False)
        assert found.holds_run is (kind == "beside")
        look_until(found, lambda: not found.holds_run, "the run ends")
        found.close()
        found.finish(lambda: False)
    assert (starts(tmp_path), warnings) == (1, [])
