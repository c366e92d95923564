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
