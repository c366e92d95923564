"""What a run queues again by itself: finished jobs whose files are gone, and jobs that the job file
declares again."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from supervisor_helpers import Experiment, make_job

from orchestrator.core.errors import ChangedError, Problem
from orchestrator.core.job import Cancelled, Cause, Failed, Job, Paused, Pending, State, Succeeded
from orchestrator.experiment.directory import run_directory
from orchestrator.experiment.examination.preflight import JobVerdict
from orchestrator.experiment.from_outside import control
from orchestrator.experiment.resuming import recovery, resume
from orchestrator.experiment.resuming.declared_changes import OnChange
from orchestrator.experiment.resuming.reconcile import reconcile
from orchestrator.ledger import JobRow, Request, Verb


def after(root: Path, state: State, job: Job | None = None) -> Experiment:
    """An experiment whose job ``a`` has had an attempt, has all of its files, and is in
    ``state``."""
    experiment = Experiment(root, [job or make_job("a", spec={"normalize": True})])
    experiment.begin("a", state)
    directory = experiment.paths.job("a")
    directory.attempt(0).root.mkdir(parents=True)
    for path in (directory.model, directory.vecnormalize):
        path.touch()
    return experiment


def reconciled(
    experiment: Experiment,
    jobs: Sequence[Job] | None = None,
    *,
    verdict: JobVerdict | None = None,
    verdicts: Mapping[str, JobVerdict] | None = None,
    on_change: OnChange = "refuse",
) -> list[JobRow]:
    """:param verdict: of all jobs, unless they have one in ``verdicts``."""
    declared = experiment.jobs if jobs is None else jobs
    of_jobs = {job.job_id: verdict or JobVerdict() for job in declared} | dict(verdicts or {})
    position = {job.job_id: index for index, job in enumerate(declared)}
    paths, ledger, reporter = experiment.paths, experiment.ledger, experiment.reporter
    return reconcile(declared, of_jobs, position, on_change, paths, ledger, reporter)


@pytest.mark.parametrize("name", ["model.zip", "vecnormalize.pkl"])
def test_a_finished_job_without_its_results_goes_on_from_its_checkpoint(
    name: str, tmp_path: Path
) -> None:
    experiment = after(tmp_path, Succeeded())
    (experiment.paths.job("a").root / name).unlink()
    (row,) = reconciled(experiment)
    assert (row.state, row.attempts) == (Pending(), 1)
    assert name in experiment.reporter.messages()


def test_a_finished_job_whose_directory_is_gone_begins_anew(tmp_path: Path) -> None:
    experiment = after(tmp_path, Succeeded())
    shutil.rmtree(experiment.paths.job("a").root)
    (row,) = reconciled(experiment)
    assert (row.state, row.attempts, row.env_steps) == (Pending(), 0, 0)
    assert experiment.ledger.attempts() == []


def test_a_job_whose_robot_is_gone_with_its_directory_stays_finished_and_the_command_is_told(
    tmp_path: Path,
) -> None:
    job = make_job("a", spec={"env": None, "xml": "robot.xml", "task": "forward"})
    experiment = after(tmp_path, Succeeded(), job)
    shutil.rmtree(experiment.paths.job("a").root)
    (row,) = reconciled(experiment)
    assert row.state == Succeeded()


@pytest.mark.parametrize("state", [Paused(), Cancelled()])
def test_a_job_that_is_held_back_stays_so_when_it_is_valid_again(
    state: State, tmp_path: Path
) -> None:
    experiment = Experiment(tmp_path, [make_job("a")])
    experiment.ledger.set_state("a", state)
    invalid = JobVerdict(problem=Problem(where="jobs[0]", message="no robot"))
    for _ in range(2):
        (row,) = reconciled(experiment, verdict=invalid)
        assert row.state == Failed(cause=Cause.INVALID, message="no robot")
    for _ in range(2):
        (row,) = reconciled(experiment)
        assert row.state == state
    assert experiment.ledger.noted_verbs() == {}


def test_only_a_job_that_was_cancelled_as_it_was_not_declared_resumes_when_it_is(
    tmp_path: Path,
) -> None:
    gone = dataclasses.replace(make_job("a"), xml_source=tmp_path / "gone.xml")
    experiment = after(tmp_path, Pending(), gone)
    other = make_job("b")
    reconciled(experiment, [other])
    states = {row.job.job_id: row.state for row in experiment.ledger.jobs()}
    assert states == {"a": Cancelled(is_undeclared=True), "b": Pending()}
    rows = reconciled(experiment, [gone, other])
    assert [(row.state, row.attempts) for row in rows] == [(Pending(), 1), (Pending(), 0)]
    experiment.ledger.set_state("a", Cancelled())
    assert reconciled(experiment, [gone, other])[0].state == Cancelled()


def test_an_error_in_the_middle_moves_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = Experiment(tmp_path, [make_job("waits"), make_job("was running")])
    experiment.begin("was running")
    experiment.ledger.commit()
    before = [row.state for row in experiment.ledger.jobs()]
    experiment.ledger.close()

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(recovery, "settle", refuse)
        with pytest.raises(OSError, match="Input/output error"):
            control.move_jobs(experiment.paths, None, "pause")
    with run_directory.opened_ledger(experiment.paths, read_only=True) as ledger:
        assert [row.state for row in ledger.jobs()] == before
        assert ledger.noted_verbs() == {}
    moved = control.move_jobs(experiment.paths, None, "pause")
    assert (moved.job_ids, moved.problem) == (["waits", "was running"], "")


@pytest.mark.parametrize(
    ("unread", "commands", "state"),
    [
        ("pause", ("pause",), "PAUSED"),
        ("cancel", ("retry",), "PENDING"),
        ("cancel", ("retry", "pause"), "PAUSED"),
    ],
)
def test_what_nobody_has_read_comes_before_later_commands_and_undoes_none(
    unread: Verb, commands: Sequence[control.JobVerb], state: str, tmp_path: Path
) -> None:
    experiment = Experiment(tmp_path, [make_job("a")])
    experiment.ledger.add_requests([Request(verb=unread, job_id="a")])
    experiment.ledger.close()
    for verb in commands:
        assert control.move_jobs(experiment.paths, ["a"], verb).job_ids == ["a"]
    with run_directory.opened_ledger(experiment.paths) as ledger:
        recovery.apply_late_requests(ledger, "the next supervisor")
        assert [row.state.name for row in ledger.jobs()] == [state]


def test_a_job_that_is_too_large_here_is_trained_by_a_larger_machine(tmp_path: Path) -> None:
    """Its robot is kept, so that no job file is needed there."""
    robot = tmp_path / "staging"
    robot.mkdir()
    (robot / "robot.xml").write_text("<mujoco/>")
    (tmp_path / "run").mkdir()
    experiment = Experiment(tmp_path / "run", [make_job("a")])
    too_large = JobVerdict(
        problem=Problem(where="jobs[0]", message="asks for 64 cores"),
        lacks_room=True,
        bundle=robot,
        robot_hash="abc",
    )
    (row,) = reconciled(experiment, verdict=too_large)
    assert row.state == Failed(cause=Cause.TOO_LARGE, message="asks for 64 cores")
    directory = experiment.paths.job("a")
    assert (directory.robot / "robot.xml").exists()
    verdict = resume.verdicts([row])["a"]
    assert verdict == JobVerdict(robot_hash="abc")
    (row,) = reconciled(experiment, verdict=verdict)
    assert row.state == Pending()
    assert (directory.robot / "robot.xml").exists()


INVALID = JobVerdict(problem=Problem(where="jobs[0]", message="robot.xml: no joints"))


def with_learning_rate(job_id: str, learning_rate: float, **spec: Any) -> Job:
    return make_job(job_id, spec={"hyperparameters": {"learning_rate": learning_rate}, **spec})


def begun_with_another_learning_rate(root: Path) -> tuple[Experiment, Job]:
    """An experiment whose job ``a`` has begun, and ``a`` as it is declared now."""
    experiment = after(root, Pending(), with_learning_rate("a", 0.1))
    return experiment, with_learning_rate("a", 0.2)


def warnings(experiment: Experiment) -> list[str]:
    return [message for kind, message, _ in experiment.reporter.events if kind == "warning"]


@pytest.mark.parametrize("on_change", ["refuse", "extend"])
def test_a_changed_job_that_is_invalid_now_is_refused_with_both(
    on_change: OnChange, tmp_path: Path
) -> None:
    experiment, now = begun_with_another_learning_rate(tmp_path)
    with pytest.raises(ChangedError) as refused:
        reconciled(experiment, [now], verdict=INVALID, on_change=on_change)
    assert "ppo.learning_rate: 0.1 → 0.2" in str(refused.value)
    assert "trains it again" not in str(refused.value), "which an invalid job cannot be"


@pytest.mark.parametrize("on_change", ["keep", "restart"])
def test_a_changed_job_that_is_invalid_now_goes_on_as_it_was_with_a_warning(
    on_change: OnChange, tmp_path: Path
) -> None:
    experiment, now = begun_with_another_learning_rate(tmp_path)
    (before,) = experiment.ledger.jobs()
    (row,) = reconciled(experiment, [now], verdict=INVALID, on_change=on_change)
    assert (row.job, row.state, row.attempts) == (before.job, Pending(), 1)
    assert experiment.paths.job("a").attempt(0).root.exists()
    (warning,) = warnings(experiment)
    assert "declared differently now" in warning
    assert warning.endswith(": a")


TOO_LARGE = JobVerdict(
    problem=Problem(where="jobs[0]", message="asks for 64 cores"), lacks_room=True
)
