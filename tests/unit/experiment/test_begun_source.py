"""What features say of a run directory whose jobs they make; and those that cannot say it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from begun_helpers import Begun, answering
from supervisor_helpers import make_job

from orchestrator.client import run_snapshot
from orchestrator.core.errors import LedgerBusyError
from orchestrator.core.job import Succeeded
from orchestrator.core.paths import RunPaths
from orchestrator.experiment import begun_source
from orchestrator.ledger import Ledger
from orchestrator.ledger.rows import DeclaredJob


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


def test_what_is_locked_is_read_again(
    paths: RunPaths, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, LedgerBusyError("it is locked"))
    with pytest.raises(LedgerBusyError):
        begun_source.standing_of(paths, ledger)
