"""What is killed is reported as killed, with where it resumes; and iterations that a stop would
lose are warned of."""

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

from orchestrator.core.messages import Progress
from orchestrator.executors.base import Launch
from orchestrator.executors.fake import NEVER, Behaviour
from orchestrator.ledger import Ledger


def with_checkpoints(*steps: int, exits_within_s: float) -> Callable[[Launch], Behaviour]:
    def behave(launch: Launch) -> Behaviour:
        folder = launch.job_dir / "checkpoints"
        folder.mkdir(exist_ok=True)
        for env_steps in steps:
            (folder / f"checkpoint-{env_steps:012d}.pt").touch()
        (folder / ".checkpoint-000000009999.pt.7.tmp").touch()
        progress = Progress(phase="training", env_steps=700)
        return Behaviour(
            after_s=NEVER, exits_within_s=exits_within_s, progress_every_s=1.0, progress=progress
        )

    return behave


@pytest.mark.parametrize(("steps", "resumes_from", "lost"), [((256, 512), 512, 188), ((), 0, 700)])
def test_a_worker_killed_after_the_grace_time_is_reported_with_what_is_lost(
    tmp_path: Path, steps: tuple[int, ...], resumes_from: int, lost: int
) -> None:
    behave = with_checkpoints(*steps, exits_within_s=NEVER)
    experiment = Experiment(tmp_path, [make_job("deaf")], behave, grace_s=7.0)
    experiment.reporter.each_turn = once(
        lambda view: view.elapsed_s >= 3, lambda: experiment.supervisor.request_stop("SIGINT")
    )
    assert experiment.run() == {"deaf": "PENDING"}
    ((message, facts),) = [
        (text, facts) for kind, text, facts in experiment.reporter.events if kind == "paused"
    ]
    assert f"{lost} are lost" in message
    assert (facts["resumes_from"], round(facts["killed_after_s"])) == (resumes_from, 7)


def iterating(seconds: float) -> Behaviour:
    def progress(s: float) -> Progress:
        return Progress(phase="training", iteration=int(s / seconds), env_steps=int(s))

    return Behaviour(after_s=100.0, progress_every_s=0.5, progress=progress)


@pytest.mark.parametrize(("iteration_s", "warned"), [(20.0, True), (9.0, False), (0.1, False)])
def test_iterations_longer_than_the_grace_time_are_warned_of_once(
    tmp_path: Path, iteration_s: float, *, warned: bool
) -> None:
    jobs = [make_job(f"a-s{seed}", spec={"name": "a"}) for seed in range(3)]
    experiment = Experiment(tmp_path, jobs, lambda launch: iterating(iteration_s), grace_s=10.0)
    experiment.run()
    warnings = [facts for kind, _, facts in experiment.reporter.events if kind == "warning"]
    assert len(warnings) == warned


# -- requests from another process


def test_two_requests_at_once_kill(tmp_path: Path) -> None:
    """As ``stop --now`` sends them."""
    deaf = Behaviour(after_s=NEVER, exits_within_s=NEVER)
    experiment = Experiment(
        tmp_path, [make_job(name) for name in names(2)], lambda launch: deaf, grace_s=1e4
    )
    experiment.reporter.each_turn = once(
        lambda view: view.elapsed_s >= 3, lambda: ask(tmp_path, ("stop", None), ("stop", None))
    )
    assert set(experiment.run().values()) == {"PENDING"}
    assert experiment.fake.time_s < 5


def test_a_stop_that_names_another_supervisor_is_ignored(tmp_path: Path) -> None:
    experiment = Experiment(tmp_path, [make_job("a")], holder="2:2.0:now")
    experiment.reporter.each_turn = once(
        lambda view: bool(view.active), lambda: ask(tmp_path, ("stop", "1:1.0:then"))
    )
    assert experiment.run() == {"a": "SUCCEEDED"}


def test_a_stop_that_names_this_supervisor_is_obeyed_and_noted(tmp_path: Path) -> None:
    slow = Behaviour(after_s=NEVER, exits_within_s=5.0)
    experiment = Experiment(tmp_path, [make_job("a")], lambda launch: slow, holder="2:2.0:now")
    seen: list[bool] = []

    def look() -> None:
        other = Ledger.open(tmp_path / "ledger.sqlite3")
        seen.extend([other.is_stopping("2:2.0:now"), other.is_stopping("1:1.0:then")])
        other.abandon()

    stop = once(lambda view: bool(view.active), lambda: ask(tmp_path, ("stop", "2:2.0:now")))
    stopping = once(lambda view: view.elapsed_s > 2, look)
    experiment.reporter.each_turn = lambda view: (stop(view), stopping(view))[0]
    assert experiment.run() == {"a": "PENDING"}
    assert seen == [True, False]
