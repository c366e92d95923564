"""What features do when all jobs of a run have ended, or the run ends otherwise."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import command_helpers as commands
import pytest
from command_helpers import odd, write_experiment

import orchestrator
from orchestrator.core.errors import ChangedError, RunDirError, SupervisorError
from orchestrator.core.feature import Feature
from orchestrator.experiment import beside_run
from orchestrator.experiment.beside_run import BesideRun, EndedJobs
from orchestrator.experiment.from_outside import control
from orchestrator.experiment.planning.run_plan import Plan, RunOptions
from orchestrator.jobfile import Experiment
from orchestrator.ledger import Ledger


def test_when_all_jobs_have_ended_features_add_results_and_requests_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.examine_nothing(monkeypatch)
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


def test_what_a_feature_raises_while_jobs_run_ends_the_run_which_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.examine_nothing(monkeypatch)
    commands.instant_workers(monkeypatch, tmp_path)
    jobs = write_experiment(tmp_path, odd("good", "nothing"))

    class Falls(BesideRun):
        def before_turn(self) -> None:
            raise ZeroDivisionError("the knee fell off")

    feature = Feature(name="falls", about="It falls.")
    monkeypatch.setattr(beside_run, "answers", lambda *_: iter([(feature, Falls())]))
    with pytest.raises(SupervisorError):
        orchestrator.run(jobs, run_dir=tmp_path / "run")
    monkeypatch.setattr(beside_run, "answers", lambda *_: iter([]))
    assert orchestrator.run(jobs, run_dir=tmp_path / "run").exit_code == 0


class ReadsAtItsEnd(BesideRun):
    """Counts the jobs in the ledger when the run ends; may refuse the run before."""

    def __init__(self, *, refuses: bool) -> None:
        self._refuses = refuses
        self._ledger: Ledger | None = None
        self.counted: list[int] = []

    def before_plan(
        self, experiment: Experiment, options: RunOptions, ledger: Ledger | None
    ) -> tuple[Experiment, RunOptions]:
        self._ledger = ledger
        return experiment, options

    def after_plan(self, experiment: Experiment, made: Plan, ledger: Ledger | None) -> None:
        if self._refuses:
            raise ChangedError("another robot")

    def ledger_opened(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def end(self) -> None:
        assert self._ledger is not None
        self.counted.append(sum(self._ledger.counts().values()))


def test_the_ledger_is_open_when_what_is_beside_a_run_ends_however_the_run_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.examine_nothing(monkeypatch)
    commands.instant_workers(monkeypatch, tmp_path)
    jobs = write_experiment(tmp_path, odd("good", "nothing"))

    def run(*, refuses: bool = False, on_result: Callable[..., object] | None = None) -> list[int]:
        part = ReadsAtItsEnd(refuses=refuses)
        of_feature = Feature(name="reads", about="It reads at its end.")
        monkeypatch.setattr(beside_run, "answers", lambda *_: iter([(of_feature, part)]))
        with contextlib.suppress(ChangedError, ZeroDivisionError):
            orchestrator.run(jobs, run_dir=tmp_path / "run", on_result=on_result)
        return part.counted

    assert run(on_result=lambda *_: 1 / 0) == [1]
    assert run(refuses=True) == [1]
    assert run() == [1]
