"""Functions of a Python program hear of every job that ends, also while the ledger is locked."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

from supervisor_helpers import make_job

from orchestrator.core.errors import LedgerBusyError
from orchestrator.core.job import Succeeded
from orchestrator.experiment.callbacks import CallbackReporter
from orchestrator.ledger import Ledger
from orchestrator.ledger.rows import DeclaredJob


def no_view() -> Any:
    raise AssertionError("nobody asks for progress")


def test_jobs_that_end_while_the_ledger_is_locked_are_reported_when_it_is_free(
    tmp_path: Path,
) -> None:
    told: list[tuple[str, str]] = []
    path = tmp_path / "ledger.sqlite3"
    with contextlib.closing(Ledger.create(path)) as ledger:
        ledger.put_jobs(
            [DeclaredJob(position=number, job=make_job(name)) for number, name in enumerate("ab")]
        )
        ledger.commit()
        ledger.wait_for_lock(0.0)
        reporter = CallbackReporter(on_end=lambda row: told.append((row["job_id"], row["state"])))
        reporter.begin(ledger.jobs(), ledger, lambda _: None)
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            for job_id in "ab":
                ledger.set_state(job_id, Succeeded())
                reporter.event("succeeded", "", job_id=job_id)
            reporter.tick(no_view)
            reporter.report_last()
            assert isinstance(reporter.error, LedgerBusyError)
            assert str(reporter.error).endswith("the calling program was not told how a, b ended")
            assert not told
            reporter.error = None
            other.execute("ROLLBACK")
        reporter.tick(no_view)
        assert told == [("a", "SUCCEEDED")]
        reporter.report_last()
        assert told == [("a", "SUCCEEDED"), ("b", "SUCCEEDED")]
