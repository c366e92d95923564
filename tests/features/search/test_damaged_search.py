"""The record of a search is damaged, or its ledger is lost."""

from __future__ import annotations

import contextlib
from pathlib import Path

import command_helpers as commands
import pytest
from searcher_helpers import searcher_of
from trial_helpers import Told, search_run

from orchestrator.core.errors import LedgerDamagedError
from orchestrator.features.search import changed_search, search_events, search_process
from orchestrator.server.companions import RunFacts
from orchestrator.server.ledger import ServerLedger


def test_the_jobs_of_a_damaged_search_are_shown_and_its_trials_are_refused(tmp_path: Path) -> None:
    paths = search_run(tmp_path / "run", [Told(values=[3.0], reached=[1.0, 2.0]), Told()])
    with search_events.writing(paths) as database:
        database.change("UPDATE events SET trial = 7 WHERE kind = 'over'")
    with pytest.raises(LedgerDamagedError, match="trial 7"):
        searcher_of(paths)
    status = commands.succeed("status", paths.root, cwd=tmp_path)
    assert "hopper-t00001-s0" in status.stdout
    assert "trial 7" in " ".join(status.stdout.split())
    best = commands.invoke("best", paths.root, cwd=tmp_path)
    assert best.returncode == 2
    assert "Traceback" not in best.stderr


def test_with_a_new_ledger_a_search_begins_again_and_makes_the_same_jobs(tmp_path: Path) -> None:
    paths = search_run(tmp_path / "run", [Told(values=[3.0]), Told()])
    paths.ledger.unlink()
    with contextlib.closing(ServerLedger.create(paths.ledger)) as ledger:
        facts = RunFacts(
            paths=paths,
            ledger=ledger,
            report=lambda *_: None,
            name="found",
            base=tmp_path,
            tables={},
            experiment=changed_search.declared_experiment(paths),
            is_declared=True,
            robots={},
        )
        (companion,) = search_process.companions(facts)
    assert companion.kind == "makes jobs"
    assert search_events.standing(paths) == "underway"
    assert search_events.events(paths) == []
