"""What features do when all jobs of a run have ended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import command_helpers as commands
import pytest
from command_helpers import odd, write_experiment

import orchestrator
from orchestrator.core.errors import RunDirError
from orchestrator.core.feature import Feature
from orchestrator.experiment import beside_run, control
from orchestrator.experiment.beside_run import BesideRun, EndedJobs


def test_when_all_jobs_have_ended_features_add_results_and_requests_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.instant_workers(monkeypatch, tmp_path)
    jobs = write_experiment(tmp_path, odd("good", "nothing"), odd("bad", "nothing"))
    ended: list[EndedJobs] = []
    told: list[str] = []

    class Adds(BesideRun):
        def add_results(self, jobs: EndedJobs, is_stopped: Callable[[], bool]) -> None:
            with pytest.raises(RunDirError, match="all jobs have ended"):
                control.set_max_parallel(jobs.paths.root, 2)
            jobs.reporter.event("chosen", "results are added")
            assert not is_stopped()
            ended.append(jobs)

        def event(self, kind: str, message: str, **_: object) -> None:
            told.append(message)

    feature = Feature(name="adds", about="It adds results.")
    monkeypatch.setattr(beside_run, "answers", lambda *_: iter([(feature, Adds())]))
    done = orchestrator.run(jobs, max_parallel=2)
    assert done.exit_code == 1
    (jobs_of_run,) = ended
    assert {name: state.name for name, state in jobs_of_run.states.items()} == {
        "good-s0": "SUCCEEDED",
        "bad-s0": "FAILED",
    }
    assert jobs_of_run.shown is None
    assert "results are added" in told
