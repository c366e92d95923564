"""Who starts when something becomes free: order, overtaking, patience."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from supervisor_helpers import make_job

from orchestrator.supervisor.job_queue import PATIENCE, JobQueue, Shortage


class Room:
    """Cores and GPUs that jobs take, and what was asked."""

    def __init__(self, line: JobQueue, cores: int, gpus: int = 0) -> None:
        self.line, self.cores, self.gpus = line, cores, gpus
        self.demands: dict[str, tuple[int, int]] = {}
        self.started: list[str] = []
        self.asked: list[str] = []

    def add(self, job_id: str, cores: int = 1, gpus: int = 0, **when: Any) -> None:
        self.demands[job_id] = cores, gpus
        self.line.add(job_id, make_job(cores=cores, gpus=gpus).resources, **{"now": 0.0} | when)

    def try_start(self, job_id: str) -> Shortage | None:
        self.asked.append(job_id)
        cores, gpus = self.demands[job_id]
        if cores > self.cores:
            return "cores"
        if gpus > self.gpus:
            return "gpus"
        self.cores, self.gpus = self.cores - cores, self.gpus - gpus
        self.started.append(job_id)
        return None

    def end(self, job_id: str) -> None:
        self.cores, self.gpus = (
            self.cores + self.demands[job_id][0],
            self.gpus + self.demands[job_id][1],
        )

    def start(self, now: float = 0.0, at_most: int = 1000) -> list[str]:
        before = len(self.started)
        for offer in self.line.offers(now, at_most=at_most):
            shortage = self.try_start(offer.job_id)
            if shortage is None:
                offer.accept()
            else:
                offer.refuse(shortage)
        return self.started[before:]


def test_jobs_start_in_order_as_far_as_there_is_room() -> None:
    room = Room(JobQueue(), cores=3)
    for name in "abcde":
        room.add(name)
    assert room.start() == ["a", "b", "c"]
    assert len(room.line) == 2
    room.end("b")
    assert room.start() == ["d"]


def test_a_job_that_does_not_fit_is_overtaken() -> None:
    room = Room(JobQueue(), cores=1)
    room.add("big", cores=2)
    room.add("small")
    assert room.start() == ["small"]


def test_a_job_overtaken_often_is_next() -> None:
    room = Room(JobQueue(), cores=2)
    room.add("first")
    assert room.start() == ["first"]
    room.add("big", cores=2)
    for number in range(2 * PATIENCE):
        room.add(f"small{number}")
    for number in range(PATIENCE):
        assert room.start(at_most=1) == [f"small{number}"]
        room.end(f"small{number}")
    assert room.start() == []
    room.end("first")
    assert room.start() == ["big"]


def test_a_job_that_waits_for_a_gpu_holds_nobody_up_who_needs_none() -> None:
    room = Room(JobQueue(), cores=2, gpus=1)
    room.add("gpu0", gpus=1)
    assert room.start() == ["gpu0"]
    room.add("gpu1", gpus=1)
    for number in range(3 * PATIENCE):
        room.add(f"cpu{number}")
        assert room.start() == [f"cpu{number}"]
        room.end(f"cpu{number}")
    room.end("gpu0")
    assert room.start() == ["gpu1"]


def test_back_off_holds_a_job_back_and_then_it_goes_first() -> None:
    room = Room(JobQueue(), cores=1)
    room.add("late", not_before=10.0)
    room.add("later", not_before=11.0)
    room.add("now")
    room.add("next")
    assert room.line.next_due == 10.0
    assert room.start(9.9) == ["now"]
    room.end("now")
    assert room.start(12.0) == ["late"]
    room.end("late")
    assert room.start(12.0) == ["later"]
    room.end("later")
    assert room.start(12.0) == ["next"]
    assert room.line.next_due is None
    assert len(room.line) == 0


@settings(max_examples=40)
@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 1), st.integers(0, 3)), max_size=40),
    st.randoms(use_true_random=False),
)
def test_everybody_starts_exactly_once(
    cores: int, wanted: list[tuple[int, int, int]], random: Any
) -> None:
    room = Room(JobQueue(), cores=4, gpus=1)
    for number, (asked, gpus, delay) in enumerate(wanted):
        room.add(f"j{number}", min(asked, cores), gpus, not_before=float(delay) if delay else None)
    running: list[str] = []
    now = 0.0
    while len(room.line) or running:
        running += room.start(now, at_most=cores)
        now += 1.0
        if running:
            room.end(running.pop(random.randrange(len(running))))
    assert Counter(room.started) == Counter(room.demands.keys())
