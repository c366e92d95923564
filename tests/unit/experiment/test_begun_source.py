"""What features say of a run directory whose jobs they make; and those that cannot say it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from begun_helpers import Begun, answering
from supervisor_helpers import make_job

from orchestrator.core import feature
from orchestrator.core.errors import LedgerBusyError, LedgerError
from orchestrator.core.job import Succeeded
from orchestrator.core.paths import RunPaths
from orchestrator.experiment import begun_source
from orchestrator.experiment.begun_source import BegunSource
from orchestrator.experiment.directory import run_index
from orchestrator.experiment.directory.run_index import RunEntry
from orchestrator.experiment.from_outside import run_snapshot
from orchestrator.ledger import Ledger
from orchestrator.ledger.rows import DeclaredJob


class ShowsNumbers(Begun):
    def shown_jobs(self) -> Any:
        return [1]


class SaysNothing(BegunSource):
    """It has none of the methods."""


class CannotJudge(Begun):
    def has_succeeded(self) -> bool:
        raise ValueError("the knee fell off")


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    """A run directory whose one job has succeeded."""
    paths = RunPaths(tmp_path)
    paths.experiment.write_text('name = "drawn"\n')
    (paths.root / "supervisor.lock").touch()
    ledger = Ledger.create(paths.ledger)
    ledger.put_jobs([DeclaredJob(position=0, job=make_job("a"))])
    ledger.set_state("a", Succeeded())
    ledger.commit()
    ledger.close()
    return paths


@pytest.fixture
def ledger(paths: RunPaths) -> Iterator[Ledger]:
    ledger = Ledger.open(paths.ledger)
    yield ledger
    ledger.close()


def test_a_feature_says_whether_jobs_may_come(
    paths: RunPaths, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = {}
    for answer in (None, Begun(), Begun(is_underway=False)):
        answering(monkeypatch, answer)
        standing = begun_source.standing_of(paths, ledger)
        codes[standing] = run_snapshot.exit_code_of(run_snapshot.status(paths.root))
    assert codes == {"none": 0, "underway": 130, "over": 1}


BROKEN: list[Any] = [
    ValueError("the knee fell off"),
    LedgerError("it is damaged"),
    "underway",
    SaysNothing(),
    CannotJudge(is_underway=False),
]


@pytest.mark.parametrize("answer", BROKEN)
def test_a_feature_that_cannot_say_it_breaks_no_command_that_only_looks(
    answer: Any, paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, answer)
    snapshot = run_snapshot.status(paths.root)
    assert [row["state"] for row in snapshot.rows] == ["SUCCEEDED"]
    assert run_snapshot.exit_code_of(snapshot) == 0
    entry = RunEntry(run_dir=str(paths.root), name="drawn", host="", noted_at=0.0)
    assert run_index.listed_run(entry).state == "finished"
    (problem,) = feature._problems.values()
    assert f"the feature draw says nothing of {paths.root}" in problem


def test_what_is_locked_is_read_again(
    paths: RunPaths, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, LedgerBusyError("it is locked"))
    with pytest.raises(LedgerBusyError, match="it is locked"):
        begun_source.standing_of(paths, ledger)


def test_what_goes_on_with_it_is_refused_where_it_cannot_be_read(
    paths: RunPaths, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, LedgerError("it is damaged"))
    with pytest.raises(LedgerError, match="it is damaged"):
        begun_source.begun_source(paths, ledger)
    answering(monkeypatch, ValueError("the knee fell off"))
    assert begun_source.begun_source(paths, ledger) is None


def test_jobs_that_are_shown_are_ids(
    paths: RunPaths, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, ShowsNumbers())
    assert begun_source.shown_jobs(paths, ledger) is None
    (problem,) = feature._problems.values()
    assert "shown_jobs: expected ids of jobs" in problem
