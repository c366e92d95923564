"""When a job is moved to other CPUs, and when it stays."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest
from supervisor_helpers import ledgers_closed, make_job, make_machine  # noqa: F401 - a fixture

from orchestrator.core.job import Attempt, Job
from orchestrator.executors.base import Handle, Sampled
from orchestrator.executors.local_backend import LocalCpuMoves
from orchestrator.ledger import Ledger
from orchestrator.ledger.rows import DeclaredJob
from orchestrator.machine.neighbours import Neighbours
from orchestrator.machine.placement import Competitor, CpuUse
from orchestrator.machine.slots import SlotPool
from orchestrator.supervisor import cpu_mover
from orchestrator.supervisor.active_attempts import ActiveAttempt, ActiveAttempts
from orchestrator.supervisor.cpu_mover import CpuMover, Move

WAITS, HAS_IT = 0.5, 0.01


class Hogs(Neighbours):
    """Competitors that a test names, by CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.on: set[int] = set()
        self.looked_from = 0.0

    def look(self, own: Mapping[int, int], in_use_elsewhere: Collection[int] = ()) -> CpuUse:
        return CpuUse(
            own=own,
            competitors=[Competitor(name=f"hog {cpu}", demand={cpu: 1.0}) for cpu in self.on],
        )

    @property
    def measured_from(self) -> float:
        return self.looked_from


class NoProcesses:
    """In place of an executor: it notes which attempts were moved."""

    def __init__(self) -> None:
        self.moved: list[tuple[Handle, Mapping[int, int]]] = []
        self.ended: set[Handle] = set()

    def move(self, handle: Handle, to: Mapping[int, int]) -> bool:
        if handle in self.ended:
            return False
        self.moved.append((handle, to))
        return True


class Scene:
    """A machine with jobs that run, hogs that come and go, and a clock."""

    def __init__(self, cpus: int = 2, max_parallel: int | None = None) -> None:
        self.now = 0.0
        self.hogs, self.executor, self.active = Hogs(), NoProcesses(), ActiveAttempts()
        self.pool = SlotPool(make_machine(cpus), max_parallel, self.hogs)
        moves = LocalCpuMoves(self.pool, self.executor)
        self.mover = CpuMover(moves=moves, active=self.active, now=lambda: self.now)

    def run(self, job: Job) -> ActiveAttempt:
        slot = self.pool.acquire(job.resources.all_cores)
        assert slot is not None
        handle = Handle(job.job_id, 0)
        attempt = ActiveAttempt(job=job, handle=handle, slot=slot, started=0.0, last_progress=0.0)
        self.active.add(attempt)
        return attempt

    def after(self, seconds: float, waits: Mapping[ActiveAttempt, tuple[float, ...]]) -> list[Move]:
        """What is moved when each attempt waits so much, by rank; a sample every two seconds."""
        moves = []
        until = self.now + seconds
        while self.now < until:
            self.now += 0.5
            if self.now % 2 == 0:
                for attempt, shares in waits.items():
                    self.mover.note_waiting(attempt, Sampled(attempt.handle, 1.0, shares))
                self.hogs.looked_from = time.monotonic()
            moves += self.mover.tick()
        return moves


def test_a_job_whose_cpu_is_taken_moves_to_an_idle_one_within_ten_seconds() -> None:
    scene = Scene()
    attempt = scene.run(make_job("a"))
    assert attempt.slot.cpus == (0,)
    scene.hogs.on = {0}
    (move,) = scene.after(10.0, {attempt: (WAITS,)})
    assert (move.before.cpus, move.after.cpus, move.because_of) == ((0,), (1,), ("hog 0",))
    assert attempt.slot is move.after
    assert scene.executor.moved == [(attempt.handle, {0: 1})]
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
    scene.hogs.on = hogs
    assert scene.after(60.0, {attempt: (share,)}) == []
    assert attempt.slot.cpus == (0,)


def test_a_short_disturbance_moves_nothing() -> None:
    scene = Scene()
    attempt = scene.run(make_job("a"))
    scene.hogs.on = {0}
    assert scene.after(4.0, {attempt: (WAITS,)}) == []
    assert scene.after(20.0, {attempt: (HAS_IT,)}) == []


def test_a_job_may_ask_to_stay() -> None:
    scene = Scene()
    attempt = scene.run(make_job("a", move=False))
    scene.hogs.on = {0}
    assert scene.after(60.0, {attempt: (WAITS,)}) == []


def test_ranks_move_in_one_step_or_not_at_all() -> None:
    scene = Scene(4)
    attempt = scene.run(make_job("a", ranks=2))
    scene.hogs.on = {0, 1, 2}
    assert scene.after(30.0, {attempt: (WAITS, WAITS)}) == [], "there is room for one of them"
    scene.hogs.on = {0, 1}
    (move,) = scene.after(30.0, {attempt: (WAITS, WAITS)})
    assert move.after.cpus == (2, 3)
    assert scene.executor.moved == [(attempt.handle, {0: 2, 1: 3})]


def test_two_runs_that_want_the_same_core_do_not_both_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each sees what the other has reserved; in the end one of them has moved, and both are
    alone."""
    first, second = Scene(), Scene()
    pauses = iter([2.0, 6.0])
    monkeypatch.setattr(cpu_mover.random, "uniform", lambda *_: next(pauses))
    one, other = first.run(make_job("one")), second.run(make_job("other"))
    moves: list[Move] = []
    for _ in range(40):
        first.hogs.on, second.hogs.on = set(second.pool._own()), set(first.pool._own())
        shares = {True: (WAITS,), False: (HAS_IT,)}[one.slot.cpus == other.slot.cpus]
        moves += first.after(1.0, {one: shares})
        first.hogs.on, second.hogs.on = set(second.pool._own()), set(first.pool._own())
        moves += second.after(1.0, {other: shares})
    assert len(moves) == 1
    assert {one.slot.cpus, other.slot.cpus} == {(0,), (1,)}


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
