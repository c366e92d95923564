"""What features do when all jobs of a run have ended, or the run ends otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import command_helpers as commands
import pytest
from command_helpers import odd, write_experiment

import orchestrator
from orchestrator.core.errors import ChangedError, RunDirError
from orchestrator.core.feature import Feature
from orchestrator.experiment import beside_run, control
from orchestrator.experiment.beside_run import BesideRun, EndedJobs
from orchestrator.ledger import Ledger


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
    done = orchestrator.run(jobs, run_dir=tmp_path / "run", max_parallel=2)
    assert done.exit_code == 1
    (jobs_of_run,) = ended
    assert {name: state.name for name, state in jobs_of_run.states.items()} == {
        "good-s0": "SUCCEEDED",
        "bad-s0": "FAILED",
    }
    assert jobs_of_run.shown is None
    assert "results are added" in told


class ReadsAtItsEnd(BesideRun):
    """Reads the ledger when it ends."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def ledger_opened(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def end(self) -> None:
        self.read.append(len(self._ledger.jobs()))


def test_what_is_beside_a_run_ends_once_and_before_the_ledger_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.instant_workers(monkeypatch, tmp_path)
    feature = Feature(name="reads", about="It reads the ledger.")
    beside: list[ReadsAtItsEnd] = []

    def answers(*_: object) -> Iterator[tuple[Feature, BesideRun]]:
        beside.append(ReadsAtItsEnd())
        yield feature, beside[-1]

    monkeypatch.setattr(beside_run, "answers", answers)
    run_dir = tmp_path / "run"
    jobs = write_experiment(tmp_path, odd("good", "nothing"))

    def stop_the_program(_: object) -> None:
        raise KeyError("the program's own")

    with pytest.raises(KeyError, match="the program's own"):
        orchestrator.run(jobs, run_dir=run_dir, on_result=stop_the_program)
    orchestrator.run(jobs, run_dir=run_dir)
    write_experiment(tmp_path, odd("good", "nothing", seeds=[0, 1], total_timesteps=64))
    with pytest.raises(ChangedError):  # while the ledger is brought into line
        orchestrator.run(jobs, run_dir=run_dir)
    assert [part.read for part in beside] == [[1], [1], [1]]
