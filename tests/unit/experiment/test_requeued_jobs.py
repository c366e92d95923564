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
from supervisor_helpers import (
    Experiment,
    ask,
    ledgers_closed,  # noqa: F401 - a fixture
    make_job,
    once,
)

from orchestrator.core.errors import ChangedError, Problem, UsageError
from orchestrator.core.job import (
    Cancelled,
    Cause,
    Failed,
    Job,
    Paused,
    Pending,
    State,
    Succeeded,
)
from orchestrator.experiment.directory import run_directory
from orchestrator.experiment.examination.preflight import JobVerdict
from orchestrator.experiment.from_outside import control
from orchestrator.experiment.resuming import recovery, resume
from orchestrator.experiment.resuming.declared_changes import OnChange
from orchestrator.experiment.resuming.reconcile import reconcile
from orchestrator.ledger import JobRow, Request, Verb, summary


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


def test_a_finished_job_with_all_of_its_files_stays_as_it_is(tmp_path: Path) -> None:
    (row,) = reconciled(after(tmp_path, Succeeded()))
    assert row.state == Succeeded()


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
    assert "from the beginning: a" in experiment.reporter.messages()


def test_a_job_whose_robot_is_gone_with_its_directory_stays_finished_and_the_command_is_told(
    tmp_path: Path,
) -> None:
    job = make_job("a", spec={"env": None, "xml": "robot.xml", "task": "forward"})
    experiment = after(tmp_path, Succeeded(), job)
    shutil.rmtree(experiment.paths.job("a").root)
    (row,) = reconciled(experiment)
    assert row.state == Succeeded()
    assert "`run JOBS.toml` with these does: a" in experiment.reporter.messages()


def test_a_job_whose_initial_policy_is_gone_with_its_directory_stays_finished_until_the_policy_is_given(
    tmp_path: Path,
) -> None:
    job, policy = (
        make_job("a", spec={"init": "/policy", "init_sha256": "ab" * 32}),
        tmp_path / "policy.pt",
    )
    experiment = after(tmp_path, Succeeded(), job)
    shutil.rmtree(experiment.paths.job("a").root)
    assert reconciled(experiment)[0].state == Succeeded()
    policy.write_bytes(b"weights")
    (row,) = reconciled(experiment, verdict=JobVerdict(init=policy))
    assert (row.state, row.attempts) == (Pending(), 0)
    assert experiment.paths.job("a").init.read_bytes() == b"weights"


def test_a_job_that_is_declared_again_without_its_directory_begins_anew(tmp_path: Path) -> None:
    experiment = after(tmp_path, Cancelled(is_undeclared=True))
    shutil.rmtree(experiment.paths.job("a").root)
    (row,) = reconciled(experiment)
    assert (row.state, row.attempts) == (Pending(), 0)
    assert experiment.paths.job("a").robot_hash.exists()


