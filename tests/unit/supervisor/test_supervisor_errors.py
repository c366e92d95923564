"""No error of one job, of a reporter, or of a ledger that can be waited for, ends another job; any
other drains."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from supervisor_helpers import (
    Experiment,
    ledgers_closed,  # noqa: F401 - a fixture
    make_job,
    names,
    once,
    rows,
)

from orchestrator.core.errors import LedgerError, SupervisorError
from orchestrator.core.exit_record import ExitRecord
from orchestrator.core.messages import Progress
from orchestrator.executors.base import Event, Handle
from orchestrator.executors.fake import NEVER, Behaviour, FakeExecutor
from orchestrator.ledger import Ledger
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
    with pytest.raises(SupervisorError):
        experiment.run()
    experiment.ledger.abandon()
    assert states(tmp_path) <= {"PENDING", "RUNNING"}


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
    assert "Traceback" in (tmp_path / "supervisor-error.log").read_text()


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
    with pytest.raises(SupervisorError):
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
