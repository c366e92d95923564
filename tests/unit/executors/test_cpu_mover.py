"""When a job is moved to other CPUs, and when it stays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from supervisor_helpers import ledgers_closed, make_job, make_machine  # noqa: F401 - a fixture

from orchestrator.core.job import Attempt, Job
from orchestrator.executors.cpu_mover import REST_S, CpuMover
from orchestrator.executors.executor import AttemptId, Moved, Sampled
from orchestrator.executors.slotted import SlottedAttempt
from orchestrator.ledger import Ledger
from orchestrator.ledger.rows import DeclaredJob
from orchestrator.machine.cpu_locks import CpuLocks
from orchestrator.machine.slots import CpuUse, SlotPool

WAITS, HAS_IT = 0.5, 0.01


class HoggedPool(SlotPool):
    """Slots beside programs that a test names by CPU."""

    def __init__(self, *values: Any) -> None:
        super().__init__(*values)
        self.hogs: set[int] = set()

    def look(self) -> CpuUse:
        return replace(super().look(), load=dict.fromkeys(self.hogs, 1.0))


class NoProcesses:
    """In place of processes: it notes which attempts were moved."""

    def __init__(self) -> None:
        self.moved: list[tuple[AttemptId, Mapping[int, int]]] = []
        self.ended: set[AttemptId] = set()

    def move(self, attempt: AttemptId, to: Mapping[int, int]) -> bool:
        if attempt in self.ended:
            return False
        self.moved.append((attempt, to))
        return True


class Scene:
    """A machine with jobs that run, hogs that come and go, and a clock."""

    def __init__(self, cpus: int = 2, max_parallel: int | None = None) -> None:
        self.now = 0.0
        self.processes = NoProcesses()
        self.running: dict[AttemptId, SlottedAttempt] = {}
        self.pool = HoggedPool(make_machine(cpus), max_parallel)
        processes: Any = self.processes
        self.mover = CpuMover(slots=self.pool, processes=processes, now=lambda: self.now)

    def run(self, job: Job) -> SlottedAttempt:
        slot = self.pool.acquire(job.resources.all_cores)
        assert slot is not None
        attempt = SlottedAttempt(id=AttemptId(job.job_id, 0), job=job, slot=slot)
        self.running[attempt.id] = attempt
        return attempt

    def after(
        self, seconds: float, waits: Mapping[SlottedAttempt, tuple[float, ...]]
    ) -> list[Moved]:
        """What is moved when each attempt waits so much, by rank; a sample every two seconds."""
        moves: list[Moved] = []
        until = self.now + seconds
        while self.now < until:
            self.now += 0.5
            is_sampled = self.now % 2 == 0
            samples = [Sampled(one.id, 1.0, shares) for one, shares in waits.items() if is_sampled]
            events = self.mover.tick(samples, self.running)
            moves += [event for event in events if isinstance(event, Moved)]
        return moves


def test_a_job_whose_cpu_is_taken_moves_to_an_idle_one_within_ten_seconds() -> None:
    scene = Scene()
    attempt = scene.run(make_job("a"))
    assert attempt.slot.cpus == (0,)
    scene.pool.hogs = {0}
    (move,) = scene.after(10.0, {attempt: (WAITS,)})
    assert (move.before, move.after, move.because_of) == ((0,), (1,), ("other programs",))
    assert attempt.slot.cpus == (1,)
    assert scene.processes.moved == [(attempt.id, {0: 1})]
    scene.pool.release(attempt.slot)
    assert scene.pool.acquire(1).cpus == (1,), "the CPU that it left is free, but for the hog"


@pytest.mark.parametrize(
    ("hogs", "share"),
    [({0, 1}, WAITS), ({0}, HAS_IT), (set(), WAITS)],
    ids=[
        "no other is idle",
        "it hardly waits",
        "nobody else is there: its own threads, or a quota",
    ],
)
def test_otherwise_it_stays(hogs: set[int], share: float) -> None:
    scene = Scene()
    attempt = scene.run(make_job("a"))
    scene.pool.hogs = hogs
    assert scene.after(60.0, {attempt: (share,)}) == []
    assert attempt.slot.cpus == (0,)


def test_a_short_disturbance_moves_nothing() -> None:
    scene = Scene()
    attempt = scene.run(make_job("a"))
    scene.pool.hogs = {0}
    assert scene.after(3.0, {attempt: (WAITS,)}) == []
    assert scene.after(20.0, {attempt: (HAS_IT,)}) == []


def test_a_job_may_ask_to_stay() -> None:
    scene = Scene()
    attempt = scene.run(make_job("a", move=False))
    scene.pool.hogs = {0}
    assert scene.after(60.0, {attempt: (WAITS,)}) == []


def test_ranks_move_in_one_step_or_not_at_all() -> None:
    scene = Scene(4)
    attempt = scene.run(make_job("a", ranks=2))
    scene.pool.hogs = {0, 1, 2}
    assert scene.after(30.0, {attempt: (WAITS, WAITS)}) == [], "there is room for one of them"
    scene.pool.hogs = {0, 1}
    (move,) = scene.after(30.0, {attempt: (WAITS, WAITS)})
    assert move.after == (2, 3)
    assert scene.processes.moved == [(attempt.id, {0: 2, 1: 3})]


def test_an_attempt_that_cannot_be_moved_keeps_its_cpu_and_no_other() -> None:
    scene = Scene()
    attempt = scene.run(make_job("a"))
    scene.pool.hogs = {0}
    scene.processes.ended = {attempt.id}
    assert scene.after(30.0, {attempt: (WAITS,)}) == []
    assert attempt.slot.cpus == (0,)
    assert scene.pool.acquire(1).cpus == (1,)


def test_an_attempt_that_has_moved_stays_for_a_while() -> None:
    scene = Scene(3)
    attempt = scene.run(make_job("a"))
    moved_at = []
    for _ in range(100):
        scene.pool.hogs = set(attempt.slot.cpus)
        moved_at += [scene.now] * len(scene.after(1.0, {attempt: (WAITS,)}))
    rests = [later - earlier for earlier, later in pairwise(moved_at)]
    assert all(rest >= REST_S * 2**number for number, rest in enumerate(rests))
    assert len(moved_at) == 3


def test_of_two_runs_that_share_a_core_one_moves(tmp_path: Path) -> None:
    first, second = Scene(), Scene()
    first.pool._locks, second.pool._locks = CpuLocks(tmp_path / "cpus"), CpuLocks(tmp_path / "cpus")
    one = first.run(make_job("one"))
    second.pool.hogs = {1}
    other = second.run(make_job("other"))
    assert (one.slot.cpus, other.slot.cpus) == ((0,), (0,))
    second.pool.hogs = set()
    moves: list[Moved] = []
    for _ in range(40):
        shares = {True: (WAITS,), False: (HAS_IT,)}[one.slot.cpus == other.slot.cpus]
        moves += first.after(1.0, {one: shares}) + second.after(1.0, {other: shares})
    assert len(moves) == 1
    assert {one.slot.cpus, other.slot.cpus} == {(0,), (1,)}
    assert moves[0].because_of == ("another run",)


def test_the_ledger_keeps_where_an_attempt_ran_and_since_when(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "ledger.sqlite3")
    ledger.put_jobs(
        [DeclaredJob(position=0, job=make_job("a")), DeclaredJob(position=1, job=make_job("b"))]
    )
    for name in ("a", "b"):
        attempt = Attempt(job_id=name, number=0, cpus=(0,), gpus=(), started_at=100.0)
        ledger.start_attempt(attempt, queue_s=0.0)
    ledger.commit()
    assert [row["cpu_spans"] for row in ledger.attempts()] == [[{"since": 100.0, "cpus": [0]}]] * 2
    ledger.move_attempt("a", 0, (0,), (3,), at=160.0)
    ledger.move_attempt("a", 0, (3,), (1,), at=200.0)
    ledger.close()
    with_moves, without = Ledger.open(tmp_path / "ledger.sqlite3", read_only=True).attempts()
    assert with_moves["cpus"] == [1]
    assert with_moves["cpu_spans"] == [
        {"since": 100.0, "cpus": [0]},
        {"since": 160.0, "cpus": [3]},
        {"since": 200.0, "cpus": [1]},
    ]
    assert without["cpu_spans"] == [{"since": 100.0, "cpus": [0]}]
