"""Many jobs at once: no turn of the loop goes through all that run.

Counted, not timed: a busy machine changes none of it.
"""

from __future__ import annotations

import cProfile
import csv
import io
import itertools
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text
from supervisor_helpers import RecordingReporter, ledgers_closed, make_job  # noqa: F401 - a fixture

from orchestrator.core.job import (
    Attempt,
    AttemptOutcome,
    Cancelled,
    Cause,
    Job,
    Running,
    Succeeded,
)
from orchestrator.core.messages import Progress
from orchestrator.core.paths import RunPaths
from orchestrator.executors.base import Handle
from orchestrator.executors.cluster_slots import ClusterSlots
from orchestrator.executors.fake import NEVER, Behaviour, FakeExecutor
from orchestrator.ledger import Ledger, SummaryRow, rows
from orchestrator.ledger.lineage import Lineages
from orchestrator.ledger.rows import DeclaredJob
from orchestrator.machine.slots import Slot
from orchestrator.supervisor import recorder
from orchestrator.supervisor.active_attempts import ActiveAttempt, ActiveAttempts
from orchestrator.supervisor.events import Reporter, SilentReporter, View
from orchestrator.supervisor.supervisor import Supervisor
from orchestrator.terminal import run_view
from orchestrator.terminal.run_view import LiveReporter

REPOSITORY = Path(__file__).parents[3]


# -- what a turn costs

TURNS = 40


class Turns(RecordingReporter):
    """Counts the Python calls of some turns once everything runs, then stops."""

    def __init__(self, running: int, turns: int) -> None:
        super().__init__()
        self.supervisor: Supervisor | None = None
        self._running, self._left = running, turns
        self._profile = cProfile.Profile()

    def tick(self, view: object) -> None:
        assert self.supervisor is not None
        if self.supervisor.counts["RUNNING"] < self._running:
            return
        if self.supervisor.now() < 5.0:  # whatever the launches left to be done is done by then
            return
        self._profile.disable()
        if self._left == 0:
            self.supervisor.request_stop("counted")
            return
        self._left -= 1
        self._profile.enable()

    @property
    def calls(self) -> int:
        self._profile.disable()
        return sum(entry.callcount for entry in self._profile.getstats())


def entered(paths: RunPaths, jobs: Iterable[Job]) -> Ledger:
    """A new ledger in the run directory ``paths`` with ``jobs`` pending, in this order."""
    ledger = Ledger.create(paths.ledger)
    ledger.put_jobs(DeclaredJob(position=place, job=job) for place, job in enumerate(jobs))
    ledger.commit()
    return ledger


def endless_supervisor(
    root: Path, jobs: Iterable[Job], *, nodes: int, cores: int, reporter: Reporter
) -> Supervisor:
    """The supervisor of jobs that never end, on ``nodes`` nodes with ``cores`` cores each."""
    fake = FakeExecutor(behave=lambda _: Behaviour(after_s=NEVER))
    pool = ClusterSlots()
    for node in range(nodes):
        pool.add(str(node), cores=cores, gpus=0, memory_mib=1 << 20)
    paths = RunPaths(root)
    ledger = entered(paths, jobs)
    return Supervisor(
        paths=paths,
        rows=ledger.jobs(),
        ledger=ledger,
        executor=fake,
        slots=pool,
        reporter=reporter,
        now=fake.now,
        available_memory_mib=lambda: 1 << 40,
    )


def calls_of_turns(root: Path, running: int, waiting: int) -> int:
    root.mkdir()
    jobs = [
        make_job(f"j{number:05}", stall_timeout_s=3600.0, timeout_s=1e5)
        for number in range(running + waiting)
    ]
    reporter = Turns(running, TURNS)
    reporter.supervisor = endless_supervisor(
        root, jobs, nodes=running // 10, cores=10, reporter=reporter
    )
    # Its cost is bounded by a share of time instead.
    reporter.supervisor._recorder._summary.wait(1e9)
    reporter.supervisor.run()
    return reporter.calls


def test_a_turn_costs_the_same_however_many_jobs_run_and_wait(tmp_path: Path) -> None:
    few = calls_of_turns(tmp_path / "few", running=20, waiting=20)
    many = calls_of_turns(tmp_path / "many", running=300, waiting=300)
    assert abs(many - few) < TURNS <= few, "not one call more in a turn"


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


def test_the_next_attempt_of_a_job_does_not_inherit_the_looks_of_the_last() -> None:
    running = ActiveAttempts()
    last, then = make_attempt("j"), make_attempt("j")
    running.add(last)
    running.check_at(last, 1.0)
    running.remove(last)
    running.add(then)
    running.check_at(then, 2.0)
    assert running.due(1.0) == []
    assert running.due(2.0) == [then]


# -- what is written


def test_progress_of_many_jobs_writes_few_pages(tmp_path: Path) -> None:
    """Each page of the ledger holds what happens to many jobs; what is declared of them lies
    elsewhere."""
    jobs = [make_job(f"robot-{number:05}-s0") for number in range(1000)]
    ledger = entered(RunPaths(tmp_path), jobs)
    ledger._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    ledger.set_progress((job.job_id, 640, 1.5, 1000.0, "fast") for job in jobs)
    ledger.commit()
    page_bytes = ledger._connection.execute("PRAGMA page_size").fetchone()[0]
    assert 0 < (tmp_path / "ledger.sqlite3-wal").stat().st_size < 60 * page_bytes
    ledger.close()