@pytest.mark.parametrize("state", [Pending(), Paused()])
def test_a_job_that_has_begun_begins_anew_where_its_directory_is_gone_and_stays_paused(
    state: State, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.pt"
    policy.write_bytes(b"weights")
    experiment = after(
        tmp_path, state, make_job("a", spec={"init": "/policy", "init_sha256": "ab" * 32})
    )
    shutil.rmtree(experiment.paths.job("a").root)
    (row,) = reconciled(experiment, verdict=JobVerdict(init=policy))
    assert (row.state, row.attempts) == (state, 0)
    assert experiment.paths.job("a").init.exists()
    assert experiment.paths.job("a").robot_hash.exists()


def test_a_job_cancelled_before_its_launch_stays_so_and_takes_the_robot_as_it_is_now(
    tmp_path: Path,
) -> None:
    job = make_job("a", spec={"env": None, "xml": "robot/robot.xml", "task": "forward"})
    experiment = Experiment(tmp_path, [job])
    for content in ("one", "other"):
        bundle = tmp_path / content
        bundle.mkdir()
        (bundle / "robot.xml").write_text(content)
        (row,) = reconciled(experiment, verdict=JobVerdict(robot_hash=content, bundle=bundle))
        experiment.ledger.set_state("a", Cancelled())
    assert (row.state, row.robot_hash) == (Cancelled(), "other")
    assert (experiment.paths.job("a").robot / "robot.xml").read_text() == "other"


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


def test_a_job_that_was_invalid_and_is_not_held_back_begins_when_it_is_valid(
    tmp_path: Path,
) -> None:
    experiment = Experiment(tmp_path, [make_job("a")])
    invalid = JobVerdict(problem=Problem(where="jobs[0]", message="no robot"))
    reconciled(experiment, verdict=invalid)
    (row,) = reconciled(experiment)
    assert row.state == Pending()


def test_a_robot_in_a_folder_that_cannot_be_read_blocks_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = dataclasses.replace(make_job("a"), xml_source=tmp_path / "theirs/robot.xml")
    experiment = after(tmp_path, Pending(), job)
    stat = os.stat

    def refused(path: Any, **options: Any) -> os.stat_result:
        if "theirs" in str(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", refused)
    reconciled(experiment, [make_job("b")])
    assert experiment.ledger.jobs()[0].state == Cancelled(is_undeclared=True)


def test_only_a_job_that_was_cancelled_as_it_was_not_declared_resumes_when_it_is(
    tmp_path: Path,
) -> None:
    gone = dataclasses.replace(make_job("a"), xml_source=tmp_path / "gone.xml")
    experiment = after(tmp_path, Pending(), gone)
    other = make_job("b")
    reconciled(experiment, [other])
    states = {row.job.job_id: row.state for row in experiment.ledger.jobs()}
    assert states == {"a": Cancelled(is_undeclared=True), "b": Pending()}
    assert (
        f"there is no {tmp_path / 'gone.xml'} any more: it is CANCELLED"
        in experiment.reporter.messages()
    )
    rows = reconciled(experiment, [gone, other])
    assert [(row.state, row.attempts) for row in rows] == [(Pending(), 1), (Pending(), 0)]
    experiment.ledger.set_state("a", Cancelled())
    assert reconciled(experiment, [gone, other])[0].state == Cancelled()


def test_a_job_that_is_not_declared_is_retried_without_a_supervisor_only(tmp_path: Path) -> None:
    experiment = after(tmp_path, Cancelled(is_undeclared=True))
    experiment.ledger.close()
    with (
        run_directory.claim(tmp_path),
        pytest.raises(UsageError, match="a is CANCELLED, as the job file did not declare it when"),
    ):
        control.ask(tmp_path, ["a"], "retry")
    assert "queued 1 job (a) again" in control.ask(tmp_path, ["a"], "retry")


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
        ("cancel", ("cancel",), "CANCELLED"),
        ("pause", ("cancel", "retry"), "PENDING"),
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


def test_jobs_that_have_moved_are_told_though_their_summary_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = Experiment(tmp_path, [make_job("waits")])
    experiment.ledger.close()

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(summary, "write", refuse)
        said = control.ask(tmp_path, ["waits"], "pause")
    assert "paused 1 job (waits); `resume` queues them again\nsummary.json and" in said
    assert "Input/output error" in said
    with run_directory.opened_ledger(experiment.paths, read_only=True) as ledger:
        assert [row.state.name for row in ledger.jobs()] == ["PAUSED"]


def test_a_request_about_a_job_that_a_run_does_not_have_is_reported(tmp_path: Path) -> None:
    experiment = Experiment(tmp_path, [make_job("a")])
    experiment.reporter.each_turn = once(lambda _: True, lambda: ask(tmp_path, ("retry", "gone")))
    assert experiment.run() == {"a": "SUCCEEDED"}
    assert "gone: its `retry` has no effect" in experiment.reporter.messages()


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


@pytest.mark.parametrize("verb", ["pause", "cancel"])
def test_a_job_that_is_too_large_stays_held(verb: str, tmp_path: Path) -> None:
    experiment = Experiment(tmp_path, [make_job("a")])
    held = Paused() if verb == "pause" else Cancelled()
    experiment.ledger.set_state("a", held)
    too_large = JobVerdict(problem=Problem(where="", message="asks for it"), lacks_room=True)
    (row,) = reconciled(experiment, verdict=too_large)
    assert isinstance(row.state, Failed)
    (row,) = reconciled(experiment, verdict=JobVerdict())
    assert row.state == held


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        (Cause.TOO_LARGE, Pending()),
        (Cause.LAUNCH, Pending()),  # so it was in ledgers of before
        (Cause.INVALID, Failed(cause=Cause.INVALID, message="what it asks for")),
    ],
)
def test_a_run_without_a_job_file_takes_only_invalid_jobs_for_invalid(
    cause: Cause, expected: State, tmp_path: Path
) -> None:
    experiment = Experiment(tmp_path, [make_job("a")])
    experiment.ledger.set_state("a", Failed(cause=cause, message="what it asks for"))
    rows = experiment.ledger.jobs()
    (row,) = reconciled(experiment, verdict=resume.verdicts(rows)["a"])
    assert row.state == expected


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
    assert "is invalid now: robot.xml: no joints" in str(refused.value)
    assert "trains it again" not in str(refused.value), "which an invalid job cannot be"


