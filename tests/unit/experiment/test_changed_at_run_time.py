"""What changes while a supervisor runs: the number of jobs at once, and the jobs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

import pytest
from supervisor_helpers import (
    Experiment,
    ask,
    behaviours,
    ledgers_closed,  # noqa: F401 - a fixture
    make_job,
    make_machine,
    names,
    once,
)

from orchestrator.core.errors import LedgerBusyError, LedgerError, RunDirError, UsageError
from orchestrator.core.job import Job
from orchestrator.executors.cluster_slots import ClusterSlots
from orchestrator.executors.fake import Behaviour
from orchestrator.experiment.directory import run_directory
from orchestrator.experiment.from_outside import control
from orchestrator.experiment.from_outside.reload import reload
from orchestrator.ledger import Ledger, Request
from orchestrator.ledger.rows import DeclaredJob
from orchestrator.machine.slots import SlotPool
from orchestrator.supervisor.events import View
from orchestrator.supervisor.request_handler import RequestHandler


def running_after(
    root: Path, agenda: dict[float, str], jobs: int = 12, *, cpus: int, max_parallel: int
) -> list[int]:
    """How many jobs of 10 s each run 2 s before the end of each 10 s, where ``set`` is called at
    some times."""
    experiment = Experiment(
        root,
        [make_job(name) for name in names(jobs)],
        lambda _: Behaviour(after_s=10.0),
        cpus=cpus,
        max_parallel=max_parallel,
    )
    left, seen = sorted(agenda.items()), dict[int, int]()

    def each_turn(view: View) -> None:
        while left and view.elapsed_s >= left[0][0]:
            ask(root, ("set", left.pop(0)[1]))
        if view.elapsed_s % 10 > 8:
            seen[int(view.elapsed_s // 10)] = len(view.active)

    experiment.reporter.each_turn = each_turn
    assert set(experiment.run().values()) == {"SUCCEEDED"}
    return list(seen.values())


def test_a_lower_number_ends_no_job_and_a_higher_one_fills_the_slots(tmp_path: Path) -> None:
    agenda = {2.0: "max_parallel=1", 22.0: "max_parallel=4"}
    assert running_after(tmp_path, agenda, cpus=4, max_parallel=3) == [3, 1, 4, 4]


def test_more_than_the_slots_hold_is_cut_and_said(tmp_path: Path) -> None:
    experiment = Experiment(tmp_path, [make_job("a")], cpus=4, max_parallel=1)
    odd = ("order=as-listed", "max_parallel=x", f"max_parallel={'9' * 5000}")
    ask(tmp_path, ("set", "max_parallel=99"), *(("set", setting) for setting in odd))
    assert experiment.run() == {"a": "SUCCEEDED"}
    ((_, text, facts),) = [event for event in experiment.reporter.events if event[0] == "set"]
    assert facts == {"max_parallel": 4, "asked": 99, "running": 0}
    assert "99" in text
    assert "slots for no more" in text


def test_a_request_that_cannot_be_handled_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("nobody has thought of this")

    monkeypatch.setattr(RequestHandler, "set_max_parallel", fail)
    experiment = Experiment(tmp_path, [make_job("a"), make_job("b")])
    ask(tmp_path, ("set", "max_parallel=2"), ("pause", "a"))
    assert experiment.run() == {"a": "PAUSED", "b": "SUCCEEDED"}
    assert "could not be handled" in experiment.reporter.messages()
    assert experiment.paths.error_log.exists()


@pytest.mark.parametrize(
    ("planned", "asked", "jobs_at_once"),
    [(None, 2, 2), (2, 4, 4), (2, 9, 4), (9, 3, 3), (9, 12, 9), (None, 1, 1)],
)
def test_the_slots_of_a_machine_are_its_capacity_or_what_was_planned(
    planned: int | None, asked: int, jobs_at_once: int
) -> None:
    pool = SlotPool(make_machine(4), planned)
    assert pool.resize(asked) == pool.jobs_at_once == jobs_at_once
    held = [slot for _ in range(20) if (slot := pool.acquire(1)) is not None]
    assert len(held) == jobs_at_once


def test_slots_that_are_held_stay_held_when_there_are_to_be_fewer() -> None:
    pool = SlotPool(make_machine(4))
    first, second, third = (pool.acquire(1) for _ in range(3))
    assert first is not None
    assert second is not None
    assert third is not None
    pool.resize(2)
    pool.release(first)
    assert pool.acquire(1) is None
    pool.release(second)
    again = pool.acquire(1)
    assert again is not None
    assert again.index != third.index
    assert not set(again.cpus) & set(third.cpus)


def test_a_cluster_takes_any_number_and_runs_a_job_for_each_core() -> None:
    slots = ClusterSlots(1)
    slots.add("node", cores=4, gpus=0, memory_mib=1000)
    assert slots.resize(8) == 4
    slots.add("other", cores=4, gpus=0, memory_mib=1000)
    assert slots.jobs_at_once == 8


def test_a_setting_needs_a_supervisor_and_is_not_kept_for_the_next(tmp_path: Path) -> None:
    Experiment(tmp_path, [make_job("a")]).ledger.close()
    with pytest.raises(UsageError, match=r"no supervisor is running.*--max-parallel"):
        control.set_max_parallel(tmp_path, 3)
    with run_directory.claim(tmp_path / "new") as paths:
        paths.staging.mkdir()
        with pytest.raises(UsageError, match="still examines"):
            control.set_max_parallel(paths.root, 3)
    with run_directory.claim(tmp_path):
        assert "up to 3 jobs" in control.set_max_parallel(tmp_path, 3)


def entered(root: Path, *jobs: Job) -> None:
    """As ``reload`` enters jobs: behind the others, and together with its request."""
    ledger = Ledger.open(root / "ledger.sqlite3")
    ledger.put_jobs(DeclaredJob(position=100 + number, job=job) for number, job in enumerate(jobs))
    ledger.add_requests([Request(verb="reload", job_id="me")])
    ledger.abandon()


def test_jobs_that_another_process_enters_are_trained_behind_the_others(tmp_path: Path) -> None:
    experiment = Experiment(tmp_path, [make_job(name) for name in names(2)], cpus=1, holder="me")
    new = [make_job("new"), make_job("large", cores=99), make_job("last")]
    experiment.reporter.each_turn = once(
        lambda view: bool(view.active), lambda: entered(tmp_path, *new)
    )
    assert experiment.run() == dict.fromkeys(["j0000", "j0001", "new", "last"], "SUCCEEDED") | {
        "large": "FAILED"
    }
    assert experiment.order == ["j0000", "j0001", "new", "last"]
    assert [row.state.name for row in experiment.ledger.jobs()][2:] == [
        "SUCCEEDED",
        "FAILED",
        "SUCCEEDED",
    ]


def test_jobs_that_are_entered_wait_for_jobs_that_run_have_succeeded_or_are_new(
    tmp_path: Path,
) -> None:
    jobs = [make_job("done"), make_job("a")]
    experiment = Experiment(
        tmp_path,
        jobs,
        lambda launch: Behaviour(after_s=5.0 if launch.job_id == "a" else 1.0),
        holder="me",
    )
    new = [make_job("c", spec={"after": ("b", "done")}), make_job("b", spec={"after": ("a",)})]
    experiment.reporter.each_turn = once(
        lambda view: view.counts["SUCCEEDED"] == 1, lambda: entered(tmp_path, *new)
    )
    assert set(experiment.run().values()) == {"SUCCEEDED"}
    assert experiment.order == ["done", "a", "b", "c"]


def test_jobs_entered_as_the_last_one_ends_are_trained(tmp_path: Path) -> None:
    experiment = Experiment(tmp_path, [make_job("a")], holder="me")
    experiment.reporter.each_turn = once(
        lambda view: view.counts["SUCCEEDED"] == 1, lambda: entered(tmp_path, make_job("b"))
    )
    assert experiment.run() == {"a": "SUCCEEDED", "b": "SUCCEEDED"}


def test_executors_know_where_new_jobs_import_code_from(tmp_path: Path) -> None:
    experiment = Experiment(tmp_path, [make_job("a")], holder="me")
    new = make_job("b", spec={"env": None, "entry_point": "odd:make", "search_path": "/project"})
    experiment.reporter.each_turn = once(lambda _: True, lambda: entered(tmp_path, new))
    experiment.run()
    places = [(launch.code_folder, launch.code_name) for launch in experiment.fake.launches]
    assert places == [(None, "CartPole-v1"), ("/project", "odd:make")]


def test_new_jobs_wait_while_the_ledger_is_locked_and_unreadable_ones_end_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = Experiment(
        tmp_path, [make_job("a")], lambda _: Behaviour(after_s=9.0), holder="me"
    )
    real = experiment.ledger.new_job_ids
    errors = [LedgerBusyError("locked"), LedgerError("damaged")]

    def new_job_ids(known: Collection[str]) -> list[str]:
        if errors:
            raise errors.pop(0)
        return real(known)

    monkeypatch.setattr(experiment.ledger, "new_job_ids", new_job_ids)
    agenda = {1.0: "b", 5.0: "c"}

    def each_turn(view: View) -> None:
        if agenda and view.elapsed_s >= min(agenda):
            entered(tmp_path, make_job(agenda.pop(min(agenda))))

    experiment.reporter.each_turn = each_turn
    assert experiment.run() == dict.fromkeys("abc", "SUCCEEDED"), (
        "those that could not be read are found later"
    )
    assert "damaged" in experiment.reporter.messages()


def test_jobs_that_the_file_no_longer_declares_are_not_taken_for_new_ones(tmp_path: Path) -> None:
    experiment = Experiment(tmp_path, [make_job("a"), make_job("left-s0")], holder="me")
    experiment.run()
    supervised = Experiment(tmp_path, [], holder="me")
    assert supervised.ledger.new_job_ids({"a"}) == []


def test_when_all_jobs_have_ended_requests_are_refused_and_a_stop_is_taken(
    tmp_path: Path,
) -> None:
    jobs = [make_job("made"), make_job("failed"), make_job("paused")]
    calls: list[Callable[[], str]] = [
        lambda: control.ask(tmp_path, [], "retry"),
        lambda: control.ask(tmp_path, ["paused"], "resume"),
        lambda: control.stop(tmp_path, ["paused"]),
        lambda: control.set_max_parallel(tmp_path, 2),
        lambda: reload(tmp_path, None),
    ]
    answers: list[str] = []

    with run_directory.claim(tmp_path) as paths:
        experiment = Experiment(tmp_path, jobs, behaviours({"failed": Behaviour(returncode=1)}))
        ask(tmp_path, ("pause", "paused"))
        assert experiment.run() == {"made": "SUCCEEDED", "failed": "FAILED", "paused": "PAUSED"}
        paths.staging.mkdir()
        paths.finishing.touch()
        for call in calls:
            with pytest.raises(RunDirError, match="only finishes what is beside it") as refused:
                call()
            answers.append(str(refused.value))
        answers.append(control.stop(tmp_path, []))
    assert len(answers) == 6
    assert "asked its supervisor" in answers[-1]
    with run_directory.claim(tmp_path) as paths:
        assert not paths.finishing.exists(), (
            "the next supervisor, after one that was killed, reads requests"
        )
