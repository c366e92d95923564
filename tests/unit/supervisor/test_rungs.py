"""Jobs that pause at a rung, and are promoted: what the supervisor, the next one, and the user's
commands do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from supervisor_helpers import (
    Experiment,
    ask,
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
from orchestrator.executors.fake import Behaviour
from orchestrator.experiment.from_outside import control, run_snapshot
from orchestrator.experiment.resuming import recovery
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


def test_the_user_does_not_resume_but_may_cancel_what_waits_at_a_rung(tmp_path: Path) -> None:
    experiment = Experiment(tmp_path, [rung_job("a"), make_job("b")])
    experiment.ledger.set_state("a", AT_RUNG)
    experiment.ledger.set_state("b", Paused())
    experiment.ledger.commit()
    ask(tmp_path, ("resume", "a"))
    recovery.apply_late_requests(experiment.ledger, "")
    experiment.ledger.close()
    with pytest.raises(UsageError):
        control.ask(tmp_path, ["a"], "resume")
    control.ask(tmp_path, [], "resume")
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
