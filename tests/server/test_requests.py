"""What requests do, with a supervisor and without one: each exactly once, or not at all."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from fake_launcher import NEVER, Behaviour
from hypothesis import strategies
from supervisor_helpers import FOREVER, HOLDER, Run, behaviours, ledgers_closed, make_job  # noqa: F401

from orchestrator.core.errors import RunDirError
from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.job import Attempt, Cause, Paused, Running
from orchestrator.executors.launcher import Launch
from orchestrator.experiment import run_directory
from orchestrator.ledger import summary
from orchestrator.server import offline
from orchestrator.server.ledger import ServerLedger
from orchestrator.server.requests import Answer, Request, RequestFolder


def left_running(root: Path, *names: str) -> Run:
    """A run directory whose supervisor was killed while these jobs ran."""
    run = Run(root, [make_job(name) for name in names])
    for name in names:
        attempt = Attempt(job_id=name, number=0, cpus=(), gpus=(), started_at=0.0)
        run.ledger.start_attempt(attempt, queue_s=0.0)
        run.ledger.set_state(name, Running(attempt=attempt))
        run.paths.job(name).attempt(0).root.mkdir(parents=True)
    return run


def held_open(run: Run) -> Run:
    """The run goes on until `release`."""
    run.supervisor.is_held_open = lambda: not run.supervisor.is_released
    return run


def test_running_and_waiting_jobs_are_paused_cancelled_and_queued_again(tmp_path: Path) -> None:
    times = {name: Behaviour(after_s=50.0) for name in "abcd"}
    run = held_open(Run(tmp_path, [make_job(name) for name in "abcd"], behaviours(times)))
    asked: list[str] = []

    def ask(verb: str, *jobs: str) -> Callable[[], None]:
        return lambda: asked.append(run.ask(verb, *jobs))

    run.at(1.0, ask("pause", "a", "c"))
    run.at(1.0, ask("cancel", "b"))
    run.at(10.0, lambda: seen.append(run.states()))
    seen: list[dict[str, str]] = []
    run.at(20.0, ask("resume", "a", "c"))
    run.at(20.0, ask("retry", "b"))
    run.at(300.0, ask("release"))
    assert set(run.go().values()) == {"SUCCEEDED"}
    assert seen == [{"a": "PAUSED", "b": "CANCELLED", "c": "PAUSED", "d": "RUNNING"}]
    assert not any(run.error(id_) for id_ in asked)
    assert not list(run.paths.requests.iterdir())


def test_what_is_asked_of_a_job_that_is_being_paused_counts_when_its_worker_has_left(
    tmp_path: Path,
) -> None:
    slow = Behaviour(after_s=50.0, exits_within_s=5.0)
    run = Run(tmp_path, [make_job("a"), make_job("b")], lambda _: slow)
    run.at(1.0, lambda: run.ask("pause", "a", "b"))
    run.at(3.0, lambda: run.ask("resume", "a"))
    run.at(3.0, lambda: run.ask("cancel", "b"))
    assert run.go() == {"a": "SUCCEEDED", "b": "CANCELLED"}


def test_a_paused_job_that_ends_in_a_stop_or_at_a_full_disk_stays_paused(tmp_path: Path) -> None:
    slow = Behaviour(after_s=NEVER, exits_within_s=5.0)
    run = Run(tmp_path, [make_job("a"), make_job("b")], lambda _: slow)
    run.at(1.0, lambda: run.ask("pause", "a"))
    run.at(1.0, lambda: run.ask("cancel", "b"))
    run.at(2.0, lambda: run.supervisor.request_stop("SIGINT"))
    assert run.go() == {"a": "PAUSED", "b": "CANCELLED"}


def test_a_job_that_ended_before_it_could_be_held_is_not_held_later(tmp_path: Path) -> None:
    run = Run(tmp_path, [make_job("a")], lambda _: Behaviour(after_s=5.0, exits_within_s=9.0))
    run.at(1.0, lambda: run.ask("cancel", "a"))
    assert run.go() == {"a": "SUCCEEDED"}
    assert run.ledger.wanted() == {"a": "run"}


@pytest.mark.parametrize(
    ("verb", "jobs", "args"),
    [
        ("pause", ["nobody"], {}),
        ("pause", ["a", "done"], {}),
        ("resume", ["a"], {}),
        ("resume", ["rung"], {}),
        ("retry", ["a"], {}),
        ("retry", ["invalid"], {}),
        ("set", [], {"max_parallel": 0}),
        ("set", [], {"max_parallel": "many"}),
        ("resume", ["rung"], {"pause_at": "far"}),
        ("report", [], {"kind": "ended"}),
    ],
)
def test_what_cannot_be_done_is_refused_and_changes_nothing(
    tmp_path: Path, verb: str, jobs: list[str], args: dict[str, Any]
) -> None:
    from orchestrator.core.job import Failed, Succeeded

    names = ["a", "done", "rung", "invalid"]
    run = Run(tmp_path, [make_job(name, spec={"pause_at": 500}) for name in names])
    run.ledger.set_state("a", Failed(cause=Cause.INVALID, message="")) if verb != "pause" else None
    run.ledger.set_state("done", Succeeded())
    run.ledger.set_state("rung", Paused(at_rung=True))
    run.ledger.set_state("invalid", Failed(cause=Cause.INVALID, message="no joints"))
    run.supervisor.jobs.load(run.ledger.jobs())
    before = (run.states(), run.ledger.wanted())
    id_ = run.ask(verb, *jobs, **args)
    run.supervisor.turn()
    assert run.error(id_)
    states = {**run.states(), "a": before[0]["a"]}  # it may be launched meanwhile
    assert (states, run.ledger.wanted()) == before


def test_a_job_that_the_supervisor_does_not_know_yet_is_waited_for(tmp_path: Path) -> None:
    run = Run(tmp_path, awaits_jobs=True)
    id_ = run.ask("pause", "a")
    run.examiner.takes_turns = 5
    run.add(make_job("a"), make_job("b"), whole=True)
    assert run.go() == {"a": "PAUSED", "b": "SUCCEEDED"}
    assert not run.error(id_)


def test_how_many_jobs_run_at_once_changes_while_they_run(tmp_path: Path) -> None:
    most: dict[int, int] = {}

    def behave(launch: Launch) -> Behaviour:
        at = int(run.fake.now() // 10)
        most[at] = max(most.get(at, 0), run.fake.running + 1)
        return Behaviour(after_s=2.0)

    jobs = [make_job(f"j{number}") for number in range(20)]
    run = Run(tmp_path, jobs, behave, cpus=4, max_parallel=2)
    run.at(11.0, lambda: run.ask("set", max_parallel=4))
    assert set(run.go().values()) == {"SUCCEEDED"}
    assert most[0] == 2
    assert most[1] == 4


# -- stops


@pytest.mark.parametrize(("supervisor", "states"), [(HOLDER, "PENDING"), ("other", "SUCCEEDED")])
def test_a_stop_is_for_the_supervisor_that_it_names(
    tmp_path: Path, supervisor: str, states: str
) -> None:
    run = Run(tmp_path, [make_job("a")], lambda _: Behaviour(after_s=9.0))
    run.at(3.0, lambda: run.ask("stop", supervisor=supervisor))
    assert run.go() == {"a": states}


def test_a_stop_now_kills_at_once(tmp_path: Path) -> None:
    deaf = Behaviour(after_s=NEVER, exits_within_s=NEVER)
    run = Run(tmp_path, [make_job("a")], lambda _: deaf, grace_s=100.0)
    run.at(3.0, lambda: run.ask("stop", supervisor=HOLDER, now=True))
    run.go()
    assert run.fake.now() < 5.0


# -- exactly once


def test_a_request_whose_file_outlived_a_kill_is_not_applied_again(tmp_path: Path) -> None:
    run = held_open(Run(tmp_path, [make_job("a")], lambda _: FOREVER))
    id_ = run.ask("cancel", "a", host="elsewhere")
    file = run.paths.requests / f"{id_}.json"
    content = file.read_bytes()
    run.supervisor.turn()
    run.supervisor.turn()
    assert not file.exists()
    run.supervisor.request_folder.take_answer(id_)  # as if the kill had come before it was written
    run.ledger.commit()
    run.supervisor.jobs.want(run.supervisor.jobs["a"], "run")
    run.supervisor.jobs.requeue(run.supervisor.jobs["a"], "retrying", "again")
    file.write_bytes(content)
    run.at(3.0, lambda: run.ask("stop"))
    assert run.go() == {"a": "PENDING"}
    assert not file.exists()
    assert run.supervisor.request_folder.take_answer(id_) == run.answer(id_)


@hypothesis.given(content=strategies.binary(max_size=200))
@hypothesis.example(content=b"")
@hypothesis.example(content=b'{"verb": "dance"}')
@hypothesis.example(content=b'{"verb": "add", "args": {"jobs": [{"job_id": 1}]}}')
@hypothesis.example(content=b'{"verb": "add", "args": {"jobs": 5}}')
@hypothesis.example(content=b'{"verb": "resume", "jobs": ["a"], "args": {"pause_at": []}}')
@hypothesis.example(content=b'{"verb": "stop", "supervisor": "another"}')
@hypothesis.settings(
    max_examples=10, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
def test_any_file_in_the_place_of_a_request_leaves_the_jobs_alone(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    run = Run(tmp_path_factory.mktemp("any"), [make_job("a")])
    (run.paths.requests / "1.json").write_bytes(content)
    assert run.go() == {"a": "SUCCEEDED"}
    assert not (run.paths.requests / "1.json").exists()
    run.end()


def test_a_request_that_nobody_may_read_or_remove_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, [make_job("a")])
    (run.paths.requests / "1.json").mkdir()  # neither readable nor removable as a file

    def refuse(self: RequestFolder, id_: str) -> Path:
        raise PermissionError

    monkeypatch.setattr(RequestFolder, "set_aside", refuse)
    assert run.go() == {"a": "SUCCEEDED"}
    assert len(run.events("warning")) == 1


def test_a_client_on_another_host_gets_its_answer_in_a_file(tmp_path: Path) -> None:
    run = Run(tmp_path, [make_job("a")], lambda _: Behaviour(after_s=9.0))
    id_ = run.ask("pause", "a", host="elsewhere")
    run.supervisor.turn()
    answer = run.supervisor.request_folder.take_answer(id_)
    assert answer is not None
    assert answer == run.answer(id_)


# -- without a supervisor


def test_the_same_verbs_work_on_a_stopped_run(tmp_path: Path) -> None:
    run = Run(tmp_path, [make_job(name) for name in "abc"])
    run.end()
    for verb, job, state in (
        ("pause", "a", "PAUSED"),
        ("cancel", "b", "CANCELLED"),
        ("resume", "a", "PENDING"),
        ("retry", "b", "PENDING"),
        ("pause", "c", "PAUSED"),
    ):
        assert not offline.apply(tmp_path, Request(verb=verb, jobs=[job])).error  # type: ignore[arg-type]
        rows, _ = summary.read(run.paths)
        assert {row["job_id"]: row["state"] for row in rows}[job] == state
    again = Run(tmp_path)
    assert again.go() == {"a": "SUCCEEDED", "b": "SUCCEEDED", "c": "PAUSED"}


def test_a_refused_request_changes_nothing_on_a_stopped_run(tmp_path: Path) -> None:
    run = Run(tmp_path, [make_job("a"), make_job("b")])
    run.end()
    for request in (
        Request(verb="pause", jobs=["a", "nobody"]),
        Request(verb="retry", jobs=["a"]),
        Request(verb="stop"),
        Request(verb="set", args={"max_parallel": 2}),
        Request(verb="add"),
    ):
        assert offline.apply(tmp_path, request).error
    again = Run(tmp_path)
    assert again.states() == {"a": "PENDING", "b": "PENDING"}
    assert again.ledger.wanted() == {"a": "run", "b": "run"}


def test_threads_of_stopped_runs_do_not_pile_up(tmp_path: Path) -> None:
    Run(tmp_path, [make_job("a")]).end()
    before = threading.active_count()
    for verb in ("pause", "resume"):
        offline.apply(tmp_path, Request(verb=verb, jobs=["a"]))  # type: ignore[arg-type]
    assert threading.active_count() == before


def test_what_a_killed_supervisor_was_asked_for_is_done_by_whoever_comes_next(
    tmp_path: Path,
) -> None:
    run = left_running(tmp_path, "a", "b", "c", "d")
    run.ledger.set_wanted("a", "pause")  # it was committed, and the worker still ran
    run.ledger.set_wanted("b", "cancel")
    run.ask("pause", "c")  # nobody has read it
    run.add(make_job("late"), supervisor="the killed one")
    run.ask("stop", supervisor="the killed one")
    run.add(make_job("e"), supervisor=None)  # for whoever can examine it
    run.end()
    assert not offline.apply(tmp_path, Request(verb="resume", jobs=["a"])).error
    states = {"a": "SUCCEEDED", "b": "CANCELLED", "c": "PAUSED", "d": "SUCCEEDED"}
    assert Run(tmp_path).go() == states | {"e": "SUCCEEDED"}


def test_a_request_that_was_left_for_a_killed_supervisor_does_not_end_the_next_run(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path, awaits_jobs=True)
    old = run.add(make_job("old"), supervisor="the killed one")
    new = run.add(make_job("new"), whole=True)
    assert run.go() == {"new": "SUCCEEDED"}
    assert run.error(old)
    assert not run.error(new)


def test_a_run_directory_that_is_held_is_left_alone(tmp_path: Path) -> None:
    Run(tmp_path, [make_job("a")]).end()
    with run_directory.claim(tmp_path), pytest.raises(RunDirError):
        offline.apply(tmp_path, Request(verb="pause", jobs=["a"]))


# -- rungs


def rung_job(name: str, pause_at: int | None = 200) -> Any:
    return make_job(name, spec={"pause_at": pause_at})


def to_rungs(launch: Launch) -> Behaviour:
    pauses = json.loads((launch.job_dir / "spec.json").read_text()).get("pause_at") is not None
    return Behaviour(after_s=10.0, returncode=ExitCode.PAUSED if pauses else ExitCode.SUCCEEDED)


def promote(run: Run, *jobs: str, pause_at: int | None = None) -> str:
    return run.ask("resume", *jobs, pause_at=pause_at)


def test_jobs_wait_at_their_rungs_until_they_are_promoted(tmp_path: Path) -> None:
    run = Run(tmp_path, [rung_job("a"), rung_job("b"), make_job("c")], to_rungs, cpus=3)
    assert run.go() == {"a": "PAUSED", "b": "PAUSED", "c": "SUCCEEDED"}
    assert run.ledger.job_row("a").env_steps == 200  # type: ignore[union-attr]
    promote(run, "a", pause_at=600)
    promote(run, "b")
    run.end()
    again = Run(tmp_path, (), to_rungs)
    assert again.go() == {"a": "PAUSED", "b": "SUCCEEDED", "c": "SUCCEEDED"}
    assert again.ledger.job_row("a").env_steps == 600  # type: ignore[union-attr]


def test_one_that_is_promoted_on_the_way_to_its_rung_does_not_wait_there(tmp_path: Path) -> None:
    run = Run(tmp_path, [rung_job("a")], to_rungs)
    run.at(5.0, lambda: promote(run, "a"))
    assert run.go() == {"a": "SUCCEEDED"}


def test_the_user_may_cancel_what_waits_at_a_rung_and_pause_what_comes_there(
    tmp_path: Path,
) -> None:
    run = held_open(Run(tmp_path, [rung_job("a"), rung_job("b")], to_rungs))
    run.at(5.0, lambda: run.ask("pause", "b"))
    run.at(20.0, lambda: run.ask("cancel", "a"))
    run.at(30.0, lambda: promote(run, "b"))  # held by its user, it stays
    run.at(40.0, lambda: seen.append(run.states()["b"]))
    seen: list[str] = []
    run.at(50.0, lambda: run.ask("resume", "b"))
    run.at(90.0, lambda: run.ask("release"))
    assert run.go() == {"a": "CANCELLED", "b": "SUCCEEDED"}
    assert seen == ["PAUSED"]


def test_promotions_reach_all_jobs_also_beside_one_that_has_failed(tmp_path: Path) -> None:
    table: dict[str, Behaviour | list[Behaviour]] = {"bad": Behaviour(returncode=ExitCode.ERROR)}

    def behave(launch: Launch) -> Behaviour:
        return behaviours(table)(launch) if launch.job_id == "bad" else to_rungs(launch)

    run = Run(tmp_path, [rung_job("bad"), rung_job("good")], behave)
    assert run.go() == {"bad": "FAILED", "good": "PAUSED"}
    promote(run, "bad", "good")
    run.end()
    again = Run(tmp_path, (), to_rungs)
    assert again.go() == {"bad": "FAILED", "good": "SUCCEEDED"}


def test_answers_are_part_of_the_stream(tmp_path: Path) -> None:
    run = Run(tmp_path, [make_job("a")])
    id_ = run.ask("pause", "a")
    run.go()
    assert [event.facts["request"] for event in run.events("answer")] == [id_]
    assert isinstance(ServerLedger.open(run.paths.ledger).answer(id_), Answer)  # type: ignore[attr-defined]
