"""The exit record that a worker leaves is taken over whatever it holds, and is no danger to other
jobs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from fake_launcher import Behaviour
from supervisor_helpers import Run, ledgers_closed, make_job, rows  # noqa: F401 - a fixture

from orchestrator.core.exit_record import ExitRecord
from orchestrator.core.job import Cause
from orchestrator.executors.launcher import Launch


def test_a_message_that_is_not_utf_8_fails_its_job_alone(tmp_path: Path) -> None:
    message, trace = os.fsdecode(b"cannot read /dM\xfcl"), os.fsdecode(b"at /dM\xfcl")

    def behave(launch: Launch) -> Behaviour:
        if launch.job_id == "good":
            return Behaviour(after_s=5.0)
        record = {"code": 1, "message": message, "traceback": trace, "learner_reason": message}
        (launch.job_dir / "attempts/0/exit.json").write_text(json.dumps(record))
        return Behaviour(returncode=1)

    experiment = Run(tmp_path, [make_job("bad"), make_job("good")], behave)
    assert experiment.go() == {"bad": "FAILED", "good": "SUCCEEDED"}
    row = rows(tmp_path)["bad"]
    assert (row["message"], row["traceback"]) == (r"cannot read /dM\udcfcl", r"at /dM\udcfcl")


def test_the_workers_own_last_word_is_taken_over(tmp_path: Path) -> None:
    def behave(launch: Launch) -> Behaviour:
        record = ExitRecord(
            code=1, message="ValueError: no", env_steps=77, ep_rew_mean=1.5, learner="sb3"
        )
        (launch.job_dir / "attempts/0/exit.json").write_text(record.to_json())
        return Behaviour(returncode=1)

    experiment = Run(tmp_path, [make_job("a")], behave)
    experiment.go()
    row = rows(tmp_path)["a"]
    assert (row["message"], row["env_steps"], row["ep_rew_mean"], row["learner"]) == (
        "ValueError: no",
        77,
        1.5,
        "sb3",
    )


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", '{"code": "x", "message": ""}', '{"message": "y"}'),
        pytest.param("[" * 100_000, id="deep"),
        pytest.param(json.dumps({"code": 1, "message": "x" * 2**20}), id="larger than 1 MiB"),
    ],
)
def test_an_unreadable_last_word_is_told_and_the_exit_code_counts(
    tmp_path: Path, text: str
) -> None:
    def behave(launch: Launch) -> Behaviour:
        (launch.job_dir / "attempts/0/exit.json").write_text(text)
        return Behaviour(returncode=3)

    experiment = Run(tmp_path, [make_job("a")], behave)
    assert experiment.go() == {"a": "FAILED"}
    assert "warning" in experiment.kinds("a")
    assert "exit code 3" in rows(tmp_path)["a"]["message"]


@pytest.mark.parametrize(
    ("code", "state", "cause"), [(None, "CANCELLED", Cause.SUPERVISOR_DIED), (0, "SUCCEEDED", None)]
)
def test_a_job_that_ran_when_its_supervisor_died_is_settled_though_it_is_no_longer_declared(
    code: int | None, state: str, cause: Cause | None, tmp_path: Path
) -> None:
    experiment = Run(tmp_path, [make_job("a"), make_job("gone")])
    experiment.begin("gone")
    if code is not None:
        exit_json = experiment.paths.job("gone").attempt(0).exit
        exit_json.parent.mkdir(parents=True)
        exit_json.write_text(
            ExitRecord(code=code, message="", env_steps=1000, wall_s=5.0).to_json()
        )
        for result in (
            experiment.paths.job("gone").model,
            experiment.paths.job("gone").vecnormalize,
        ):
            result.write_bytes(b"")
    assert not experiment.enter([experiment.jobs[0]], {}).error
    (recorded,) = experiment.ledger.attempts()
    assert recorded["cause"] == cause
    assert {row.job.job_id: row.state.name for row in experiment.ledger.jobs()} == {
        "a": "PENDING",
        "gone": state,
    }


def test_the_speed_of_an_attempt_is_the_mean_of_its_training() -> None:
    record = ExitRecord(
        code=0,
        message="",
        env_steps=151_552,
        resumed_from=51_552,
        first_step_s=5.0,
        eval_s=10.0,
        wall_s=215.0,
    )
    assert record.env_steps_per_s == 500.0
    assert (
        ExitRecord(code=0, message="", env_steps=100, resumed_from=100, wall_s=9.0).env_steps_per_s
        is None
    )
