"""What the supervisor relies on of every :class:`orchestrator.executors.executor.Executor`.

A test module runs the suite by importing all of it, and a fixture ``stage`` that makes a
:class:`Stage` of its executor.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import pytest
from launcher_conformance import Script
from supervisor_helpers import make_job

from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.job import Job
from orchestrator.executors.executor import (
    AttemptId,
    Event,
    Executor,
    Exited,
    Placed,
    Progressed,
)

PATIENCE_S = 60.0


class Stage(Protocol):
    """An executor with room for two jobs of one core at once, on two cores."""

    executor: Executor

    def prepare(self, job: Job, number: int, *scripts: Script) -> Path:
        """Let the ranks of an attempt do what the scripts say. Return the job's directory."""


def until(stage: Stage, condition: Callable[[list[Event]], object]) -> list[Event]:
    """Return all events up to the one that makes ``condition`` true."""
    deadline = time.monotonic() + PATIENCE_S
    events: list[Event] = []
    while not condition(events):
        assert time.monotonic() < deadline, f"in vain; events so far: {events}"
        events += stage.executor.poll(1.0)
    return events


def has_exited(*ids: AttemptId) -> Callable[[list[Event]], bool]:
    return lambda events: set(ids) <= {one.attempt for one in events if isinstance(one, Exited)}


def has_spoken(*ids: AttemptId) -> Callable[[list[Event]], bool]:
    return lambda events: set(ids) <= {one.attempt for one in events if isinstance(one, Progressed)}


def exit_of(events: Sequence[Event], id_: AttemptId) -> Exited:
    (found,) = [one for one in events if isinstance(one, Exited) and one.attempt == id_]
    return found


def start(stage: Stage, job: Job, *scripts: Script, number: int = 0) -> AttemptId:
    assert stage.executor.reserve(job, waiting=1) is None
    folder = stage.prepare(job, number, *scripts)
    stage.executor.submit(job, number, folder)
    return AttemptId(job.job_id, number)


def test_an_attempt_is_placed_speaks_and_exits(stage: Stage) -> None:
    id_ = start(stage, make_job("a"), Script(exits=ExitCode.DIVERGED), number=3)
    events = until(stage, has_exited(id_))
    kinds = [type(event) for event in events if event.attempt == id_]
    assert kinds[0] is Placed
    assert kinds[-1] is Exited
    assert Progressed in kinds
    assert exit_of(events, id_).returncode == ExitCode.DIVERGED
    assert not [event for event in stage.executor.poll(0.0) if isinstance(event, Exited)]


def test_room_is_taken_by_a_reservation_and_given_back(stage: Stage) -> None:
    executor = stage.executor
    assert executor.jobs_at_once == 2
    first, second, third = (make_job(name) for name in "abc")
    assert executor.reserve(first, waiting=1) is None
    assert executor.reserve(second, waiting=1) is None
    assert executor.reserve(third, waiting=1) == "room"
    executor.release(first)
    executor.release(first)  # nothing is reserved
    assert executor.reserve(third, waiting=1) is None
    executor.release(second)
    executor.release(third)
    id_ = start(stage, first, Script(exits=0))
    until(stage, has_exited(id_))
    start(stage, second, Script())
    start(stage, third, Script())


def test_a_start_that_fails_gives_its_room_back(stage: Stage, tmp_path: Path) -> None:
    job = make_job("a")
    for _ in range(3):
        assert stage.executor.reserve(job, waiting=1) is None
        with pytest.raises(OSError):
            stage.executor.submit(job, 0, tmp_path / "missing")
        stage.executor.release(job)
    start(stage, make_job("b"), Script())
    start(stage, make_job("c"), Script())


def test_what_never_fits_is_refused(stage: Stage) -> None:
    job = make_job("large", cores=64)
    (problem,) = stage.executor.problems(job)
    assert problem.where == "jobs[0].resources.cores"
    assert stage.executor.reserve(job, waiting=1) == "never"
    assert not stage.executor.problems(make_job("small"))


def test_memory_is_promised_once(stage: Stage) -> None:
    half = make_job("a", memory_mib=1 << 30)
    assert stage.executor.reserve(half, waiting=1) is None  # alone, it may try
    assert stage.executor.reserve(make_job("b", memory_mib=1 << 30), waiting=1) == "room"


def test_one_that_is_asked_leaves_with_its_own_code_and_one_that_is_deaf_is_killed(
    stage: Stage,
) -> None:
    polite = start(stage, make_job("polite"), Script(when_asked=ExitCode.INTERRUPTED))
    deaf = start(stage, make_job("deaf"), Script())
    until(stage, has_spoken(polite, deaf))
    for id_ in (polite, deaf, AttemptId("polite", 7), AttemptId("nobody", 0)):
        stage.executor.cancel(id_, kill=False)
    events = until(stage, has_exited(polite))
    assert exit_of(events, polite).returncode == ExitCode.INTERRUPTED
    stage.executor.cancel(deaf, kill=True)
    stage.executor.cancel(deaf, kill=True)
    assert exit_of(until(stage, has_exited(deaf)), deaf).returncode == -signal.SIGKILL


def test_one_that_is_asked_for_a_checkpoint_goes_on(stage: Stage) -> None:
    id_ = start(stage, make_job("a"), Script(when_asked=ExitCode.INTERRUPTED))
    until(stage, has_spoken(id_))
    stage.executor.checkpoint(id_)
    stage.executor.checkpoint(AttemptId("nobody", 0))
    stage.executor.cancel(id_, kill=False)
    assert exit_of(until(stage, has_exited(id_)), id_).returncode == ExitCode.INTERRUPTED


def test_ranks_are_one_attempt_whose_end_names_the_rank(stage: Stage) -> None:
    job = make_job("a", ranks=2)
    id_ = start(stage, job, Script(), Script(dies=signal.SIGKILL))
    assert stage.executor.reserve(make_job("b"), waiting=1) == "room"
    found = exit_of(until(stage, has_exited(id_)), id_)
    assert (found.returncode, found.rank) == (-signal.SIGKILL, 1)


def test_fewer_jobs_at_once_end_none(stage: Stage) -> None:
    ids = [start(stage, make_job(name), Script()) for name in "ab"]
    assert stage.executor.resize(1) == 1
    stage.executor.cancel(ids[0], kill=True)
    until(stage, has_exited(ids[0]))
    assert stage.executor.reserve(make_job("c"), waiting=1) == "room"
    assert stage.executor.resize(2) == 2
    assert stage.executor.reserve(make_job("c"), waiting=1) is None


def test_close_ends_everything_and_may_be_called_again(stage: Stage) -> None:
    start(stage, make_job("a"), Script())
    assert stage.executor.reserve(make_job("b"), waiting=1) is None
    stage.executor.close()
    stage.executor.close()
    assert not list(stage.executor.poll(0.0))
