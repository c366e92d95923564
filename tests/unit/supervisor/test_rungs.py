"""Jobs that pause at a rung, and are promoted: what the supervisor, the next one, and the user's
commands do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from supervisor_helpers import (
    FOREVER,
    Experiment,
    ask,
    ledgers_closed,  # noqa: F401 - a fixture
    make_job,
    make_spec,
    once,
    rows,
)

from orchestrator.core.errors import UsageError
from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.exit_record import ExitRecord
from orchestrator.core.job import (
    AttemptOutcome,
    Cancelled,
    Cause,
    Job,
    Paused,
    Pending,
    Running,
    State,
)
from orchestrator.core.paths import RunPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.executors.base import Launch
from orchestrator.executors.fake import NEVER, Behaviour
from orchestrator.experiment.from_outside import control, run_snapshot
from orchestrator.experiment.resuming import recovery
from orchestrator.ledger import Request, Verb
from orchestrator.supervisor import retry_policy
from orchestrator.supervisor.events import SilentReporter

AT_RUNG = Paused(at_rung=True)


def rung_job(job_id: str = "a", pause_at: int | None = 200) -> Job:
    return make_job(job_id, spec={"pause_at": pause_at})


def spec_of(root: Path, job_id: str = "a") -> WorkerSpec:
    """As the last attempt of the job was given it."""
    return WorkerSpec.from_json(RunPaths(root).job(job_id).spec.read_bytes())


def to_rungs(launch: Launch) -> Behaviour:
    """A worker that trains for 10 s, to where its spec says."""
    spec = WorkerSpec.from_json((launch.job_dir / "spec.json").read_bytes())
    steps = spec.pause_at or spec.total_timesteps
    code = ExitCode.SUCCEEDED if spec.pause_at is None else ExitCode.PAUSED
    record = ExitRecord(
        code=code, message=f"reached {steps}", env_steps=steps, ep_rew_mean=steps / 10
    )
    (launch.job_dir / f"attempts/{launch.number}/exit.json").write_text(record.to_json())
    return Behaviour(after_s=10.0, returncode=code)


def test_a_job_pauses_at_its_rung_with_its_value_and_goes_on_when_it_is_promoted(
    tmp_path: Path,
) -> None:
    experiment = Experiment(tmp_path, [rung_job(), rung_job("b"), make_job("c")], to_rungs, cpus=3)
    assert experiment.run() == {"a": "PAUSED", "b": "PAUSED", "c": "SUCCEEDED"}
    row = rows(tmp_path)["a"]
    assert (row["cause"], row["env_steps"], row["ep_rew_mean"]) == ("rung", 200, 20.0)
    assert [attempt["cause"] for attempt in experiment.ledger.attempts()] == ["rung", "rung", None]
    assert "`resume`" not in experiment.reporter.messages()
    assert retry_policy.exit_code(experiment.supervisor._jobs.states, interrupted=False) == 0
    assert run_snapshot.exit_code(rows(tmp_path).values()) == 0  # type: ignore[arg-type]
    experiment.ledger.close()

    again = Experiment(tmp_path, [], to_rungs, cpus=3)
    ask(tmp_path, ("promote", "a=600"), ("promote", "b=end"))
    assert again.run() == {"a": "PAUSED", "b": "SUCCEEDED", "c": "SUCCEEDED"}
    assert (spec_of(tmp_path, "a").pause_at, spec_of(tmp_path, "b").pause_at) == (600, None)
    assert again.reporter.kinds("a") == ["promoted", "launched", "paused"]
    assert {row.job.job_id: row.job.spec.pause_at for row in again.ledger.jobs()} == {
        "a": 600,
        "b": None,
        "c": None,
    }


def test_promoted_while_it_trains_to_its_rung_a_job_does_not_wait_there(tmp_path: Path) -> None:
    experiment = Experiment(tmp_path, [rung_job()], to_rungs)
    experiment.reporter.each_turn = once(
        lambda view: view.elapsed_s > 5, lambda: ask(tmp_path, ("promote", "a=end"))
    )
    assert experiment.run() == {"a": "SUCCEEDED"}
    assert experiment.reporter.kinds("a") == ["launched", "promoted", "launched", "succeeded"]


def test_promoted_while_it_is_queued_a_job_is_launched_to_the_later_rung(tmp_path: Path) -> None:
    experiment = Experiment(tmp_path, [make_job("first"), rung_job()], to_rungs, cpus=1)
    experiment.reporter.each_turn = once(
        lambda view: view.elapsed_s > 5, lambda: ask(tmp_path, ("promote", "a=600"))
    )
    assert experiment.run() == {"first": "SUCCEEDED", "a": "PAUSED"}
    assert (spec_of(tmp_path).pause_at, experiment.order) == (600, ["first", "a"])


def test_promoted_jobs_are_launched_before_those_that_have_not_begun(tmp_path: Path) -> None:
    jobs = [rung_job("a"), rung_job("b"), *(make_job(name) for name in "cde")]
    experiment = Experiment(tmp_path, jobs, to_rungs, cpus=1)
    experiment.reporter.each_turn = once(
        lambda view: view.elapsed_s > 25,
        lambda: ask(tmp_path, ("promote", "b=end"), ("promote", "a=600")),
    )
    experiment.run()
    assert experiment.order == ["a", "b", "c", "b", "a", "d", "e"]


def test_the_next_supervisor_launches_promoted_jobs_before_those_that_have_not_begun(
    tmp_path: Path,
) -> None:
    experiment = Experiment(tmp_path, [make_job("new"), rung_job()])
    experiment.begin("a", AT_RUNG)
    experiment.ledger.commit()
    ask(tmp_path, ("promote", "a=end"))
    recovery.apply_late_requests(experiment.ledger, "")
    experiment.ledger.close()
    again = Experiment(tmp_path, [], to_rungs, cpus=1)
    again.run()
    assert again.order == ["a", "new"]


def test_promotions_that_are_late_or_make_no_sense_do_nothing(tmp_path: Path) -> None:
    texts = [
        "a=200",
        "a=100",
        "a=0",
        "a=",
        "a",
        "=end",
        "nobody=600",
        "a=-1",
        "a=6e2",
        f"a={'9' * 30}",
        None,
    ]
    Experiment(tmp_path, [rung_job()], to_rungs).run()
    experiment = Experiment(tmp_path, [], to_rungs)
    ask(tmp_path, *(("promote", text) for text in texts))
    assert (experiment.run(), experiment.reporter.events) == ({"a": "PAUSED"}, [])
    assert not experiment.paths.error_log.exists()
    ask(tmp_path, *(("promote", text) for text in texts))
    recovery.apply_late_requests(experiment.ledger, "")
    (row,) = experiment.ledger.jobs()
    assert (row.state, row.job.spec.pause_at, row.attempts) == (AT_RUNG, 200, 1)


@pytest.mark.parametrize("is_late", [False, True], ids=["running", "late"])
def test_a_cancelled_job_that_is_promoted_trains_as_far_when_it_is_retried(
    is_late: bool, tmp_path: Path
) -> None:
    Experiment(tmp_path, [rung_job()], to_rungs).run()
    experiment = Experiment(tmp_path, [], to_rungs)
    ask(tmp_path, ("cancel", "a"), ("promote", "a=600"), ("retry", "a"))
    if is_late:
        recovery.apply_late_requests(experiment.ledger, "")
        experiment.supervisor.rows = experiment.ledger.jobs()
    assert experiment.run() == {"a": "PAUSED"}
    assert spec_of(tmp_path).pause_at == 600


def test_a_job_that_the_user_has_paused_is_promoted_but_waits_for_the_user(tmp_path: Path) -> None:
    patient = Behaviour(after_s=NEVER, exits_within_s=1.0)
    experiment = Experiment(tmp_path, [rung_job()], lambda launch: patient)
    experiment.reporter.each_turn = once(
        lambda view: view.elapsed_s > 5, lambda: ask(tmp_path, ("pause", "a"), ("promote", "a=600"))
    )
    experiment.run()
    (row,) = experiment.ledger.jobs()
    assert (row.state, row.job.spec.pause_at) == (Paused(), 600)


@pytest.mark.parametrize(
    ("verbs", "state"),
    [
        ([], AT_RUNG),
        (["pause"], Paused()),
        (["pause", "resume"], AT_RUNG),
        (["pause", "resume", "pause"], Paused()),
        (["pause", "cancel"], Cancelled()),
    ],
)
def test_a_job_whose_time_is_over_and_that_has_come_to_its_rung_is_held_as_its_user_asks(
    verbs: Sequence[Verb], state: State, tmp_path: Path
) -> None:
    def late_at_its_rung(launch: Launch) -> Behaviour:
        to_rungs(launch)
        return Behaviour(after_s=NEVER, exits_within_s=5.0, returncode_asked=ExitCode.PAUSED)

    job = make_job("a", spec={"pause_at": 200}, timeout_s=10.0)
    experiment = Experiment(tmp_path, [job], late_at_its_rung)
    experiment.reporter.each_turn = once(
        lambda view: view.elapsed_s > 12, lambda: ask(tmp_path, *((verb, "a") for verb in verbs))
    )
    experiment.run()
    (row,) = experiment.ledger.jobs()
    assert row.state == state
    assert experiment.ledger.noted_verbs() == {}


def test_the_user_does_not_resume_but_may_cancel_what_waits_at_a_rung(tmp_path: Path) -> None:
    experiment = Experiment(tmp_path, [rung_job("a"), make_job("b")])
    experiment.ledger.set_state("a", AT_RUNG)
    experiment.ledger.set_state("b", Paused())
    experiment.ledger.commit()
    ask(tmp_path, ("resume", "a"))
    recovery.apply_late_requests(experiment.ledger, "")
    experiment.ledger.close()
    with pytest.raises(UsageError, match="a is PAUSED at a rung"):
        control.ask(tmp_path, ["a"], "resume")
    assert "queued 1 job (b) again" in control.ask(tmp_path, [], "resume")
    assert "cancelled 1 job" in control.stop(tmp_path, ["a"])
    assert {job_id: row["state"] for job_id, row in rows(tmp_path).items()} == {
        "a": "CANCELLED",
        "b": "PENDING",
    }


@pytest.mark.parametrize(
    ("pause_at", "noted", "expected"),
    [
        (200, [], AT_RUNG),
        (600, [], Pending()),
        (None, [], Pending()),
        (200, ["pause"], Paused()),
        (200, ["cancel"], Cancelled()),
    ],
)
def test_a_job_that_came_to_its_rung_as_its_supervisor_died_is_settled(
    pause_at: int | None, noted: Iterable[str], expected: State, tmp_path: Path
) -> None:
    """With a later ``pause_at`` it was promoted while it ran."""
    experiment = Experiment(tmp_path, [rung_job(pause_at=pause_at)])
    experiment.begin("a")
    for verb in noted:
        experiment.ledger.note(verb, "a")  # type: ignore[arg-type]
    experiment.ledger.commit()
    folder = experiment.paths.job("a").attempt(0)
    folder.root.mkdir(parents=True)
    folder.exit.write_text(
        ExitRecord(code=ExitCode.PAUSED, message="reached 256", env_steps=256).to_json()
    )
    (row,) = experiment.ledger.jobs()
    assert (
        recovery.settle(row, experiment.paths, experiment.ledger, SilentReporter()).state
        == expected
    )
    (row,) = experiment.ledger.jobs()
    assert (row.state, row.env_steps) == (expected, 256)


def test_promotions_that_no_supervisor_read_are_for_the_next(tmp_path: Path) -> None:
    experiment = Experiment(tmp_path, [rung_job(name) for name in "abcd"])
    experiment.ledger.set_state("a", replace(AT_RUNG, failures=2))
    attempt = experiment.begin("c")
    experiment.ledger.set_state("d", Cancelled())
    experiment.ledger.commit()
    ask(tmp_path, *(("promote", text) for text in ("a=600", "a=end", "b=600", "c=600", "d=600")))
    recovery.apply_late_requests(experiment.ledger, "")
    found = {row.job.job_id: (row.state, row.job.spec.pause_at) for row in experiment.ledger.jobs()}
    running = Running(attempt=attempt)
    assert found == {
        "a": (Pending(failures=2), None),
        "b": (Pending(), 600),
        "c": (running, 600),
        "d": (Cancelled(), 600),
    }


STOP, USER, GONE, LATE, LARGE = (
    AttemptOutcome(cause=cause, message="why")
    for cause in (Cause.INTERRUPTED, Cause.PAUSED, Cause.CANCELLED, Cause.TIMEOUT, Cause.MEMORY)
)


@pytest.mark.parametrize(
    ("end_reason", "held", "rung", "silent", "cause"),
    [
        (None, None, 200, False, Cause.RUNG),
        (STOP, None, 200, False, Cause.RUNG),  # it was there before it heard of the stop
        (LATE, None, 200, False, Cause.RUNG),
        (USER, USER, 200, False, Cause.PAUSED),
        (GONE, GONE, 200, False, Cause.CANCELLED),
        (LATE, USER, 200, False, Cause.PAUSED),  # it was paused when its time was over already
        (LARGE, GONE, 200, False, Cause.CANCELLED),
        (None, None, None, False, Cause.ERROR),  # some other program's exit code
        (None, None, 200, True, Cause.ERROR),
    ],
)
def test_only_an_attempt_that_was_to_pause_there_has_come_to_its_rung(
    end_reason: AttemptOutcome | None,
    held: AttemptOutcome | None,
    rung: int | None,
    silent: bool,
    cause: Cause,
) -> None:
    record = None if silent else ExitRecord(code=ExitCode.PAUSED, message="reached 256")
    outcome = retry_policy.judge(
        ExitCode.PAUSED,
        record,
        end_reason=end_reason,
        oom_killed=False,
        silent=silent,
        rung=rung,
        held=held,
    )
    assert outcome.cause is cause
    expected = {
        Cause.RUNG: replace(AT_RUNG, failures=1),
        Cause.PAUSED: Paused(failures=1),
        Cause.CANCELLED: Cancelled(),
    }
    state = retry_policy.next_state(outcome, failures=1, max_retries=0, now=0.0)
    assert state == expected[cause] if cause in expected else state.name == "FAILED"


def test_a_rung_decides_nothing_of_the_result() -> None:
    spec = make_spec("a", pause_at=200)
    assert spec.fingerprint() == make_spec("a").fingerprint()
    with pytest.raises(ValueError, match="pause_at"):
        WorkerSpec.from_json(replace(spec, pause_at=0).to_json())


def test_only_a_request_to_promote_is_read_as_one() -> None:
    assert Request(verb="promote", job_id="x-t00001-s0=50000").promotion == ("x-t00001-s0", 50_000)
    assert Request(verb="set", job_id="max_parallel=8").promotion is None


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("max_parallel=8", 8),
        ("max_parallel=0", 1),
        ("max_parallel=many", None),
        ("max_parallel=" + 5000 * "9", None),
        ("order=fair", None),
        (None, None),
    ],
)
def test_only_a_number_is_taken_for_max_parallel(asked: str | None, expected: int | None) -> None:
    assert Request(verb="set", job_id=asked).max_parallel == expected


def test_a_ledger_that_is_rebuilt_knows_which_jobs_wait_at_a_rung(tmp_path: Path) -> None:
    experiment = Experiment(tmp_path, [rung_job(), rung_job("b")], to_rungs)
    experiment.run()
    for job in experiment.jobs:
        experiment.paths.job(job.job_id).robot_hash.write_text("")
    known = recovery.states_of_summary(experiment.paths)
    jobs = [make_job("a"), make_job("b")]
    recorded = recovery.recorded_jobs(experiment.paths, jobs, known)
    experiment.ledger.close()
    experiment.paths.ledger.unlink()
    new = Experiment(tmp_path, [])
    recovery.rebuild(new.ledger, new.paths, recorded, known)
    assert [(row.state, row.job.spec.pause_at) for row in new.ledger.jobs()] == [(AT_RUNG, 200)] * 2


def test_while_others_run_a_stop_leaves_a_job_at_its_rung(tmp_path: Path) -> None:
    def behave(launch: Launch) -> Behaviour:
        return to_rungs(launch) if launch.job_id == "a" else FOREVER

    experiment = Experiment(tmp_path, [rung_job(), make_job("b")], behave)
    experiment.reporter.each_turn = once(
        lambda view: view.elapsed_s > 20, lambda: experiment.supervisor.request_stop("test")
    )
    assert experiment.run() == {"a": "PAUSED", "b": "PENDING"}
    assert retry_policy.exit_code(experiment.supervisor._jobs.states, interrupted=True) == 130
