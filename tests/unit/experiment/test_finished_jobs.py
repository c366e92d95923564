"""What is over is not read again: a run that is resumed with very many finished jobs looks at what
is left of it."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from supervisor_helpers import Run, ledgers_closed, make_job  # noqa: F401 - a fixture

from orchestrator.core.errors import LedgerError
from orchestrator.core.job import Cause, Failed, State
from orchestrator.ledger import Ledger

FAILED = Failed(cause=Cause.ERROR, message="it fell")


def begun(root: Path, states: dict[str, State], **settings: Any) -> Run:
    """Jobs that have had an attempt each, and are in these states now."""
    experiment = Run(root, [make_job(job_id, **settings.get(job_id, {})) for job_id in states])
    for job_id, state in states.items():
        experiment.begin(job_id, state)
    experiment.ledger.commit()
    return experiment


def test_without_a_look_for_damage_a_ledger_of_another_kind_is_still_refused(
    tmp_path: Path,
) -> None:
    Run(tmp_path, [make_job("a")]).ledger.close()
    path = tmp_path / "ledger.sqlite3"
    with path.open("ab") as file:
        file.write(b"x")
    with pytest.raises(LedgerError, match="truncated"):
        Ledger.open(path)
    assert Ledger.open(path, is_sound=True).counts() == {"PENDING": 1}
    other = shutil.copy(path, tmp_path / "other")
    with contextlib.closing(sqlite3.connect(other)) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(LedgerError, match="format 99"):
        Ledger.open(Path(other), is_sound=True)
