"""Sums over all jobs that run, when each is looked at next, and the summary that is written in
pages."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from supervisor_helpers import filled, ledgers_closed, make_job  # noqa: F401 - a fixture

from orchestrator.core.job import (
    Attempt,
    AttemptOutcome,
    Cause,
    Running,
)
from orchestrator.core.messages import Progress
from orchestrator.core.paths import RunPaths
from orchestrator.executors.base import Handle
from orchestrator.machine.slots import Slot
from orchestrator.supervisor import recorder
from orchestrator.supervisor.active_attempts import ActiveAttempt, ActiveAttempts
from orchestrator.supervisor.events import SilentReporter


def make_attempt(job_id: str) -> ActiveAttempt:
    handle = Handle(job_id, 0)
    return ActiveAttempt(
        job=make_job(job_id), handle=handle, slot=Slot(index=0), started=0.0, last_progress=0.0
    )


def test_the_cores_of_all_ranks_are_busy_though_rank_0_tells_of_itself() -> None:
    running = ActiveAttempts()
    attempt = make_attempt("j")
    attempt.job = replace(attempt.job, resources=replace(attempt.job.resources, ranks=4))
    running.add(attempt)
    progress = Progress(phase="training", env_steps=1, env_steps_per_s=8.0, cpu_share=0.5)
    running.note_progress(attempt, progress, 1.0)
    assert (running.cores_busy, running.env_steps_per_s) == (2.0, 8.0), "steps are of all ranks"


def test_a_time_that_is_left_out_moves_deadlines_by_as_much_of_it_as_they_had_begun() -> None:
    running = ActiveAttempts()
    before, within = make_attempt("before"), make_attempt("within")
    reason = AttemptOutcome(cause=Cause.CANCELLED, message="cancelled")
    for attempt, asked_at in ((before, 100.0), (within, 1000.0)):
        running.add(attempt)
        running.note_end_request(attempt, reason, asked_at, asked_at + 10.0)
    running.leave_out(900.0, 1001.0)
    assert (before.kill_at, within.kill_at) == (1010.0, 1011.0)
    assert before.usage.started == 900.0


def test_sums_over_all_that_run_are_what_they_would_be_counted_anew() -> None:
    running = ActiveAttempts()
    ones = [make_attempt(f"j{number}") for number in range(100)]
    for one in ones:
        running.add(one)
    for number, one in enumerate(ones):
        running.note_progress(
            one,
            Progress(phase="training", env_steps=number, env_steps_per_s=0.1, cpu_share=0.3),
            1.0,
        )
        running.note_memory(one, 40.0 + number, 1.0)
    assert running.steps_to_go == sum(1000 - number for number in range(100))
    assert running.promised_mib == sum(60 - number for number in range(60))
    assert (running.env_steps_per_s, running.cores_busy) == (10.0, 30.0)
    for one in ones:
        running.remove(one)
    assert (
        running.steps_to_go,
        running.promised_mib,
        running.env_steps_per_s,
        running.cores_busy,
    ) == (0, 0, 0.0, 0.0)


def test_each_is_looked_at_when_its_moment_has_come_and_not_before() -> None:
    running = ActiveAttempts()
    first, second, gone = make_attempt("first"), make_attempt("second"), make_attempt("gone")
    for one, when in ((first, 10.0), (second, 20.0), (gone, 5.0)):
        running.add(one)
        running.check_at(one, when)
    running.remove(gone)
    assert running.due(9.9) == []
    assert running.due(10.0) == [first]
    assert running.due(10.0) == []  # not again, unless somebody says so
    running.check_at(second, 15.0)
    running.check_at(second, 30.0)  # the earlier look stands
    assert running.due(15.0) == [second]
    assert running.due(99.0) == []


@pytest.fixture
def of_35_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> recorder.Recorder:
    """That writes a summary of ten jobs a page."""
    monkeypatch.setattr(recorder, "PAGE_ROWS", 10)
    paths = RunPaths(tmp_path)
    ledger = filled(paths.ledger, 35)
    return recorder.Recorder(paths=paths, ledger=ledger, reporter=SilentReporter())


def test_the_summary_of_many_jobs_is_written_page_by_page_as_its_share_of_time_allows(
    of_35_jobs: recorder.Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, paths = of_35_jobs, of_35_jobs.paths
    monkeypatch.setattr(recorder, "SUMMARY", replace(recorder.SUMMARY, share=1e-9))
    for time_s in (
        0.0,
        1e12,
        1e12 + 1.0,
        2e12,
    ):  # the second time 1 s is too early for the next page
        one.end_turn(time_s)
        assert not paths.summary_json.exists()
    one.end_turn(3e12)
    written = json.loads(paths.summary_json.read_text())
    assert [row["job_id"] for row in written] == [f"j{place}" for place in range(35)]
    assert len(paths.summary_csv.read_text().splitlines()) == 36
    assert not list(paths.root.glob(".summary*"))


def test_the_last_summary_is_whole_whatever_was_under_way(of_35_jobs: recorder.Recorder) -> None:
    one, paths, ledger = of_35_jobs, of_35_jobs.paths, of_35_jobs.ledger
    attempt = Attempt(job_id="j0", number=0, cpus=(0,), gpus=(), started_at=1.0)
    ledger.start_attempt(attempt, queue_s=0.0)
    one.record_state("j0", Running(attempt=attempt))
    one.end_turn(0.0)
    ledger.set_progress([("j0", 77, None, None, None)])  # of a page that is written already
    one.end_turn(0.1, final=True)
    assert json.loads(paths.summary_json.read_text()) == json.loads(json.dumps(ledger.summary()))
    assert json.loads(paths.summary_json.read_text())[0]["env_steps"] == 77
    assert not list(paths.root.glob(".summary*"))


def test_what_one_asks_for_is_set_aside_but_never_of_a_machine_that_is_idle(tmp_path: Path) -> None:
    from supervisor_helpers import Experiment

    experiment = Experiment(
        tmp_path, [make_job("large", memory_mib=9000)], available_memory_mib=lambda: 10
    )
    assert experiment.run() == {"large": "SUCCEEDED"}  # waiting would not make room