def test_a_longer_job_that_is_invalid_now_is_not_trained_further(tmp_path: Path) -> None:
    """Also where it has no robot, whose hash would be another one."""
    experiment = after(tmp_path, Succeeded())
    now = make_job("a", spec={"normalize": True, "total_timesteps": 2000})
    with pytest.raises(ChangedError, match="is invalid now"):
        reconciled(experiment, [now], verdict=INVALID, on_change="extend")


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


def test_a_job_that_starts_from_one_that_cannot_start_over_does_not_start_over(
    tmp_path: Path,
) -> None:
    later = make_job("b", spec={"init": "job:a", "after": ("a",)})
    experiment = Experiment(tmp_path, [with_learning_rate("a", 0.1), later])
    for job_id in ("a", "b"):
        experiment.begin(job_id, Pending())
        experiment.paths.job(job_id).attempt(0).root.mkdir(parents=True)
    now = [with_learning_rate("a", 0.2), later]
    rows = reconciled(experiment, now, verdicts={"a": INVALID}, on_change="restart")
    assert [row.attempts for row in rows] == [1, 1]
    (warning,) = warnings(experiment)
    assert warning.endswith(": a, b")


def test_what_only_an_examination_finds_is_no_change_of_an_invalid_job(tmp_path: Path) -> None:
    examined = {
        "env": None,
        "xml": "robot/robot.xml",
        "task": "forward",
        "init": str(tmp_path / "moved/policy.pt"),
        "init_sha256": "ab" * 32,
        "init_env_steps": 10,
    }
    experiment = after(tmp_path, Pending(), make_job("a", spec=examined))
    declared = {"env": None, "task": "auto", "init": str(tmp_path / "policy.pt")}
    (row,) = reconciled(experiment, [make_job("a", spec=declared)], verdict=INVALID)
    assert (row.job.spec.task, row.state) == ("forward", Pending())
    assert warnings(experiment) == []


@pytest.mark.parametrize(("before", "now"), [(None, "policy.pt"), ("policy.pt", None)])
def test_an_invalid_job_that_starts_from_something_else_has_changed(
    before: str | None, now: str | None, tmp_path: Path
) -> None:
    sha256 = None if before is None else "ab" * 32
    begun = make_job("a", spec={"init": before, "init_sha256": sha256})
    experiment = after(tmp_path, Pending(), begun)
    expected = f"init: {before or 'not set'} → {now or 'not set'}"
    with pytest.raises(ChangedError, match=expected):
        reconciled(experiment, [make_job("a", spec={"init": now})], verdict=INVALID)


TOO_LARGE = JobVerdict(
    problem=Problem(where="jobs[0]", message="asks for 64 cores"), lacks_room=True
)
FAILED_AS_TOO_LARGE = Failed(cause=Cause.TOO_LARGE, message="asks for 64 cores")


@pytest.mark.parametrize(
    ("state", "here"),
    [(Pending(failures=1), FAILED_AS_TOO_LARGE), (Paused(), Paused()), (Succeeded(), Succeeded())],
)
def test_a_begun_job_that_is_too_large_here_goes_on_where_there_is_room(
    state: State, here: State, tmp_path: Path
) -> None:
    experiment = after(tmp_path, state)
    for _ in range(2):
        (row,) = reconciled(experiment, verdict=TOO_LARGE)
        assert (row.state, row.attempts) == (here, 1)
        assert resume.is_settled(row, experiment.paths) == isinstance(here, Succeeded)
    assert "`retry`" not in experiment.reporter.messages()
    (row,) = experiment.ledger.jobs()
    assert resume.verdicts([row])["a"].problem is None, "no job file is needed"
    (row,) = reconciled(experiment)
    there = Pending() if here == FAILED_AS_TOO_LARGE else here
    assert (row.state, row.attempts) == (there, 1)
    goes_on = any("there is room now" in warning for warning in warnings(experiment))
    assert goes_on == (here == FAILED_AS_TOO_LARGE)