@pytest.fixture
def of_35_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> recorder.Recorder:
    """That writes a summary of ten jobs a page."""
    monkeypatch.setattr(recorder, "PAGE_ROWS", 10)
    paths = RunPaths(tmp_path)
    ledger = entered(paths, (make_job(f"j{place:02}") for place in range(35)))
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
    assert [row["job_id"] for row in written] == [f"j{place:02}" for place in range(35)]
    assert len(paths.summary_csv.read_text().splitlines()) == 36
    assert not list(paths.root.glob(".summary*"))


def test_the_last_summary_is_whole_whatever_was_under_way(of_35_jobs: recorder.Recorder) -> None:
    one, paths, ledger = of_35_jobs, of_35_jobs.paths, of_35_jobs.ledger
    attempt = Attempt(job_id="j00", number=0, cpus=(0,), gpus=(), started_at=1.0)
    ledger.start_attempt(attempt, queue_s=0.0)
    one.record_state("j00", Running(attempt=attempt))
    one.end_turn(0.0)
    ledger.set_progress([("j00", 77, None, None, None)])  # of a page that is written already
    one.end_turn(0.1, final=True)
    assert json.loads(paths.summary_json.read_text()) == json.loads(json.dumps(ledger.summary()))
    assert json.loads(paths.summary_json.read_text())[0]["env_steps"] == 77
    assert not list(paths.root.glob(".summary*"))


def test_of_the_summary_only_pages_are_made_again_whose_jobs_run_or_have_moved(
    of_35_jobs: recorder.Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, paths, ledger = of_35_jobs, of_35_jobs.paths, of_35_jobs.ledger
    made, real, time_s = list[str](), rows.summary_row, itertools.count(0.0, 1e6)

    def summary_row(row: Any, varied: Iterable[str], lineages: Lineages) -> SummaryRow:
        made.append(row["job_id"])
        return real(row, varied, lineages)

    def write() -> list[str]:
        """The first jobs of the pages that are made."""
        made.clear()
        for _ in range(4):
            one.end_turn(next(time_s))
        firsts = [job_id for job_id in made if job_id.endswith("0")]
        assert json.loads(paths.summary_json.read_text()) == json.loads(
            json.dumps(ledger.summary())
        )
        table = list(csv.DictReader(paths.summary_csv.read_text().splitlines()))
        assert [row["state"] for row in table] == [row["state"] for row in ledger.summary()]
        return firsts

    monkeypatch.setattr(rows, "summary_row", summary_row)
    assert write() == ["j00", "j10", "j20", "j30"]
    attempt = Attempt(job_id="j15", number=0, cpus=(0,), gpus=(), started_at=1.0)
    ledger.start_attempt(attempt, queue_s=0.0)
    one.record_state("j15", Running(attempt=attempt))
    for env_steps in (64, 128):
        ledger.set_progress([("j15", env_steps, 1.0, None, None)])
        one._is_behind = True
        assert write() == ["j10"]
    one.record_state("j15", Succeeded())
    assert write() == ["j10"]
    ledger.put_jobs([DeclaredJob(position=35, job=make_job("j35"))])
    one.record_state("j22", Cancelled())
    assert write() == ["j20", "j30"]
    ledger.put_jobs(
        [DeclaredJob(position=36, job=replace(make_job("j36"), point={"ppo.gamma": 0.9}))]
    )
    one.record_state("j36", Cancelled())
    assert write() == ["j00", "j10", "j20", "j30"], "another column"


def test_what_one_asks_for_is_set_aside_but_never_of_a_machine_that_is_idle(tmp_path: Path) -> None:
    from supervisor_helpers import Experiment

    experiment = Experiment(
        tmp_path, [make_job("large", memory_mib=9000)], available_memory_mib=lambda: 10
    )
    assert experiment.run() == {"large": "SUCCEEDED"}  # waiting would not make room


def test_lines_above_the_live_table_are_printed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time the table is drawn anew below them, which takes longer than a line."""
    monkeypatch.setenv("TERM", "xterm")
    ticks = itertools.count(start=100)
    monkeypatch.setattr(
        run_view.time, "monotonic", lambda: next(ticks) / 1000
    )  # printing takes a millisecond, too
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100, height=30)
    live_reporter = LiveReporter(console)
    prints: list[tuple[object, ...]] = []
    really = console.print
    monkeypatch.setattr(console, "print", lambda *what: (prints.append(what), really(*what)))
    view = View(
        elapsed_s=1.0,
        counts=Counter(RUNNING=1),
        active=[make_attempt("only")],
        ended=[],
        next_up=[],
        steps_to_go=1,
        env_steps_per_s=0.0,
        cores_busy=0.0,
    )
    for number in range(500):
        live_reporter.event("launched", f"job number {number}")
    live_reporter.tick(lambda: view)
    live_reporter.event("succeeded", "the very last")
    live_reporter.close()
    assert sum(isinstance(what[0], Text) for what in prints) < 500 / 10
    assert all(f"job number {number}" in out.getvalue() for number in range(500))
    assert "the very last" in out.getvalue()
