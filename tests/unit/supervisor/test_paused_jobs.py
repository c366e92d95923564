"""Jobs that are paused and resumed, with and without a supervisor, and however it ends."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from supervisor_helpers import (
    FOREVER,
    Experiment,
    ask,
    behaviours,
    ledgers_closed,  # noqa: F401 - a fixture
    make_job,
    names,
    once,
    rows,
)

from orchestrator.core.errors import UsageError
from orchestrator.core.job import (
    Cancelled,
    Cause,
    Failed,
    Paused,
    Pending,
    Running,
    State,
    Succeeded,
)
from orchestrator.executors.fake import Behaviour
from orchestrator.experiment import session
from orchestrator.experiment.examination.preflight import JobVerdict
from orchestrator.experiment.from_outside import control
from orchestrator.experiment.planning.run_plan import RunOptions
from orchestrator.experiment.resuming import recovery
from orchestrator.experiment.resuming.reconcile import reconcile
from orchestrator.ledger import Ledger, Verb
from orchestrator.supervisor.events import SilentReporter, View
from orchestrator.supervisor.retry_policy import exit_code


def at(
    agenda: list[tuple[float, list[tuple[str, str | None]]]], root: Path
) -> Callable[[View], None]:
    """Requests of other processes at these simulated seconds."""

    def each_turn(view: View) -> None:
        while agenda and view.elapsed_s >= agenda[0][0]:
            ask(root, *agenda.pop(0)[1])

    return each_turn


def states(ledger: Ledger) -> dict[str, str]:
    return {row.job.job_id: row.state.name for row in ledger.jobs()}


def test_paused_jobs_leave_their_slot_to_others_and_the_run_ends_without_them(
    tmp_path: Path,
) -> None:
    experiment = Experiment(
        tmp_path, [make_job(name) for name in names(3)], behaviours({"j0000": FOREVER}), cpus=1
    )
    experiment.reporter.each_turn = at([(3.0, [("pause", "j0000"), ("pause", "j0002")])], tmp_path)
    assert experiment.run() == {"j0000": "PAUSED", "j0001": "SUCCEEDED", "j0002": "PAUSED"}
    assert experiment.order == ["j0000", "j0001"]
    assert experiment.reporter.kinds("j0000") == ["launched", "paused"]
    assert not experiment.supervisor.is_interrupted
    assert exit_code(experiment.supervisor._jobs.states, interrupted=False) == 130
    assert rows(tmp_path)["j0000"]["state"] == "PAUSED"
    (attempt, _) = experiment.ledger.attempts()
    assert (attempt["cause"], experiment.ledger.noted_verbs()) == (Cause.PAUSED, {})


def test_a_paused_job_keeps_its_count_of_failures_and_resumes_from_the_same_run(
    tmp_path: Path,
) -> None:
    table: dict[str, Behaviour | list[Behaviour]] = {
        "a": [Behaviour(returncode=-9), FOREVER, Behaviour(returncode=-9)],
        "b": Behaviour(after_s=60.0),
    }
    experiment = Experiment(
        tmp_path, [make_job("a", max_retries=1), make_job("b")], behaviours(table)
    )
    experiment.reporter.each_turn = at(
        [(10.0, [("pause", "a")]), (20.0, [("resume", "a")])], tmp_path
    )
    assert experiment.run() == {"a": "FAILED", "b": "SUCCEEDED"}, (
        "the second failure is one too many"
    )
    assert experiment.reporter.kinds("a") == [
        "launched",
        "retrying",
        "launched",
        "paused",
        "resumed",
        *["launched"],
        "failed",
    ]


def test_paused_jobs_can_be_cancelled_and_then_not_resumed(tmp_path: Path) -> None:
    experiment = Experiment(
        tmp_path, [make_job("a"), make_job("b")], behaviours({"a": Behaviour(after_s=30.0)}), cpus=1
    )
    agenda = [
        (1.0, [("pause", "b")]),
        (2.0, [("cancel", "b")]),
        (3.0, [("resume", "b"), ("pause", "b")]),
    ]
    experiment.reporter.each_turn = at(agenda, tmp_path)
    assert experiment.run() == {"a": "SUCCEEDED", "b": "CANCELLED"}


@pytest.mark.parametrize(
    ("noted", "expected"),
    [
        ([], Pending(failures=1)),
        (["pause"], Paused(failures=1)),
        (["cancel"], Cancelled()),
        (["cancel", "pause"], Cancelled()),
    ],
)
def test_the_next_supervisor_settles_a_job_that_was_being_paused_or_cancelled(
    noted: list[Verb], expected: State, tmp_path: Path
) -> None:
    """The supervisor died between the request and the exit of the worker."""
    experiment = Experiment(tmp_path, [make_job("a")])
    running = Running(attempt=experiment.begin("a"), failures=1)
    experiment.ledger.set_state("a", running)
    for verb in noted:
        experiment.ledger.note(verb, "a")
    experiment.ledger.commit()
    assert experiment.ledger.take_requests() == [], "it is a note, and no request"
    (row,) = experiment.ledger.jobs()
    settled = recovery.settle(row, experiment.paths, experiment.ledger, SilentReporter())
    assert settled.state == expected
    experiment.ledger.commit()
    assert experiment.ledger.noted_verbs() == {}


def test_requests_that_no_supervisor_read_are_for_the_next(tmp_path: Path) -> None:
    experiment = Experiment(tmp_path, [make_job(name) for name in "abcde"])
    experiment.ledger.set_state("b", Paused())
    for job in "cde":
        experiment.begin(job)
    experiment.ledger.commit()
    ask(tmp_path, ("pause", "a"), ("resume", "b"), ("pause", "c"))
    ask(tmp_path, ("cancel", "d"), ("pause", "d"), ("resume", "d"), ("pause", "e"), ("resume", "e"))
    recovery.apply_late_requests(experiment.ledger, "")
    running = dict.fromkeys("cde", "RUNNING")
    assert states(experiment.ledger) == {"a": "PAUSED", "b": "PENDING", **running}
    assert experiment.ledger.noted_verbs() == {"c": "pause", "d": "cancel"}


def test_jobs_are_paused_and_resumed_while_no_supervisor_runs(tmp_path: Path) -> None:
    experiment = Experiment(tmp_path, [make_job(name) for name in ("aa", "ab", "ba", "ca")])
    for job in ("ba", "ca"):
        experiment.begin(job)  # its supervisor died
    experiment.ledger.close()
    with pytest.raises(UsageError, match="several"):
        control.ask(tmp_path, ["a"], "pause")
    control.ask(tmp_path, ["ab", "b"], "pause")
    with pytest.raises(UsageError):
        control.ask(tmp_path, ["ab"], "pause")
    with pytest.raises(UsageError):
        control.ask(tmp_path, ["aa"], "resume")
    assert {job: row["state"] for job, row in rows(tmp_path).items()} == {
        "aa": "PENDING",
        "ab": "PAUSED",
        "ba": "PAUSED",
        "ca": "RUNNING",
    }
    assert "cancelled 1 job" in control.stop(tmp_path, ["ca"])
    cancelled = rows(tmp_path)["ca"]
    assert (cancelled["state"], cancelled["pid"]) == ("CANCELLED", None)
    assert "1 job (ba)" in control.ask(tmp_path, ["ba"], "resume")
    assert "1 job (ab)" in control.ask(tmp_path, [], "resume")
    assert "nothing to resume" in control.ask(tmp_path, [], "resume")
    control.ask(tmp_path, ["ab"], "pause")
    control.stop(tmp_path, ["ab"])
    assert rows(tmp_path)["ab"]["state"] == "CANCELLED"


def test_a_pattern_means_all_jobs_that_match_and_are_in_a_fitting_state(tmp_path: Path) -> None:
    job_ids = ("cart-s0", "cart-s1", "cart-s10", "dog-s1")
    experiment = Experiment(tmp_path, [make_job(name) for name in job_ids])
    experiment.ledger.set_state("cart-s10", Succeeded())
    experiment.ledger.close()
    control.ask(tmp_path, ["cart-s1*"], "pause")
    with pytest.raises(UsageError):
        control.ask(tmp_path, ["cart-s1*"], "pause")
    control.ask(tmp_path, ["*-s[01]", "dog*"], "pause")
    control.ask(tmp_path, ["cart*"], "resume")
    control.stop(tmp_path, ["*"])
    control.ask(tmp_path, ["d?g-*"], "retry")


@pytest.mark.parametrize("has_run", [True, False])
@pytest.mark.parametrize("on_change", ["keep", "restart"])
def test_a_paused_job_stays_paused_over_a_run_whatever_changes(
    has_run: bool, on_change: str, tmp_path: Path
) -> None:
    experiment = Experiment(tmp_path, [make_job("a"), make_job("b")])
    for job in "ab":
        if has_run:
            experiment.begin(job)
        experiment.ledger.set_state(job, Paused(failures=2))
    experiment.ledger.commit()
    changed = make_job("b", spec={"total_timesteps": 77})
    settled = reconcile(
        [experiment.jobs[0], changed],
        dict.fromkeys("ab", JobVerdict()),
        {"a": 0, "b": 1},
        on_change,  # type: ignore[arg-type]
        experiment.paths,
        experiment.ledger,
        experiment.reporter,
    )
    assert [row.state.name for row in settled] == ["PAUSED", "PAUSED"]
    assert "resume" in experiment.reporter.messages()
    again = Experiment(tmp_path, [])
    assert again.run() == {"a": "PAUSED", "b": "PAUSED"}
    assert again.order == []


def test_a_job_that_a_dead_supervisor_left_running_is_settled_before_it_starts_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker is ended before its directory is set aside; that it was to be paused is heeded."""
    jobs = [make_job("a"), make_job("b")]
    experiment = Experiment(tmp_path, jobs)
    for number, job in enumerate("ab"):
        experiment.begin(job, pid=4_000_000 + number, pid_start=1.0)
        experiment.paths.job(job).root.mkdir(parents=True)
    experiment.ledger.note("pause", "b")
    experiment.ledger.commit()
    ended: list[tuple[int, bool]] = []

    def kill_leftover(pid: int, _: float) -> None:
        ended.append((pid, experiment.paths.job("ab"[pid - 4_000_000]).root.exists()))

    monkeypatch.setattr(recovery, "kill_leftover", kill_leftover)
    settled = reconcile(
        [make_job(job, spec={"total_timesteps": 77}) for job in "ab"],
        dict.fromkeys("ab", JobVerdict()),
        {"a": 0, "b": 1},
        "restart",
        experiment.paths,
        experiment.ledger,
        experiment.reporter,
    )
    assert ended == [(4_000_000, True), (4_000_001, True)]
    assert [(row.state.name, row.attempts) for row in settled] == [("PENDING", 0), ("PAUSED", 0)]
    assert len(list(experiment.paths.replaced.iterdir())) == 2


