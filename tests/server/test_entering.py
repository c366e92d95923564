"""Jobs get into an experiment by a request alone, as a whole or not at all; a job directory that fits
is taken over."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from fake_launcher import Behaviour
from supervisor_helpers import (
    FOREVER,
    HOLDER,
    Run,
    behaviours,
    edit_robot,
    ledgers_closed,  # noqa: F401 - a fixture
    make_job,
    staged_robot,
)

from orchestrator.core.errors import DiskFullError, Problem
from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.job import Job
from orchestrator.core.robot_hash import hash_of_copy
from orchestrator.examination.preflight import JobVerdict
from orchestrator.server import entering

INVALID = JobVerdict(problem=Problem(where="jobs[0].xml", message="no joints"))
TOO_LARGE = JobVerdict(problem=Problem(where="jobs[0]", message="too large"), lacks_room=True)


def begin(root: Path, *jobs: Job, behave: Any = lambda _: Behaviour(), **values: Any) -> Run:
    """A supervisor that waits for these jobs, which are all of the experiment."""
    run = Run(root, (), behave, awaits_jobs=True)
    run.first = run.add(*jobs, **{"whole": True, "source": "jobs.toml", **values})  # type: ignore[attr-defined]
    return run


def first_error(run: Run) -> str:
    return run.error(run.first)  # type: ignore[attr-defined, no-any-return]


def stopped(root: Path, *jobs: Job, after_s: float = 5.0) -> None:
    """A run of jobs that was stopped while they trained."""
    run = begin(root, *jobs, behave=lambda _: FOREVER)
    run.at(after_s, lambda: run.ask("stop", supervisor=HOLDER))
    run.go()
    run.end()


def longer(job: Job, total: int) -> Job:
    return job.with_spec(total_timesteps=total)


def test_nothing_is_launched_before_the_jobs_are_compared(tmp_path: Path) -> None:
    stopped(tmp_path, make_job("a"))
    run = Run(tmp_path, awaits_jobs=True)
    for _ in range(5):
        run.supervisor.turn()
    assert not run.order
    run.first = run.add(longer(make_job("a"), 2000), whole=True)  # type: ignore[attr-defined]
    assert run.go() == {"a": "PENDING"}
    assert "total_timesteps" in first_error(run)
    assert not run.order


@pytest.mark.parametrize(
    ("on_change", "total", "attempts"), [("restart", 500, 1), ("extend", 2000, 2)]
)
def test_a_changed_job_starts_over_or_is_extended_if_that_is_asked_for(
    tmp_path: Path, on_change: str, total: int, attempts: int
) -> None:
    stopped(tmp_path, make_job("a"), make_job("b"))
    run = begin(tmp_path, longer(make_job("a"), total), make_job("b"), on_change=on_change)
    assert run.go() == {"a": "SUCCEEDED", "b": "SUCCEEDED"}
    assert not first_error(run)
    assert len(run.attempts("a")) == attempts
    assert run.ledger.job_row("a").env_steps == total  # type: ignore[union-attr]


def test_a_finished_job_is_extended_and_not_held_by_what_was_asked_before(tmp_path: Path) -> None:
    run = begin(tmp_path, make_job("a"), behave=lambda _: Behaviour(after_s=3.0, exits_within_s=9))
    run.at(1.0, lambda: run.ask("cancel", "a"))
    assert run.go() == {"a": "SUCCEEDED"}
    run.end()
    assert begin(tmp_path, longer(make_job("a"), 2000), on_change="extend").go() == {
        "a": "SUCCEEDED"
    }


def test_a_job_has_changed_if_the_one_that_it_starts_from_has(tmp_path: Path) -> None:
    def jobs(total: int) -> list[Job]:
        start = {"after": ("a",), "init": "job:a"}
        return [
            longer(make_job("a"), total),
            make_job("b", spec=start),
            make_job("c", spec={"after": ("a",)}),
        ]

    run = begin(tmp_path, *jobs(1000))
    assert set(run.go().values()) == {"SUCCEEDED"}
    run.end()
    run = begin(tmp_path, *jobs(2000), on_change="extend")
    run.go()
    assert "init: job a" in first_error(run)
    run.end()
    run = begin(tmp_path, *jobs(2000), on_change="restart")
    assert set(run.go().values()) == {"SUCCEEDED"}
    assert run.order == ["a", "b"]


@pytest.mark.parametrize("fails", ["sync_trees", "write_whole", "sync_directory"])
def test_jobs_are_entered_as_a_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    stopped(tmp_path, make_job("a"), make_job("gone"))
    run = begin(tmp_path, make_job("a"), make_job("b"), text="[[jobs]]")
    before = run.ledger.jobs()

    def fail(*_: Any, **__: Any) -> None:
        raise DiskFullError("no space left on the disk")

    monkeypatch.setattr(entering, fails, fail)
    run.go()
    assert "no space" in first_error(run)
    assert run.ledger.jobs() == before
    assert not run.order
    monkeypatch.undo()
    run.end()
    states = begin(tmp_path, make_job("a"), make_job("b")).go()
    assert states == {"a": "SUCCEEDED", "b": "SUCCEEDED", "gone": "CANCELLED"}


def test_an_unexpected_error_refuses_the_jobs_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, [make_job("a")], lambda _: Behaviour(after_s=9.0))
    run.examiner.error = KeyError("odd")
    run.at(1.0, lambda: asked.append(run.add(make_job("b"))))
    asked: list[str] = []
    assert run.go() == {"a": "SUCCEEDED"}
    assert "odd" in run.error(asked[0])


def test_jobs_that_are_no_longer_declared_are_cancelled_until_they_are_again(
    tmp_path: Path,
) -> None:
    jobs = [make_job(name) for name in ("a", "b", "new")]
    stopped(tmp_path, *jobs[:2])
    run = begin(tmp_path, jobs[0], jobs[2])
    assert run.go() == {"a": "SUCCEEDED", "b": "CANCELLED", "new": "SUCCEEDED"}
    run.end()
    assert set(begin(tmp_path, *jobs).go().values()) == {"SUCCEEDED"}


def test_jobs_are_added_to_a_run_and_known_ones_are_left_alone(tmp_path: Path) -> None:
    run = Run(tmp_path, [make_job("a"), make_job("b")], lambda _: Behaviour(after_s=9.0), cpus=1)
    run.at(1.0, lambda: run.add(make_job("a"), make_job("b"), make_job("c")))
    run.at(2.0, lambda: run.add(longer(make_job("a"), 9000), make_job("d")))
    assert set(run.go().values()) == {"SUCCEEDED"}
    assert run.order == ["a", "b", "c"]
    assert [row.position for row in run.ledger.jobs()] == [0, 1, 2]


def test_more_retries_count_for_a_job_that_runs(tmp_path: Path) -> None:
    fails = Behaviour(after_s=9.0, returncode=-9)
    run = Run(tmp_path, [make_job("a")], behaviours({"a": [fails, Behaviour()]}))
    run.at(1.0, lambda: run.add(make_job("a", max_retries=1)))
    assert run.go() == {"a": "SUCCEEDED"}


def test_a_stop_during_an_examination_ends_it_and_leaves_nothing(tmp_path: Path) -> None:
    run = begin(tmp_path, make_job("a"))
    run.examiner.takes_turns = 10_000
    run.at(1.0, lambda: run.ask("stop", supervisor=HOLDER))
    run.at(1.0, lambda: run.ask("pause", "a"))
    assert run.go() == {}
    assert "stops" in first_error(run)


# -- invalid jobs


def test_an_invalid_robot_refuses_all_jobs_or_is_skipped(tmp_path: Path) -> None:
    for skip, states in ((False, {}), (True, {"bad": "FAILED", "good": "SUCCEEDED"})):
        run = begin(tmp_path, make_job("bad"), make_job("good"), skip_invalid=skip)
        run.examiner.verdicts = {"bad": INVALID}
        assert run.go() == states
        assert ("no joints" in first_error(run)) is not skip
        run.end()
    assert run.exit_code == 1


def test_one_job_of_a_client_that_holds_the_run_open_may_be_refused(tmp_path: Path) -> None:
    run = Run(tmp_path, awaits_jobs=True)
    run.supervisor.is_held_open = lambda: not run.supervisor.is_released
    run.examiner.verdicts = {"bad": INVALID}
    refused = run.add(make_job("bad"))
    run.at(3.0, lambda: run.add(make_job("good")))
    run.at(9.0, lambda: run.ask("release"))
    assert run.go() == {"good": "SUCCEEDED"}
    assert run.error(refused)


@pytest.mark.parametrize(("verb", "state"), [("pause", "PAUSED"), ("cancel", "CANCELLED")])
def test_what_its_user_holds_stays_held_whatever_becomes_of_its_declaration(
    tmp_path: Path, verb: str, state: str
) -> None:
    job = make_job("a")
    run = begin(tmp_path, job, make_job("b"))
    run.at(0.0, lambda: run.ask(verb, "a"))
    assert run.go() == {"a": state, "b": "SUCCEEDED"}
    run.end()
    run = begin(tmp_path, job, make_job("b"), skip_invalid=True)
    run.examiner.verdicts = {"a": INVALID}
    assert run.go()["a"] == "FAILED"
    run.end()
    run = begin(tmp_path, longer(job, 500), make_job("b"))
    assert run.go()["a"] == state
    run.ask("resume" if verb == "pause" else "retry", "a")
    run.end()
    assert begin(tmp_path, longer(job, 500), make_job("b")).go()["a"] == "SUCCEEDED"


def test_a_paused_job_that_starts_over_stays_paused_and_a_cancelled_one_does_not(
    tmp_path: Path,
) -> None:
    run = begin(tmp_path, make_job("a"), make_job("b"), behave=lambda _: FOREVER)
    run.at(3.0, lambda: run.ask("pause", "a"))
    run.at(3.0, lambda: run.ask("cancel", "b"))
    assert run.go() == {"a": "PAUSED", "b": "CANCELLED"}
    run.end()
    jobs = [longer(make_job(name), 500) for name in "ab"]
    assert begin(tmp_path, *jobs, on_change="restart").go() == {"a": "PAUSED", "b": "SUCCEEDED"}


# -- job directories


def test_an_altered_robot_is_put_back(tmp_path: Path) -> None:
    staged = staged_robot(tmp_path / "staged")
    verdict = JobVerdict(
        bundle=staged, xml="hopper.xml", robot_hash=hash_of_copy(staged, "hopper.xml")
    )
    job = make_job("a", spec={"xml": "hopper.xml"})
    for attempts in (1, 2):
        run = Run(tmp_path / "run", (), lambda _: FOREVER, awaits_jobs=True)
        run.examiner.verdicts = {"a": verdict}
        run.first = run.add(job, whole=True)  # type: ignore[attr-defined]
        run.at(5.0, lambda: run.ask("stop", supervisor=HOLDER))  # noqa: B023
        assert run.go() == {"a": "PENDING"}
        assert len(run.attempts("a")) == attempts
        assert run.paths.job("a").robot_altered.exists() is (attempts == 2)
        edit_robot(run.paths.job("a").robot)
        run.end()


def lose_ledger(run: Run) -> None:
    run.end()
    for path in run.paths.root.glob("ledger.sqlite3*"):
        path.unlink()


def test_without_its_ledger_a_run_directory_loses_nothing(tmp_path: Path) -> None:
    names = ["done", "bad", "paused", "cancelled", "rung", "begun", "waits"]
    jobs = [make_job(name, spec={"pause_at": 200 if name == "rung" else None}) for name in names]
    table: dict[str, Behaviour | list[Behaviour]] = {
        "bad": Behaviour(returncode=ExitCode.ERROR),
        "rung": Behaviour(returncode=ExitCode.PAUSED),
        "begun": FOREVER,
        "paused": FOREVER,
        "cancelled": FOREVER,
    }
    run = begin(tmp_path, *jobs[:-1], behave=behaviours(table))
    run.at(3.0, lambda: run.ask("pause", "paused"))
    run.at(5.0, lambda: run.ask("cancel", "cancelled"))
    run.at(9.0, lambda: run.ask("stop", supervisor=HOLDER))
    before = run.go()
    lose_ledger(run)
    again = begin(tmp_path, *jobs)
    assert again.go() == {**before, "begun": "SUCCEEDED", "waits": "SUCCEEDED"}
    assert before["rung"] == "PAUSED"
    assert sorted(again.order) == ["begun", "waits"]
    assert len(again.attempts("begun")) == 2
    again.ask("resume", "paused")
    again.end()
    assert begin(tmp_path, *jobs).go()["paused"] == "SUCCEEDED"


def test_a_directory_of_another_training_is_set_aside(tmp_path: Path) -> None:
    run = begin(tmp_path, make_job("a"))
    run.go()
    lose_ledger(run)
    again = begin(tmp_path, longer(make_job("a"), 500))
    assert again.go() == {"a": "SUCCEEDED"}
    assert again.order == ["a"]
    assert list(again.paths.replaced.iterdir())


def test_a_finished_job_that_would_be_too_large_now_stays_finished(tmp_path: Path) -> None:
    run = begin(tmp_path, make_job("a"))
    run.go()
    lose_ledger(run)
    again = begin(tmp_path, make_job("a"), skip_invalid=True)
    again.examiner.verdicts = {"a": TOO_LARGE}
    assert again.go() == {"a": "SUCCEEDED"}


def test_a_job_whose_results_are_gone_makes_them_again(tmp_path: Path) -> None:
    run = begin(tmp_path, make_job("a"))
    run.go()
    run.end()
    run.paths.job("a").model.unlink()
    again = begin(tmp_path, make_job("a"))
    assert again.go() == {"a": "SUCCEEDED"}
    assert again.order == ["a"]


def test_examined_robots_leave_nothing_behind(tmp_path: Path) -> None:
    run = Run(tmp_path, [make_job("a")], lambda _: Behaviour(after_s=9.0))
    for number in range(3):
        run.at(1.0, lambda number=number: run.add(make_job(f"b{number}")))  # type: ignore[misc]
    run.go()
    assert not list(run.paths.staging.iterdir())
    shutil.rmtree(run.paths.staging)
