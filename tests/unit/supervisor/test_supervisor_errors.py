"""No error of one job, of a reporter, or of a ledger that can be waited for, ends another job; any
other drains."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Never

import pytest
from supervisor_helpers import (
    FOREVER,
    Experiment,
    KilledError,
    ask,
    behaviours,
    ledgers_closed,  # noqa: F401 - a fixture
    make_job,
    names,
    once,
    rows,
)

from orchestrator.core.errors import LedgerBusyError, LedgerError, SupervisorError
from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.exit_record import ExitRecord
from orchestrator.core.messages import Progress
from orchestrator.executors.base import Event, Handle, Launch
from orchestrator.executors.fake import NEVER, Behaviour, FakeExecutor
from orchestrator.experiment.resuming import recovery
from orchestrator.ledger import Ledger, Request
from orchestrator.ledger.requests import RequestFiles
from orchestrator.supervisor import supervisor
from orchestrator.supervisor.events import View
from orchestrator.supervisor.recorder import Recorder


class Lock:
    """Another program that has the ledger locked, such as a database browser or a suspended
    process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None

    @property
    def is_held(self) -> bool:
        return self._connection is not None

    def take(self) -> None:
        self._connection = sqlite3.connect(self._path, isolation_level=None)
        self._connection.execute("BEGIN IMMEDIATE")

    def release(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lock]:
    monkeypatch.setattr(supervisor, "LOCK_WAIT_S", 0.0)
    lock = Lock(tmp_path / "ledger.sqlite3")
    yield lock
    lock.release()


def states(root: Path) -> set[str]:
    other = Ledger.open(root / "ledger.sqlite3", read_only=True)
    with contextlib.closing(other):
        return {row.state.name for row in other.jobs()}


def warnings(experiment: Experiment) -> list[str]:
    return [message for kind, message, _ in experiment.reporter.events if kind == "warning"]


def when_waiting(experiment: Experiment, action: Callable[[], None]) -> None:
    """Call ``action`` at every report that the supervisor waits."""
    record = experiment.reporter.event

    def event(kind: str, message: str, **facts: Any) -> None:
        record(kind, message, **facts)
        if kind == "waiting":
            action()

    experiment.reporter.event = event  # type: ignore[method-assign]


# -- a ledger that is locked


def test_jobs_start_and_end_while_the_ledger_is_locked_and_all_of_it_is_recorded_afterwards(
    tmp_path: Path, lock: Lock
) -> None:
    progress = Progress(phase="training", env_steps=640)
    talker = Behaviour(after_s=2.0, progress_every_s=0.5, progress=progress)
    experiment = Experiment(
        tmp_path, [make_job(name, max_retries=1) for name in names(8)], lambda launch: talker
    )
    ended_while_locked: set[str] = set()

    def each_turn(view: View) -> None:
        if lock.is_held:
            ended_while_locked.update(attempt.job.job_id for attempt, _ in view.ended)
        if 1.0 < view.elapsed_s < 5.0 and not lock.is_held:
            lock.take()
        elif view.elapsed_s >= 5.0:
            lock.release()

    experiment.reporter.each_turn = each_turn
    assert set(experiment.run().values()) == {"SUCCEEDED"}
    assert len(ended_while_locked) >= 4
    assert experiment.fake.time_s == pytest.approx(8.0)
    assert len(warnings(experiment)) == 2
    experiment.ledger.close()
    assert states(tmp_path) == {"SUCCEEDED"}
    assert {
        (row["attempts"], row["env_steps"], row["wall_s"]) for row in rows(tmp_path).values()
    } == {(1, 640, 2.0)}


def test_limits_and_stops_apply_while_the_ledger_is_locked(tmp_path: Path, lock: Lock) -> None:
    table = {"late": Behaviour(after_s=NEVER, exits_within_s=0.0)}
    jobs = [make_job("late", timeout_s=20.0), make_job("long")]
    experiment = Experiment(tmp_path, jobs, lambda launch: table.get(launch.job_id, FOREVER))

    def each_turn(view: View) -> None:
        if view.elapsed_s >= 1.0 and not lock.is_held:
            lock.take()
        if view.counts["FAILED"]:
            experiment.supervisor.request_stop("SIGINT")
        if not view.active:
            lock.release()

    experiment.reporter.each_turn = each_turn
    assert experiment.run() == {"late": "FAILED", "long": "PENDING"}
    assert experiment.fake.time_s < 22.0


