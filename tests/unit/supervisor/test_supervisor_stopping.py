"""The supervisor stops, on request of a signal or of another process, or as the disk is full."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from supervisor_helpers import (
    FOREVER,
    Experiment,
    ask,
    behaviours,
    ledgers_closed,  # noqa: F401 - a fixture
    make_job,
    names,
    once,
)

from orchestrator.core.errors import DiskFullError
from orchestrator.core.exit_codes import ExitCode
from orchestrator.executors.base import Launch
from orchestrator.executors.fake import NEVER, Behaviour
from orchestrator.ledger import Ledger
from orchestrator.supervisor import recorder
from orchestrator.supervisor.events import View


def test_a_stop_lets_workers_leave_and_everything_is_resumable(tmp_path: Path) -> None:
    experiment = Experiment(tmp_path, [make_job(name) for name in names(5)], lambda launch: FOREVER)
    experiment.reporter.each_turn = once(
        lambda view: view.elapsed_s > 10, lambda: experiment.supervisor.request_stop("SIGINT")
    )
    assert set(experiment.run().values()) == {"PENDING"}
    assert experiment.supervisor.is_interrupted
    assert experiment.reporter.kinds("j0000") == ["launched", "paused"]
    experiment.ledger.close()

    again = Experiment(tmp_path, [])
    assert set(again.run().values()) == {"SUCCEEDED"}
    assert again.fake.launches[0].number == 1
    assert not again.supervisor.is_interrupted


def test_workers_that_do_not_leave_are_killed_at_one_shared_deadline(tmp_path: Path) -> None:
    deaf = Behaviour(after_s=NEVER, exits_within_s=NEVER)
    experiment = Experiment(
        tmp_path, [make_job(name) for name in names(4)], lambda launch: deaf, cpus=4, grace_s=7.0
    )
    experiment.reporter.each_turn = once(
        lambda view: view.elapsed_s >= 10, lambda: experiment.supervisor.request_stop("SIGTERM")
    )
    assert set(experiment.run().values()) == {"PENDING"}
    assert experiment.fake.time_s == pytest.approx(17.0, abs=0.6)


def test_a_second_stop_kills_at_once(tmp_path: Path) -> None:
    deaf = Behaviour(after_s=NEVER, exits_within_s=NEVER)
    experiment = Experiment(
        tmp_path, [make_job(name) for name in names(4)], lambda launch: deaf, cpus=4, grace_s=1e4
    )

    def each_turn(view: View) -> None:
        if view.elapsed_s >= (10, 20, 30)[experiment.supervisor._termination.stops_requested]:
            experiment.supervisor.request_stop("SIGINT")

    experiment.reporter.each_turn = each_turn
    assert set(experiment.run().values()) == {"PENDING"}
    assert experiment.fake.time_s == pytest.approx(20.0, abs=1.0)


def test_an_exit_code_of_zero_without_a_last_word_is_no_success(tmp_path: Path) -> None:
    experiment = Experiment(tmp_path, [make_job("a")], exit_record_expected=True)
    assert experiment.run() == {"a": "FAILED"}


def test_a_stop_before_the_first_launch_launches_nothing(tmp_path: Path) -> None:
    experiment = Experiment(tmp_path, [make_job("a")])
    experiment.supervisor.request_stop("SIGINT")
    assert experiment.run() == {"a": "PENDING"}
    assert experiment.order == []


def test_stop_can_be_asked_for_from_another_process(tmp_path: Path) -> None:
    experiment = Experiment(tmp_path, [make_job("a")], lambda launch: FOREVER)
    experiment.reporter.each_turn = once(
        lambda view: view.elapsed_s > 3, lambda: ask(tmp_path, ("stop", None))
    )
    assert experiment.run() == {"a": "PENDING"}
    assert experiment.fake.time_s < 5


def test_running_and_waiting_jobs_can_be_cancelled(tmp_path: Path) -> None:
    jobs = [make_job(name) for name in names(3)]
    experiment = Experiment(tmp_path, jobs, behaviours({"j0000": FOREVER}), cpus=1)
    cancels = lambda: ask(tmp_path, ("cancel", "j0000"), ("cancel", "j0002"), ("cancel", "nobody"))  # noqa: E731
    experiment.reporter.each_turn = once(lambda view: view.elapsed_s > 3, cancels)
    assert experiment.run() == {"j0000": "CANCELLED", "j0001": "SUCCEEDED", "j0002": "CANCELLED"}
    assert experiment.order == ["j0000", "j0001"]


def test_failed_and_cancelled_jobs_can_be_tried_again(tmp_path: Path) -> None:
    jobs = [make_job("bad"), make_job("long")]
    table = {"bad": [Behaviour(returncode=1), Behaviour()], "long": Behaviour(after_s=20.0)}
    experiment = Experiment(tmp_path, jobs, behaviours(table))
    retries = lambda: ask(tmp_path, ("retry", "bad"), ("retry", "long"))  # noqa: E731
    experiment.reporter.each_turn = once(lambda view: view.elapsed_s > 3, retries)
    assert experiment.run() == {"bad": "SUCCEEDED", "long": "SUCCEEDED"}
    assert experiment.order == ["bad", "long", "bad"]


def test_a_worker_that_finds_the_disk_full_stops_everything_resumably(tmp_path: Path) -> None:
    table = {"j0000": Behaviour(after_s=5.0, returncode=int(ExitCode.DISK_FULL))}
    jobs = [make_job(name) for name in names(4)]
    experiment = Experiment(tmp_path, jobs, lambda launch: table.get(launch.job_id, FOREVER))
    with pytest.raises(DiskFullError):
        experiment.run()
    experiment.ledger.close()
    again = Experiment(tmp_path, [])
    assert set(again.run().values()) == {"SUCCEEDED"}


class FullLedger:
    """A ledger that finds the disk full at the given call of the given method, and from then on."""

    def __init__(self, ledger: Ledger, method: str, call: int) -> None:
        self._ledger, self._method, self._left, self._full = ledger, method, call, False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._ledger, name)
        if not callable(found):
            return found

        def wrapped(*values: Any, **named: Any) -> Any:
            if name == self._method:
                self._left -= 1
            if self._left <= 0 or self._full:
                self._full = True
                raise DiskFullError("no space left on the disk")
            return found(*values, **named)

        return wrapped


@pytest.mark.parametrize(
    "method",
    [
        "set_state",
        "commit",
    ],
)
@pytest.mark.parametrize(
    "call",
    [
        1,
        2,
    ],
)
def test_when_our_own_writes_find_no_space_all_workers_leave_and_we_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, call: int
) -> None:
    # The fifth summary comes however slow the disk is.
    monkeypatch.setattr(recorder, "SUMMARY", replace(recorder.SUMMARY, share=1e9))
    jobs = [make_job(name) for name in names(40)]
    # Several end at the same instant: none may be waited for in vain.
    experiment = Experiment(
        tmp_path,
        jobs,
        lambda launch: Behaviour(after_s=2.0, exits_within_s=NEVER),
        cpus=8,
        grace_s=5,
    )
    experiment.supervisor._recorder.ledger = experiment.supervisor.ledger = FullLedger(  # type: ignore[assignment]
        experiment.ledger, method, call
    )
    with pytest.raises(DiskFullError):
        experiment.run()
    assert experiment.fake.running == 0
    experiment.ledger.abandon()
    assert {row.state.name for row in Ledger.open(tmp_path / "ledger.sqlite3").jobs()} <= {
        "PENDING",
        "RUNNING",
        "SUCCEEDED",
    }


def test_a_launch_onto_a_full_disk_stops_everything(tmp_path: Path) -> None:
    def behave(launch: Launch) -> Behaviour:
        if launch.job_id == "j0001":
            raise OSError(28, "No space left on device")
        return FOREVER

    experiment = Experiment(tmp_path, [make_job(name) for name in names(3)], behave, cpus=8)
    with pytest.raises(DiskFullError):
        experiment.run()
    assert [row.attempts for row in experiment.ledger.jobs()] == [1, 1, 0], (
        "no other is launched, and none again"
    )
    experiment.ledger.close()
    assert set(Experiment(tmp_path, []).run().values()) == {"SUCCEEDED"}


# -- checkpoints on request


def test_a_request_for_checkpoints_reaches_every_running_job_once_and_stops_none(
    tmp_path: Path,
) -> None:
    jobs = [make_job(name) for name in names(3)]
    experiment = Experiment(tmp_path, jobs, lambda launch: Behaviour(after_s=20.0), cpus=2)
    experiment.reporter.each_turn = once(
        lambda view: view.elapsed_s > 3, experiment.supervisor.request_checkpoints
    )
    assert set(experiment.run().values()) == {"SUCCEEDED"}
    assert [handle.job_id for handle in experiment.fake.checkpoints] == ["j0000", "j0001"]
    assert [
        facts["running"] for kind, _, facts in experiment.reporter.events if kind == "checkpoint"
    ] == [2]


def test_a_job_that_is_ending_is_asked_for_no_checkpoint(tmp_path: Path) -> None:
    slow = Behaviour(after_s=NEVER, exits_within_s=5.0)
    experiment = Experiment(tmp_path, [make_job("a")], lambda launch: slow)

    def both() -> None:
        experiment.supervisor.request_stop("SIGINT")
        experiment.supervisor.request_checkpoints()

    experiment.reporter.each_turn = once(lambda view: view.elapsed_s > 3, both)
    assert experiment.run() == {"a": "PENDING"}
    assert not experiment.fake.checkpoints