def test_a_job_that_a_dead_supervisor_has_left_and_that_is_too_large_here_is_failed(
    tmp_path: Path,
) -> None:
    experiment = Experiment(tmp_path, [make_job("a")])
    experiment.begin("a")
    experiment.paths.job("a").root.mkdir(parents=True)
    (row,) = reconciled(experiment, verdict=TOO_LARGE)
    assert row.state == FAILED_AS_TOO_LARGE
    assert [attempt["cause"] for attempt in experiment.ledger.attempts()] == ["supervisor-died"]


def test_a_job_that_was_too_large_begins_anew_where_its_directory_is_gone(tmp_path: Path) -> None:
    experiment = after(tmp_path, FAILED_AS_TOO_LARGE)
    shutil.rmtree(experiment.paths.job("a").root)
    (row,) = reconciled(experiment)
    assert (row.state, row.attempts) == (Pending(), 0)


def test_a_begun_job_that_could_not_be_launched_needs_a_retry(tmp_path: Path) -> None:
    failed = Failed(cause=Cause.LAUNCH, message="no such file")
    experiment = after(tmp_path, failed)
    (row,) = reconciled(experiment)
    assert row.state == failed
    assert "unless `retry` queues them: a" in experiment.reporter.messages()


def test_what_a_job_that_is_too_large_here_asks_for_now_is_recorded_with_the_reason_of_now(
    tmp_path: Path,
) -> None:
    experiment = after(tmp_path, Failed(cause=Cause.TOO_LARGE, message="asks for 32 cores"))
    now = make_job("a", spec={"normalize": True}, cores=64, timeout_s=5.0, max_retries=7)
    (row,) = reconciled(experiment, [now], verdict=TOO_LARGE)
    assert (row.job.resources, row.job.max_retries) == (now.resources, 7)
    assert row.state == FAILED_AS_TOO_LARGE


@pytest.mark.parametrize(
    ("on_change", "cores", "attempts", "state"),
    [
        ("keep", 64, 1, FAILED_AS_TOO_LARGE),
        ("keep", 1, 1, Pending()),
        ("restart", 64, 0, FAILED_AS_TOO_LARGE),
        ("refuse", 64, 1, None),
    ],
)
def test_a_changed_job_that_is_too_large_here_is_treated_as_changed(
    on_change: OnChange, cores: int, attempts: int, state: State | None, tmp_path: Path
) -> None:
    """One that is kept asks for what it has asked for, too: there may be room for that."""
    before = with_learning_rate("a", 0.1)
    before = dataclasses.replace(
        before, resources=dataclasses.replace(before.resources, cores=cores)
    )
    now = with_learning_rate("a", 0.2)
    now = dataclasses.replace(now, resources=dataclasses.replace(now.resources, cores=64))
    experiment = after(tmp_path, Pending(), before)
    if state is None:
        with pytest.raises(ChangedError, match=r"learning_rate: 0\.1 → 0\.2"):
            reconciled(experiment, [now], verdict=TOO_LARGE, on_change=on_change)
        return
    (row,) = reconciled(experiment, [now], verdict=TOO_LARGE, on_change=on_change)
    assert (row.attempts, row.state) == (attempts, state)
    assert row.job.spec == (now if attempts == 0 else before).spec


def test_a_longer_job_that_is_too_large_here_is_trained_further_where_there_is_room(
    tmp_path: Path,
) -> None:
    experiment = after(tmp_path, Succeeded())
    now = make_job("a", spec={"normalize": True, "total_timesteps": 2000})
    (row,) = reconciled(experiment, [now], verdict=TOO_LARGE, on_change="extend")
    assert (row.state, row.job.spec.extended_from) == (FAILED_AS_TOO_LARGE, (1000,))
    assert reconciled(experiment, [now])[0].state == Pending()


def test_a_job_that_no_slot_can_hold_goes_on_where_there_is_room(tmp_path: Path) -> None:
    experiment = after(tmp_path, Pending(), make_job("a", cores=4))
    assert experiment.run() == {"a": "FAILED"}
    (row,) = reconciled(experiment)
    assert (row.state, row.attempts) == (Pending(), 1)
