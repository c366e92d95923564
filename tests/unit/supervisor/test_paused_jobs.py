"""Jobs that are paused and resumed, with and without a supervisor, and however it ends."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

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

from orchestrator.core.errors import RunDirError, UsageError
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
from orchestrator.core.paths import RunPaths
from orchestrator.executors.fake import NEVER, Behaviour
from orchestrator.experiment.directory import run_directory
from orchestrator.experiment.examination.preflight import JobVerdict
from orchestrator.experiment.from_outside import control, run_snapshot
from orchestrator.experiment.resuming import recovery
from orchestrator.experiment.resuming.reconcile import reconcile
from orchestrator.ledger import Ledger, Verb, summary
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


def test_a_job_resumed_while_it_is_being_paused_is_queued_again_when_its_worker_has_exited(
    tmp_path: Path,
) -> None:
    table: dict[str, Behaviour | list[Behaviour]] = {
        "a": [Behaviour(after_s=NEVER, exits_within_s=5.0), Behaviour()]
    }
    experiment = Experiment(tmp_path, [make_job("a")], behaviours(table))
    experiment.reporter.each_turn = at([(3.0, [("pause", "a"), ("resume", "a")])], tmp_path)
    assert experiment.run() == {"a": "SUCCEEDED"}
    assert experiment.reporter.kinds("a") == [
        "launched",
        "paused",
        "resumed",
        "launched",
        "succeeded",
    ]


def test_a_worker_that_does_not_exit_when_its_job_is_paused_is_killed_and_that_is_said(
    tmp_path: Path,
) -> None:
    deaf = Behaviour(after_s=NEVER, exits_within_s=NEVER)
    experiment = Experiment(tmp_path, [make_job("a")], lambda launch: deaf, grace_s=7.0)
    checkpoints = experiment.paths.job("a").checkpoints
    checkpoints.mkdir(parents=True)
    (checkpoints / "checkpoint-000000000640.pt").touch()
    experiment.reporter.each_turn = at([(10.0, [("pause", "a")])], tmp_path)
    assert experiment.run() == {"a": "PAUSED"}
    assert experiment.fake.time_s == pytest.approx(17.0, abs=0.6)
    kind, text, facts = experiment.reporter.events[-1]
    assert (kind, facts["state"], facts["resumes_from"]) == ("paused", "PAUSED", 640)
    assert "640" in text


def test_a_job_that_ends_as_it_is_paused_has_succeeded(tmp_path: Path) -> None:
    finishing = Behaviour(after_s=NEVER, returncode_asked=0)
    experiment = Experiment(tmp_path, [make_job("a")], lambda launch: finishing)
    experiment.reporter.each_turn = at([(3.0, [("pause", "a")])], tmp_path)
    assert experiment.run() == {"a": "SUCCEEDED"}
    assert experiment.ledger.noted_verbs() == {}


@pytest.mark.parametrize("first", ["pause", "stop"])
def test_a_job_paused_while_the_run_stops_stays_paused(first: str, tmp_path: Path) -> None:
    slow = Behaviour(after_s=NEVER, exits_within_s=5.0)
    requests: list[tuple[str, str | None]] = [("pause", "j0000"), ("stop", None)]
    agenda = [(1.0, [one]) for one in (requests if first == "pause" else requests[::-1])]
    experiment = Experiment(tmp_path, [make_job(name) for name in names(2)], lambda launch: slow)
    experiment.reporter.each_turn = at(agenda, tmp_path)
    assert experiment.run() == {"j0000": "PAUSED", "j0001": "PENDING"}
    assert experiment.supervisor.is_interrupted


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
    assert "paused 2 jobs (ab, ba)" in control.ask(tmp_path, ["ab", "b"], "pause")
    with pytest.raises(UsageError, match=r"ab is PAUSED.*PENDING or RUNNING"):
        control.ask(tmp_path, ["ab"], "pause")
    with pytest.raises(UsageError, match=r"aa is PENDING.*PAUSED"):
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


def test_jobs_that_were_invalid_are_not_retried_and_who_has_no_others_is_told_so(
    tmp_path: Path,
) -> None:
    ledger = Experiment(tmp_path, [make_job(name) for name in ("bad", "ended", "slow")]).ledger
    ledger.set_state("bad", Failed(cause=Cause.INVALID, message="no joints"))
    ledger.set_state("ended", Succeeded())
    ledger.set_state("slow", Failed(cause=Cause.TIMEOUT, message="late"))
    ledger.close()
    assert "queued 1 job (slow) again" in control.ask(tmp_path, [], "retry")
    for jobs in ([], ["*"]):
        with pytest.raises(UsageError, match=r"invalid, and never launched: bad; correct"):
            control.ask(tmp_path, jobs, "retry")


def test_a_pattern_means_all_jobs_that_match_and_are_in_a_fitting_state(tmp_path: Path) -> None:
    job_ids = ("cart-s0", "cart-s1", "cart-s10", "dog-s1")
    experiment = Experiment(tmp_path, [make_job(name) for name in job_ids])
    experiment.ledger.set_state("cart-s10", Succeeded())
    experiment.ledger.close()
    assert "paused 1 job (cart-s1)" in control.ask(tmp_path, ["cart-s1*"], "pause")
    with pytest.raises(UsageError, match=r"cart-s1 is PAUSED, cart-s10 is SUCCEEDED"):
        control.ask(tmp_path, ["cart-s1*"], "pause")
    assert "paused 2 jobs (cart-s0, dog-s1)" in control.ask(tmp_path, ["*-s[01]", "dog*"], "pause")
    assert "queued 2 jobs (cart-s0, cart-s1) again" in control.ask(tmp_path, ["cart*"], "resume")
    assert "cancelled 3 jobs (cart-s0, cart-s1, dog-s1)" in control.stop(tmp_path, ["*"])
    assert "queued 1 job (dog-s1) again" in control.ask(tmp_path, ["d?g-*"], "retry")


@pytest.mark.parametrize("verb", list(control.COMMANDS))
def test_a_pattern_that_no_job_matches_is_refused_with_similar_ids(
    verb: control.JobVerb, tmp_path: Path
) -> None:
    Experiment(tmp_path, [make_job(name) for name in ("cart-s0", "dog-s1")]).ledger.close()
    with pytest.raises(UsageError, match=r"crt-s\*: no such job; jobs here: cart-s0"):
        control.ask(tmp_path, ["crt-s*"], verb)
    with pytest.raises(UsageError, match="no such job"):
        control.ask(tmp_path, ["Cart-*"], verb)


def test_a_beginning_that_several_jobs_have_is_refused_with_the_pattern_for_all(
    tmp_path: Path,
) -> None:
    Experiment(tmp_path, [make_job(name) for name in ("cart-s0", "cart-s1")]).ledger.close()
    with pytest.raises(
        UsageError, match=r"cart: matches several jobs: cart-s0, cart-s1; 'cart\*' in quotes"
    ):
        control.stop(tmp_path, ["cart"])
    with pytest.raises(UsageError, match=r"cart-\*: matches several jobs: cart-s0, cart-s1$"):
        run_snapshot.find(tmp_path, "cart-*")
    with pytest.raises(UsageError, match="cart-s1 has not been launched yet"):
        run_snapshot.find(tmp_path, "*-s1")


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


def test_a_rebuilt_ledger_knows_from_the_summary_which_jobs_are_paused(tmp_path: Path) -> None:
    jobs = [make_job(name) for name in "abc"]
    experiment = Experiment(tmp_path, jobs, behaviours({"a": FOREVER}), cpus=1)
    experiment.reporter.each_turn = once(
        lambda view: view.elapsed_s > 2, lambda: ask(tmp_path, ("pause", "a"), ("pause", "b"))
    )
    experiment.run()
    for job in "abc":
        experiment.paths.job(job).root.mkdir(parents=True, exist_ok=True)
    experiment.paths.job("a").robot_hash.write_text("")
    known = recovery.states_of_summary(experiment.paths)
    recorded = recovery.recorded_jobs(experiment.paths, jobs, known)
    (tmp_path / "new").mkdir()
    ledger = Ledger.create(tmp_path / "new" / "ledger.sqlite3")
    recovery.rebuild(ledger, experiment.paths, recorded, known)
    assert states(ledger) == {"a": "PAUSED", "b": "PAUSED"}
    experiment.paths.summary_json.unlink()
    known = recovery.states_of_summary(experiment.paths)
    assert [one.job.job_id for one in recovery.recorded_jobs(experiment.paths, jobs, known)] == [
        "a"
    ]


def test_a_summary_that_cannot_be_read_just_now_is_not_taken_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = Experiment(tmp_path, [make_job("a")])

    def fails(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(summary, "open_regular", fails)
    with pytest.raises(RunDirError, match=r"summary\.json: cannot be read: .*move it away"):
        recovery.states_of_summary(experiment.paths)


def test_a_rebuilt_ledger_knows_from_the_summary_which_jobs_failed_or_were_cancelled(
    tmp_path: Path,
) -> None:
    jobs = [make_job(name) for name in "abcd"]
    behave = behaviours({"a": Behaviour(returncode=1), "b": FOREVER})
    experiment = Experiment(tmp_path, jobs, behave, cpus=1)
    experiment.reporter.each_turn = once(
        lambda view: view.elapsed_s > 2, lambda: ask(tmp_path, ("cancel", "b"), ("cancel", "c"))
    )
    experiment.run()
    before = {row["job_id"]: row for row in experiment.ledger.summary()}
    for job in "ab":
        experiment.paths.job(job).root.mkdir(parents=True, exist_ok=True)
        experiment.paths.job(job).robot_hash.write_text("")
    known = recovery.states_of_summary(experiment.paths)
    recorded = recovery.recorded_jobs(experiment.paths, jobs, known)
    (tmp_path / "new").mkdir()
    ledger = Ledger.create(tmp_path / "new" / "ledger.sqlite3")
    assert recovery.rebuild(ledger, experiment.paths, recorded, known) == []
    rows = {row["job_id"]: row for row in ledger.summary()}
    for job_id in "abc":
        for key in ("state", "cause", "message"):
            assert rows[job_id][key] == before[job_id][key], (job_id, key)


@pytest.mark.parametrize("content", [None, "[", '[{"job_id": "a"}]', "[]"])
def test_whoever_rebuilds_a_ledger_is_told_which_jobs_it_has_queued_without_a_summary(
    content: str | None, tmp_path: Path
) -> None:
    experiment = Experiment(tmp_path, [make_job("a")], behaviours({"a": Behaviour(returncode=1)}))
    experiment.run()
    experiment.paths.job("a").robot_hash.write_text("")
    experiment.paths.summary_json.unlink()
    if content is not None:
        experiment.paths.summary_json.write_text(content)
    known = recovery.states_of_summary(experiment.paths)
    recorded = recovery.recorded_jobs(experiment.paths, experiment.jobs, known)
    (tmp_path / "new").mkdir()
    ledger = Ledger.create(tmp_path / "new" / "ledger.sqlite3")
    assert recovery.rebuild(ledger, experiment.paths, recorded, known) == ["a"]
    assert states(ledger) == {"a": "PENDING"}


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


def test_a_job_is_paused_from_another_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with run_directory.claim(tmp_path) as paths:
        holder = run_directory.holder(paths)
        assert holder is not None
        experiment = Experiment(
            tmp_path, [make_job("a")], lambda launch: FOREVER, holder=holder.key
        )

        def pause() -> None:
            with monkeypatch.context() as patch:
                patch.setattr("socket.gethostname", lambda: "another-host")
                control.ask(tmp_path, ["a"], "pause")

        experiment.reporter.each_turn = once(lambda view: view.elapsed_s > 10, pause)
        assert experiment.run() == {"a": "PAUSED"}
    assert RunPaths(tmp_path).requests.exists()
