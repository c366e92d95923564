"""A ledger whose rows about a search are damaged: the jobs are shown all the same."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import command_helpers as commands
import pytest
from searcher_helpers import searcher_of
from trial_helpers import Told, search_run

from orchestrator.core.errors import LedgerDamagedError


def test_the_jobs_of_a_damaged_search_are_shown_and_its_trials_are_refused(tmp_path: Path) -> None:
    paths = search_run(tmp_path / "run", [Told(values=[3.0], reached=[1.0, 2.0]), Told()])
    with contextlib.closing(sqlite3.connect(paths.ledger)) as connection:
        connection.execute("UPDATE search SET trial = 7 WHERE kind = 'over'")
        connection.commit()
    with pytest.raises(LedgerDamagedError, match="trial 7"):
        searcher_of(paths)
    status = commands.succeed("status", paths.root, cwd=tmp_path)
    assert "hopper-t00001-s0" in status.stdout
    assert "trial 7" in " ".join(status.stdout.split())
    best = commands.invoke("best", paths.root, cwd=tmp_path)
    assert best.returncode == 2
    assert "Traceback" not in best.stderr
