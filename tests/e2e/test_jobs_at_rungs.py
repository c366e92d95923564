"""Jobs that wait at rungs, where no feature is left that compares them."""

from __future__ import annotations

from pathlib import Path

import command_helpers as commands
import pytest
from command_helpers import odd, write_experiment

import orchestrator
from orchestrator.core.job import Paused
from orchestrator.core.paths import RunPaths
from orchestrator.experiment import run_directory
from orchestrator.ledger import Ledger, job_figures


def paused_at_a_rung(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, RunPaths]:
    """The job file and run directory of two jobs, one of which has trained up to a rung."""
    commands.examine_nothing(monkeypatch)
    commands.instant_workers(monkeypatch, folder)
    jobs = write_experiment(folder, odd("first", "nothing"), odd("second", "nothing"))
    paths = RunPaths(folder / "run")
    assert orchestrator.run(jobs, run_dir=paths.root).exit_code == 0
    ledger = Ledger.open(paths.ledger)
    row = ledger.job_row("second-s0")
    assert row is not None
    ledger.update_spec(row.job.with_spec(pause_at=100))
    ledger.set_state("second-s0", Paused(at_rung=True))
    ledger.commit()
    ledger.close()
    return jobs, paths


def test_without_the_feature_that_compares_them_the_job_file_trains_them_to_their_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs, paths = paused_at_a_rung(tmp_path, monkeypatch)
    assert orchestrator.run(jobs, run_dir=paths.root).exit_code == 0
    with run_directory.opened_ledger(paths, read_only=True) as ledger:
        assert [row.state.name for row in ledger.jobs()] == ["SUCCEEDED", "SUCCEEDED"]
        assert set(job_figures.pauses(ledger).values()) == {None}
