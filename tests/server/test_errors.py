"""Errors in the supervisor: those of one job end that job, any other lets all workers save and exit."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from fake_launcher import Behaviour
from hypothesis import strategies
from supervisor_helpers import FOREVER, Run, behaviours, ledgers_closed, make_job  # noqa: F401

from orchestrator.core.errors import (
    ClusterLostError,
    DiskFullError,
    LedgerBusyError,
    LedgerDamagedError,
    SupervisorError,
)
from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.job import Cause
from orchestrator.core.messages import Progress
from orchestrator.executors.launcher import Launch
from orchestrator.executors.slotted import SlottedExecutor
from orchestrator.ledger import Ledger
from orchestrator.server import job_directory, messages
from orchestrator.server.attempts import Attempts
from orchestrator.server.entering import Entering
from orchestrator.server.jobs import JobTable
from orchestrator.server.ledger import ServerLedger
from orchestrator.server.requests import RequestFolder


def raise_at(
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    is_time: Callable[[], bool],
    error: Exception,
    times: int = 1,
) -> list[int]:
    """Let a function raise, once ``is_time``. The list has as many entries as it has raised."""
    function = getattr(owner, name)
    raised: list[int] = []

    def replaced(*args: Any, **values: Any) -> Any:
        if len(raised) < times and is_time():
            raised.append(1)
            raise error
        return function(*args, **values)

    monkeypatch.setattr(owner, name, replaced)
    return raised


POINTS: list[tuple[Any, str]] = [
    (Ledger, "commit"),
    (Ledger, "start_attempt"),
    (Ledger, "place_attempt"),
    (Ledger, "set_progress"),
    (ServerLedger, "record_event"),
    (ServerLedger, "record_answer"),
    (RequestFolder, "new"),
    (SlottedExecutor, "poll"),
    (SlottedExecutor, "reserve"),
    (Attempts, "enforce_limits"),
    (JobTable, "due"),
    (Entering, "take_examined"),
]


@pytest.mark.parametrize(("owner", "name"), [pytest.param(*point, id=point[1]) for point in POINTS])
@pytest.mark.parametrize("error", [RuntimeError("a mistake"), LedgerBusyError("locked")])
def test_after_an_error_workers_save_and_exit_and_the_next_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, error: Exception
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    worker = Behaviour(after_s=4.0, progress_every_s=1.0, exits_within_s=2.0)
    jobs = [make_job(f"j{number}") for number in range(6)]
    run = Run(tmp_path, jobs, lambda _: worker)
    run.at(5.0, lambda: run.ask("pause", "j5"))
    raised = raise_at(monkeypatch, owner, name, lambda: run.fake.now() > 4.5, error)
    failed: set[str] = set()
    try:
        run.go()
    except SupervisorError:
        assert run.fake.running == 0
    else:  # it concerned single jobs
        failed = {job_id for job_id, state in run.states().items() if state == "FAILED"}
        assert len(failed) <= 1
    assert raised
    run.end()
    again = Run(tmp_path, (), lambda _: worker)
    states = again.go()
    assert {states.pop("j5")} <= {"PAUSED", "SUCCEEDED"}
    assert {job_id for job_id, state in states.items() if state != "SUCCEEDED"} == failed
    for number in range(6):
        numbers = [row["number"] for row in again.attempts(f"j{number}")]
        assert numbers == list(range(len(numbers)))


@pytest.mark.parametrize("error", [DiskFullError("full"), LedgerDamagedError("damaged")])
def test_an_error_that_stays_ends_the_run_within_the_grace_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    slept: list[float] = []
    clock = iter(range(10_000))
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    deaf = Behaviour(after_s=1e9, exits_within_s=1e9)
    run = Run(tmp_path, [make_job("a")], lambda _: deaf, grace_s=10.0)
    raise_at(monkeypatch, Ledger, "commit", lambda: run.fake.now() > 3.0, error, times=1000)
    with pytest.raises(type(error) if isinstance(error, DiskFullError) else SupervisorError):
        run.go()
    assert run.fake.running == 0
    assert next(clock) < 100


def test_a_second_stop_ends_the_wait_for_workers_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaf = Behaviour(after_s=1e9, exits_within_s=1e9)
    run = Run(tmp_path, [make_job("a")], lambda _: deaf, grace_s=1000.0)
    error = RuntimeError("a mistake")
    raise_at(monkeypatch, Attempts, "enforce_limits", lambda: run.fake.now() > 3.0, error)
    run.at(6.0, lambda: run.supervisor.request_stop("SIGINT"))
    with pytest.raises(SupervisorError):
        run.go()
    assert run.fake.now() < 10.0
    assert run.states() == {"a": "PENDING"}


def test_a_lost_cluster_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path, [make_job("a")], lambda _: FOREVER)
    error = ClusterLostError("no node answers")
    raise_at(monkeypatch, SlottedExecutor, "poll", lambda: run.fake.now() > 3.0, error)
    with pytest.raises(ClusterLostError):
        run.go()
    run.end()
    assert Run(tmp_path).go() == {"a": "SUCCEEDED"}


@pytest.mark.parametrize(
    ("owner", "name", "ends"),
    [
        (messages, "report_news", "FAILED"),
        (messages, "report_end", "SUCCEEDED"),
        (job_directory, "remove_replay_buffers", "SUCCEEDED"),
    ],
)
def test_an_error_that_one_job_causes_concerns_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, ends: str
) -> None:
    worker = Behaviour(after_s=4.0, progress_every_s=1.0)
    run = Run(tmp_path, [make_job("a"), make_job("b")], lambda _: worker)
    raised = raise_at(monkeypatch, owner, name, lambda: True, KeyError("odd"))
    states = run.go()
    assert raised
    assert sorted(states.values()) == sorted([ends, "SUCCEEDED"])
    assert run.paths.error_log.exists()


def test_a_summary_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path, [make_job("a")])
    run.paths.summary_json.mkdir()
    assert run.go() == {"a": "SUCCEEDED"}
    assert run.events("warning")


@hypothesis.given(content=strategies.binary(max_size=100))
@hypothesis.example(content=b'{"code": 0}')
@hypothesis.example(content=b'{"code": 0, "message": "", "env_steps": 1e99}')
@hypothesis.example(content=b"[" * 10_000)
@hypothesis.settings(max_examples=8)
def test_any_exit_record_concerns_its_job_alone(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    def behave(launch: Launch) -> Behaviour:
        if launch.job_id == "a":
            (launch.job_dir / f"attempts/{launch.number}/exit.json").write_bytes(content)
        return Behaviour(returncode=ExitCode.ERROR if launch.job_id == "a" else 0)

    run = Run(tmp_path_factory.mktemp("any"), [make_job("a"), make_job("b")], behave)
    assert run.go() == {"a": "FAILED", "b": "SUCCEEDED"}
    run.end()


def test_what_a_worker_reports_reaches_the_ledger_and_warnings_are_told_once(
    tmp_path: Path,
) -> None:
    def progress(after_s: float) -> Progress:
        return Progress(
            phase="training", env_steps=int(after_s * 10), warning="odd\udcff", ep_rew_mean=1.5
        )

    worker = Behaviour(after_s=9.0, progress_every_s=0.5, progress=progress, returncode=-9)
    run = Run(tmp_path, [make_job("a")], behaviours({"a": worker}))
    run.at(6.0, lambda: seen.append(run.ledger.job_row("a").env_steps))  # type: ignore[union-attr]
    seen: list[int] = []
    run.go()
    assert 40 <= seen[0] <= 60
    assert len(run.events("warning")) == 1
    assert run.attempts("a")[0]["cause"] == Cause.SIGNAL


def test_a_transaction_that_is_undone_takes_nothing_else_with_it(tmp_path: Path) -> None:
    run = Run(tmp_path, [make_job("a"), make_job("b")])
    ledger = run.ledger
    for has_begun in (False, True):
        if has_begun:
            ledger.record_event("warning", "kept", {})
        with contextlib.suppress(KeyError), ledger.all_or_nothing():
            ledger.delete_job("a")
            ledger.set_wanted("b", "pause")
            raise KeyError
        with ledger.all_or_nothing():
            ledger.set_wanted("b", "cancel")
        if has_begun:
            ledger.commit()
        else:
            ledger._connection.rollback()  # what a kill does: nothing was committed
    other = sqlite3.connect(run.paths.ledger)
    assert other.execute("SELECT job_id, wanted FROM jobs").fetchall() == [
        ("a", "run"),
        ("b", "cancel"),
    ]
    assert other.execute("SELECT message FROM events").fetchall() == [("kept",)]
    other.close()
