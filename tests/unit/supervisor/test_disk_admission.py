"""Launches wait while the run directory's file system has less free space than a job asks for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from supervisor_helpers import (
    Experiment,
    ask,
    ledgers_closed,  # noqa: F401 - a fixture
    make_job,
    names,
    once,
)

from orchestrator.api import WarningReporter
from orchestrator.core.job import Job
from orchestrator.executors.fake import Behaviour
from orchestrator.supervisor import disk_admission
from orchestrator.supervisor.events import View


class Disk:
    """Free space that a test sets, and how often it was asked for."""

    def __init__(self, mib: int | None) -> None:
        self.mib, self.asked = mib, 0

    def __call__(self, _: Path) -> int | None:
        self.asked += 1
        return self.mib


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk(100)
    monkeypatch.setattr(disk_admission, "free_mib", made)
    return made


def waiting(experiment: Experiment) -> list[dict[str, object]]:
    return [facts for kind, _, facts in experiment.reporter.events if kind == "waiting"]


def set_later(experiment: Experiment, at_s: float, action: Callable[[], None]) -> None:
    experiment.reporter.each_turn = once(lambda view: view.elapsed_s >= at_s, action)


def test_nothing_is_launched_until_there_is_room_and_that_is_said_once(
    tmp_path: Path, disk: Disk
) -> None:
    experiment = Experiment(tmp_path, [make_job(name, min_free_disk_mib=1024) for name in names(3)])
    set_later(experiment, 60, lambda: setattr(disk, "mib", 1024))
    assert set(experiment.run().values()) == {"SUCCEEDED"}
    assert experiment.fake.time_s >= 60
    assert [
        (facts["job_id"], facts["free_mib"], facts["asked_mib"]) for facts in waiting(experiment)
    ] == [("j0000", 100, 1024)]
    assert experiment.reporter.kinds().index("waiting") < experiment.reporter.kinds().index(
        "launched"
    )


def test_the_space_is_measured_once_a_second_while_jobs_wait_and_not_while_all_run(
    tmp_path: Path, disk: Disk
) -> None:
    jobs = [make_job(name, min_free_disk_mib=1024) for name in names(2)]
    experiment = Experiment(tmp_path, jobs, lambda _: Behaviour(after_s=1000.0))
    set_later(experiment, 100, lambda: setattr(disk, "mib", 2000))
    experiment.run()
    assert 90 <= disk.asked <= 103


def test_without_a_limit_the_space_is_not_measured(tmp_path: Path, disk: Disk) -> None:
    assert Experiment(tmp_path, [make_job()]).run() == {"a-s0": "SUCCEEDED"}
    assert disk.asked == 0


def test_where_the_space_is_not_known_jobs_are_launched(tmp_path: Path, disk: Disk) -> None:
    disk.mib = None
    assert Experiment(tmp_path, [make_job(min_free_disk_mib=1024)]).run() == {"a-s0": "SUCCEEDED"}


def test_jobs_that_ask_for_less_do_not_wait_for_those_that_ask_for_more(
    tmp_path: Path, disk: Disk
) -> None:
    def asks(name: str) -> Job:
        return make_job(name, min_free_disk_mib=5000 if name == "j0000" else 50)

    experiment = Experiment(tmp_path, [asks(name) for name in names(40)])
    set_later(experiment, 100, lambda: setattr(disk, "mib", 5000))
    assert set(experiment.run().values()) == {"SUCCEEDED"}
    assert experiment.order[-1] == "j0000"
    assert len(waiting(experiment)) == 1


@pytest.mark.parametrize("verb", ["cancel", "pause"])
def test_nothing_waits_for_space_any_more_once_the_job_that_did_is_gone(
    verb: str, tmp_path: Path, disk: Disk
) -> None:
    disk.mib = 2000
    jobs = [
        make_job("large", min_free_disk_mib=5000),
        *(make_job(name, min_free_disk_mib=50) for name in names(3)),
    ]
    experiment = Experiment(tmp_path, jobs, lambda _: Behaviour(after_s=100.0), cpus=2)
    seen: dict[str, tuple[list[str], str | None]] = {}

    def each_turn(view: View) -> None:
        moment = (
            "before"
            if view.counts["PENDING"] == 2
            else "after"
            if view.counts["PENDING"] == 1
            else "later"
        )
        if moment == "before" and view.elapsed_s > 50:
            ask(tmp_path, (verb, "large"))
        seen[moment] = [job.job_id for job in view.next_up], view.waiting and view.waiting.text

    experiment.reporter.each_turn = each_turn
    experiment.run()
    before, reason = seen["before"]
    assert before == ["large", "j0002"]
    assert reason is not None
    assert "5,000 MiB" in reason
    assert seen["after"] == (["j0002"], None), (
        "both slots are taken, so nobody asks for space meanwhile"
    )
    assert seen["later"] == ([], None)


def test_what_waiting_jobs_lack_is_as_of_now_while_all_slots_are_taken(
    tmp_path: Path, disk: Disk
) -> None:
    disk.mib = 2000
    jobs = [
        make_job("large", min_free_disk_mib=5000),
        *(make_job(name, min_free_disk_mib=50) for name in names(2)),
    ]
    experiment = Experiment(tmp_path, jobs, lambda _: Behaviour(after_s=100.0), cpus=2)
    said: list[str | None] = []
    became = iter([3000, 6000])

    def each_turn(view: View) -> None:
        text = view.waiting and view.waiting.text
        if view.counts["RUNNING"] == 2 and [text] != said[-1:]:
            said.append(text)
            disk.mib = next(became, 6000)
        if not view.counts["RUNNING"]:
            disk.mib = 6000

    experiment.reporter.each_turn = each_turn
    experiment.run()
    before, after, enough = said
    assert "2,000 MiB" in (before or "")
    assert "3,000 MiB" in (after or "")
    assert enough is None


def test_a_job_that_waits_again_for_space_is_reported_again(tmp_path: Path, disk: Disk) -> None:
    jobs = [make_job("large", min_free_disk_mib=5000), make_job("larger", min_free_disk_mib=9000)]
    experiment = Experiment(tmp_path, jobs)
    agenda = [(10.0, "cancel"), (20.0, "retry"), (30.0, "stop")]

    def each_turn(view: View) -> None:
        if agenda and view.elapsed_s >= agenda[0][0]:
            match agenda.pop(0)[1]:
                case "stop":
                    experiment.supervisor.request_stop("enough")
                case verb:
                    ask(tmp_path, (verb, "large"))

    experiment.reporter.each_turn = each_turn
    experiment.run()
    assert [facts["job_id"] for facts in waiting(experiment)] == ["large", "larger", "large"]


def test_a_stop_ends_the_waiting_and_every_job_is_resumed_later(tmp_path: Path, disk: Disk) -> None:
    experiment = Experiment(tmp_path, [make_job(name, min_free_disk_mib=1024) for name in names(2)])
    set_later(experiment, 5, lambda: experiment.supervisor.request_stop("SIGINT"))
    assert set(experiment.run().values()) == {"PENDING"}
    assert experiment.supervisor.is_interrupted
    experiment.ledger.close()
    disk.mib = 1024
    assert set(Experiment(tmp_path, []).run().values()) == {"SUCCEEDED"}


def test_a_call_that_prints_nothing_warns_of_what_it_waits_for() -> None:
    reporter = WarningReporter()
    with pytest.warns(RuntimeWarning, match="waits for disk space"):
        reporter.event("waiting", "a-s0 waits for disk space")
    reporter.event("launched", "a-s0 launched")