def test_a_rebuilt_ledger_knows_from_the_summary_which_jobs_are_held_back(tmp_path: Path) -> None:
    jobs = [make_job(name) for name in "abcde"]
    fails = Behaviour(returncode=1)
    experiment = Experiment(tmp_path, jobs, behaviours({"a": FOREVER, "d": fails}), cpus=1)
    asked = ("pause", "a"), ("pause", "b"), ("cancel", "e")
    experiment.reporter.each_turn = once(
        lambda view: view.elapsed_s > 2, lambda: ask(tmp_path, *asked)
    )
    experiment.run()
    for job in "abcde":
        experiment.paths.job(job).root.mkdir(parents=True, exist_ok=True)
    for job in "ad":
        experiment.paths.job(job).robot_hash.write_text("")
    known = recovery.states_of_summary(experiment.paths)
    recorded = recovery.recorded_jobs(experiment.paths, jobs, known)
    (tmp_path / "new").mkdir()
    ledger = Ledger.create(tmp_path / "new" / "ledger.sqlite3")
    assert recovery.rebuild(ledger, experiment.paths, recorded, known) == []
    assert states(ledger) == {"a": "PAUSED", "b": "PAUSED", "d": "FAILED", "e": "CANCELLED"}
    experiment.paths.summary_json.unlink()
    experiment.ledger.close()
    before, told = experiment.paths.ledger.read_bytes(), list[tuple[str, list[str]]]()
    beside: Any = SimpleNamespace(
        event=lambda kind, _, jobs: told.append((kind, jobs)), end=lambda: None
    )
    options = RunOptions(run_dir=tmp_path, rebuild_ledger=True)
    with contextlib.ExitStack() as stack:
        made = session._existing_ledger(experiment.paths, options, jobs, beside, stack)
        assert made is not None
        assert states(made) == {"a": "PENDING", "d": "PENDING"}
    assert told == [("warning", ["a", "d"])], "of them nothing was known"
    (aside,) = experiment.paths.replaced.iterdir()
    assert aside.read_bytes() == before


@pytest.mark.parametrize(
    ("ended", "code"),
    [
        ([Paused()], 130),
        ([Paused(), Succeeded()], 130),
        ([Paused(), Succeeded(), Failed(cause=Cause.ERROR, message="")], 1),
        ([Succeeded()], 0),
        ([], 0),
    ],
)
def test_the_exit_code_tells_that_jobs_are_paused_unless_others_failed(
    ended: list[State], code: int
) -> None:
    assert (
        exit_code({str(number): state for number, state in enumerate(ended)}, interrupted=False)
        == code
    )