def test_a_ledger_that_cannot_be_read_at_the_start_ends_the_run_before_any_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its own error, as at any moment before: it is none that nobody expects."""
    experiment = Experiment(tmp_path, [make_job("a")], lambda launch: FOREVER)

    def fail(_: Ledger) -> Never:
        raise LedgerBusyError("locked by another process")

    with monkeypatch.context() as while_locked:
        while_locked.setattr(Ledger, "losses", fail)
        with pytest.raises(LedgerBusyError, match="locked by another process"):
            experiment.run()
    assert experiment.fake.launches == []
    assert not experiment.paths.error_log.exists()


def test_only_the_latest_progress_is_kept_for_a_ledger_that_stays_locked(
    tmp_path: Path, lock: Lock
) -> None:
    talker = Behaviour(
        after_s=500.0,
        progress_every_s=1.0,
        progress=lambda s: Progress(phase="training", iteration=int(s), env_steps=int(s)),
    )
    experiment = Experiment(tmp_path, [make_job("a")], lambda launch: talker)
    kept: list[int] = []

    def each_turn(view: View) -> None:
        if view.elapsed_s >= 1.0 and not lock.is_held:
            lock.take()
        kept.append(len(experiment.ledger._kept))
        if view.elapsed_s >= 400.0:
            lock.release()

    experiment.reporter.each_turn = each_turn
    assert experiment.run() == {"a": "SUCCEEDED"}
    assert 0 < max(kept) < 10
    assert rows(tmp_path)["a"]["env_steps"] == 499


def test_requests_that_wait_for_a_lock_are_taken_once(tmp_path: Path, lock: Lock) -> None:
    from supervisor_helpers import ask

    jobs = [make_job("bad"), make_job("long")]
    table = {"bad": Behaviour(returncode=1), "long": Behaviour(after_s=20.0)}
    experiment = Experiment(tmp_path, jobs, behaviours(table))

    def each_turn(view: View) -> None:
        if view.counts["FAILED"] and len(experiment.fake.launches) == 2 and view.elapsed_s < 3.0:
            ask(tmp_path, ("retry", "bad"))
            lock.take()
        elif view.elapsed_s > 10.0:
            lock.release()

    experiment.reporter.each_turn = each_turn
    assert experiment.run() == {"bad": "FAILED", "long": "SUCCEEDED"}
    assert experiment.order == ["bad", "long", "bad"]


def test_at_the_end_the_lock_is_waited_for(tmp_path: Path, lock: Lock) -> None:
    experiment = Experiment(tmp_path, [make_job("a")])
    experiment.reporter.each_turn = once(lambda view: bool(view.active), lock.take)

    def release() -> None:
        assert states(tmp_path) != {"SUCCEEDED"}
        lock.release()

    when_waiting(experiment, release)
    assert experiment.run() == {"a": "SUCCEEDED"}
    experiment.ledger.close()
    assert states(tmp_path) == {"SUCCEEDED"}


@pytest.mark.parametrize("end", ["stop", "until"])
def test_a_stop_or_the_time_of_until_ends_the_wait_for_a_lock_and_leaves_the_ledger_to_the_next_run(
    end: str, tmp_path: Path, lock: Lock
) -> None:
    experiment = Experiment(tmp_path, [make_job("a")])
    experiment.reporter.each_turn = once(lambda view: bool(view.active), lock.take)

    def end_the_wait() -> None:
        if end == "stop":
            experiment.supervisor.request_stop("SIGINT")
        else:
            experiment.supervisor.until = time.time()

    when_waiting(experiment, end_the_wait)
    with pytest.raises(SupervisorError, match=r"locked.*same command"):
        experiment.run()
    experiment.ledger.abandon()
    assert states(tmp_path) <= {"PENDING", "RUNNING"}


@pytest.mark.parametrize("how", ["rows", "files"])
def test_requests_that_wait_for_a_locked_ledger_outlive_a_killed_supervisor_and_the_others_are_not_repeated(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = Behaviour(returncode=ExitCode.ERROR)
    experiment = Experiment(
        tmp_path, [make_job("a"), make_job("b")], behaviours({"a": fails, "b": FOREVER})
    )
    retry, late = Request(verb="retry", job_id="a"), Request(verb="cancel", job_id="b")
    requests = [retry, Request(verb="add", job_id=""), late]

    def locked(*_: object) -> None:
        raise LedgerBusyError("locked")

    def make_requests() -> None:
        monkeypatch.setattr(Ledger, "new_job_ids", locked)
        if how == "files":
            RequestFiles(experiment.paths.requests).add(requests)
        else:
            ask(tmp_path, *((request.verb, request.job_id) for request in requests))

    def each_turn(view: View) -> None:
        asks(view)
        if view.elapsed_s > 9:
            raise KilledError

    asks = once(lambda view: view.elapsed_s > 3, make_requests)
    experiment.reporter.each_turn = each_turn
    with pytest.raises(KilledError):
        experiment.run()
    assert experiment.reporter.kinds("a").count("failed") == 2, (
        "it was retried, and has failed again"
    )
    experiment.ledger.abandon()
    again = Ledger.open(experiment.paths.ledger)
    recovery.apply_late_requests(again, "next")
    assert again.noted_verbs() == {"b": "cancel"}
    assert {row.job_id: row.state.name for row in again.jobs()} == {"a": "FAILED", "b": "RUNNING"}
    assert Ledger.open(experiment.paths.ledger).take_requests() == []


def test_what_a_locked_ledger_refused_is_written_in_order_by_a_later_commit(
    tmp_path: Path, lock: Lock
) -> None:
    experiment = Experiment(tmp_path, [make_job("a")])
    ledger = experiment.ledger
    ledger.wait_for_lock(0.0)
    lock.take()
    ledger.set_progress([("a", 10, None, None, None)])
    with pytest.raises(LedgerBusyError, match="locked by another process"):
        ledger.commit()
    ledger.set_progress([("a", 20, None, None, None)])
    with pytest.raises(LedgerBusyError):
        ledger.summary()
    lock.release()
    ledger.commit()
    other = Ledger.open(tmp_path / "ledger.sqlite3", read_only=True)
    assert other.summary()[0]["env_steps"] == 20


# -- an error of one job


def test_an_exit_that_cannot_be_handled_fails_its_job_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Recorder.exit_record

    def broken(self: Recorder, handle: Handle, rank: int = 0) -> ExitRecord | None:
        if handle.job_id == "j0001":
            raise ValueError("nobody thought of this")
        return read(self, handle, rank)

    monkeypatch.setattr(Recorder, "exit_record", broken)
    experiment = Experiment(tmp_path, [make_job(name) for name in names(4)])
    assert experiment.run() == dict.fromkeys(names(4), "SUCCEEDED") | {"j0001": "FAILED"}
    assert "nobody thought of this" in rows(tmp_path)["j0001"]["message"]
    assert "Traceback" in (tmp_path / "supervisor-error.log").read_text()


def test_progress_that_cannot_be_handled_kills_its_attempt_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Recorder.note_progress

    def broken(self: Recorder, attempt: Any) -> None:
        if attempt.job.job_id == "j0001":
            raise KeyError("nobody thought of this")
        read(self, attempt)

    monkeypatch.setattr(Recorder, "note_progress", broken)
    talker = Behaviour(after_s=9.0, progress_every_s=1.0, exits_within_s=NEVER)
    experiment = Experiment(tmp_path, [make_job(name) for name in names(2)], lambda launch: talker)
    assert experiment.run() == {"j0000": "SUCCEEDED", "j0001": "FAILED"}


@pytest.mark.parametrize(
    "error", [ValueError("nobody thought of this"), PermissionError(13, "Permission denied")]
)
def test_a_launch_that_raises_anything_fails_its_job_alone(
    tmp_path: Path, error: Exception
) -> None:
    def behave(launch: Launch) -> Behaviour:
        if launch.job_id == "j0001":
            raise error
        return Behaviour()

    experiment = Experiment(tmp_path, [make_job(name) for name in names(4)], behave, cpus=1)
    assert experiment.run() == dict.fromkeys(names(4), "SUCCEEDED") | {"j0001": "FAILED"}


def test_a_reporter_with_a_bug_ends_nothing(tmp_path: Path) -> None:
    experiment = Experiment(tmp_path, [make_job(name) for name in names(3)])
    calls: list[str] = []

    def event(kind: str, *_: object, **__: object) -> None:
        calls.append(kind)
        raise KeyError(kind)

    experiment.reporter.event = event  # type: ignore[method-assign]
    experiment.reporter.tick = lambda view: {}[view]  # type: ignore[method-assign]
    assert set(experiment.run().values()) == {"SUCCEEDED"}
    assert calls.count("succeeded") == 3


# -- any other error


def test_after_an_error_of_the_loop_workers_save_and_exit_and_the_end_is_recorded(
    tmp_path: Path,
) -> None:
    class Once(FakeExecutor):
        killed = False

        def poll(self, timeout_s: float) -> Sequence[Event]:
            if self.time_s > 5 and not experiment.supervisor._termination.stops_requested:
                raise KeyError("nobody thought of this")
            return FakeExecutor.poll(self, timeout_s)

        def cancel(self, handle: Handle, *, kill: bool) -> None:
            Once.killed |= kill
            FakeExecutor.cancel(self, handle, kill=kill)

    slow = Behaviour(after_s=NEVER, exits_within_s=3.0)
    fake = Once(behave=lambda launch: slow)
    experiment = Experiment(
        tmp_path, [make_job(name) for name in names(2)], executor=fake, now=fake.now
    )
    with pytest.raises(
        SupervisorError, match=r"nobody thought of this.*supervisor-error\.log.*same command"
    ):
        experiment.run()
    assert not Once.killed
    assert fake.time_s == pytest.approx(8.0, abs=1.0)
    experiment.ledger.close()
    assert states(tmp_path) == {"PENDING"}
    assert "KeyError: 'nobody thought of this'" in (tmp_path / "supervisor-error.log").read_text()


def test_a_ledger_that_is_damaged_meanwhile_lets_workers_save_and_exit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Behaviour(after_s=NEVER, exits_within_s=3.0)
    experiment = Experiment(tmp_path, [make_job(name) for name in names(2)], lambda launch: slow)

    def damaged(self: Ledger) -> None:
        raise LedgerError(
            "ledger.sqlite3: the ledger is damaged; `run --rebuild-ledger` makes a new one"
        )

    experiment.reporter.each_turn = once(
        lambda view: view.elapsed_s > 2, lambda: monkeypatch.setattr(Ledger, "commit", damaged)
    )
    with pytest.raises(SupervisorError, match="rebuild-ledger"):
        experiment.run()
    monkeypatch.undo()
    assert experiment.fake.running == 0
    assert experiment.fake.time_s == pytest.approx(5.0, abs=1.0)


def test_workers_that_do_not_exit_after_an_error_are_killed_when_the_grace_is_over(
    tmp_path: Path,
) -> None:
    class Once(FakeExecutor):
        def poll(self, timeout_s: float) -> Sequence[Event]:
            if self.time_s > 5 and not experiment.supervisor._termination.stops_requested:
                raise KeyError("nobody thought of this")
            return FakeExecutor.poll(self, timeout_s)

    fake = Once(behave=lambda launch: Behaviour(after_s=NEVER, exits_within_s=NEVER))
    experiment = Experiment(tmp_path, [make_job("a")], executor=fake, now=fake.now, grace_s=4.0)
    with pytest.raises(SupervisorError):
        experiment.run()
    assert fake.time_s == pytest.approx(9.0, abs=1.0)


def test_what_makes_the_jobs_may_end_a_run_by_its_error_also_while_that_stops(
    tmp_path: Path,
) -> None:
    is_broken = False

    def may_add_jobs() -> bool:
        if is_broken:
            raise ValueError("the knee fell off")
        return True

    stubborn = Behaviour(after_s=NEVER, exits_within_s=10.0)
    experiment = Experiment(
        tmp_path, [make_job("a")], lambda launch: stubborn, may_add_jobs=may_add_jobs
    )

    def each_turn(view: View) -> None:
        nonlocal is_broken
        if view.elapsed_s >= 1.0 and not experiment.supervisor.is_stopping:
            experiment.supervisor.request_stop("SIGINT")
        is_broken = view.elapsed_s >= 3.0

    experiment.reporter.each_turn = each_turn
    with pytest.raises(SupervisorError, match="the knee fell off"):
        experiment.run()
    assert experiment.ledger.jobs()[0].state.name == "PENDING"
    log = experiment.paths.error_log.read_text()
    assert log.count("the knee fell off") == 2, "the line of code, and the error"
