"""What `status`, `attach`, `list` and `run` say of a search; jobs at rungs count as done."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Never

import command_helpers as commands
import pytest
from searcher_helpers import beginning
from supervisor_helpers import Experiment, ask, make_job, once
from trial_helpers import Told, point_of, search_run

from orchestrator.core.errors import LedgerBusyError
from orchestrator.core.job import Cancelled, Cause, Failed, Paused, Pending, State, Succeeded
from orchestrator.core.paths import RunPaths
from orchestrator.executors.fake import Behaviour
from orchestrator.experiment import begun_source
from orchestrator.experiment.directory import run_directory, run_end, run_index
from orchestrator.experiment.directory.run_directory import LockHolder
from orchestrator.experiment.directory.run_end import RunEnd
from orchestrator.experiment.from_outside import run_snapshot
from orchestrator.experiment.from_outside.run_watch import RunWatches, WatchReporter
from orchestrator.experiment.planning.run_plan import RunOptions
from orchestrator.experiment.resuming import jobs_at_rungs, resume
from orchestrator.features.search import changed_search, search_events
from orchestrator.features.search.declaration.declared_search import declaration_of
from orchestrator.features.search.search_events import SearchEvent
from orchestrator.features.search.search_paths import SearchPaths
from orchestrator.features.search.search_process import (
    Finished,
    SearchBesideRun,
    Stopped,
    WaitsForUser,
)
from orchestrator.features.search.search_watch import SearchWatch
from orchestrator.ledger import Ledger, summary
from orchestrator.supervisor.events import SilentReporter, View
from orchestrator.terminal import jobs_table

DONE, AT_FIRST, AT_SECOND = (
    Told(values=[3.0], reached=[1.0, 2.0]),
    Told(reached=[0.5]),
    Told(reached=[1.0, 1.5]),
)
GOES_ON = Told(reached=[2.0], is_promoted=True)
HOLDER = LockHolder(pid=1, pid_start=1.0, host="here", since="2026-01-01 00:00:00.0")


def line_of(paths: RunPaths) -> str:
    (note,) = WatchReporter(SilentReporter(), paths).look()
    assert note.command == "best"
    return note.text


def test_what_has_no_value_at_a_rung_is_counted(tmp_path: Path) -> None:
    """As where it is divided by zero."""
    trials = [Told(reached=[None]), Told(reached=[1.0, None]), AT_FIRST]
    rungs = {"min_env_steps": 100, "by": "distance_m / energy_j"}
    paths = search_run(tmp_path / "run", trials, is_over=False, scheduler=rungs)
    expected = "no distance_m / energy_j at a rung 2 times (counts as the worst)"
    assert expected in line_of(paths)
    assert "as the worst" not in line_of(search_run(tmp_path / "other", [AT_FIRST], is_over=False))


def test_one_line_tells_how_far_a_search_is(tmp_path: Path) -> None:
    trials = [DONE, AT_FIRST, AT_SECOND, GOES_ON, Told(why="no legs")]
    paths = search_run(tmp_path / "run", trials, is_over=False, max_env_steps=50_000)
    line = line_of(paths)
    best, failed = "best eval_mean 3.0 (trial 0)", "1 failed (trial 4: no legs)"
    for fact in ("5 of 5 trials", "1,500 of 50,000 env_steps", best, failed, "2 wait"):
        assert fact in line
    assert "53%" in line  # 1,600 of 3,000
    assert line in commands.invoke("status", paths.root, cwd=tmp_path).stdout


def test_of_several_objectives_the_line_has_the_best_of_each(tmp_path: Path) -> None:
    paths = search_run(
        tmp_path / "run",
        [Told(values=[3.0, 40.0]), Told(values=[7.0, 90.0]), Told(values=[2.0, 95.0])],
        sampler="nsga2",
        objective=["eval_mean", "energy_j"],
        direction=["maximize", "minimize"],
        scheduler={"kind": "none"},
    )
    best = "Pareto front of 2 trials, best eval_mean 7.0 (trial 1), energy_j 40.0 (trial 0)"
    assert best in line_of(paths)


def test_the_commonest_reason_of_failed_trials_is_part_of_the_line(tmp_path: Path) -> None:
    trials = [
        DONE,
        Told(why="no legs"),
        Told(why="leg of 0.5\ntoo long"),
        Told(why="leg of 0.7\ntoo " + 400 * "long"),
    ]
    line = line_of(
        search_run(tmp_path / "first", [*trials, Told(why="leg of 0.71\ntoo long")], is_over=False)
    )
    assert "4 failed (2 of them as trial 4: leg of 0.71 too long)" in line
    again = Told(why="again", reevaluates=0, point=point_of(0))
    repeated = line_of(
        search_run(tmp_path / "repeated", [*trials[:2], again], is_over=False, reevaluate=1)
    )
    assert "1 failed (trial 1: no legs)" in repeated
    long = line_of(search_run(tmp_path / "second", [DONE, trials[-1]], is_over=False))
    assert "1 failed (trial 1: leg of 0.7 too longlong" in long
    assert "…)" in long
    assert len(long) < 500


def test_status_says_why_a_search_has_stopped(tmp_path: Path) -> None:
    paths = search_run(tmp_path / "run", [DONE], is_over=False)
    SearchPaths(paths.root).stopped.write_text("the sampler has no idea")
    text = (
        "The search has stopped: the sampler has no idea. Correct the cause; the next run goes on"
    )
    assert text in " ".join(commands.invoke("status", paths.root, cwd=tmp_path).stdout.split())
    empty = RunPaths(tmp_path / "empty")  # before its first trial
    SearchPaths(empty.root).declaration.parent.mkdir(parents=True)
    SearchPaths(empty.root).declaration.write_bytes(
        SearchPaths(paths.root).declaration.read_bytes()
    )
    Ledger.create(empty.ledger).close()
    SearchPaths(empty.root).stopped.write_text("no class")
    assert "stopped: no class." in " ".join(
        commands.invoke("status", empty.root, cwd=tmp_path).stdout.split()
    )
    with beginning(paths, jobs_at_once=1):
        assert "stopped" not in commands.invoke("status", paths.root, cwd=tmp_path).stdout


def test_without_a_search_nothing_is_said_of_one(tmp_path: Path) -> None:
    Experiment(tmp_path, [make_job("a")]).ledger.close()
    assert WatchReporter(SilentReporter(), RunPaths(tmp_path)).look() == []
    assert "search:" not in commands.invoke("status", tmp_path, cwd=tmp_path).stdout


def add(paths: RunPaths, *events: SearchEvent) -> None:
    ledger = Ledger.open(paths.ledger)
    search_events.add(ledger, events)
    ledger.close()


def over(trial: int, value: float) -> SearchEvent:
    content = {"values": [value], "measures": None, "env_steps": 1000, "why": ""}
    return SearchEvent(kind="over", trial=trial, content=content)


def locked(paths: RunPaths, **_: object) -> Never:
    raise LedgerBusyError(f"{paths.ledger}: locked by another process")


def test_a_new_best_trial_is_news_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trials = [Told(values=[3.0]), Told(), Told(), Told(reevaluates=0)]
    paths = search_run(tmp_path / "run", trials, is_over=False)
    looking = SearchWatch(paths=paths)
    with monkeypatch.context() as patch:
        patch.setattr(run_directory, "opened_ledger", locked)
        with pytest.raises(LedgerBusyError):
            looking.look()
    assert looking.look() == ()  # it was known before
    add(paths, over(3, 9.0))  # trained again, no new trial
    assert looking.look() == ()
    add(paths, over(1, 2.0))
    assert looking.look() == ()
    add(paths, over(2, 4.5))
    (news,) = looking.look()
    assert news.kind == "best"
    assert "trial 2" in news.message
    assert "4.50" in news.message
    assert looking.look() == ()
    note = looking.note()
    assert note is not None
    assert "(trial 2)" in note.text


def test_the_line_is_part_of_what_run_shows(tmp_path: Path) -> None:
    paths = search_run(tmp_path / "run", [DONE, AT_FIRST], is_over=False)
    shown: list[View] = []

    class Reporter(SilentReporter):
        def tick(self, view) -> None:  # type: ignore[no-untyped-def]
            shown.append(view())

    (tmp_path / "other").mkdir()
    experiment = Experiment(tmp_path / "other", [make_job("a")])
    WatchReporter(Reporter(), paths).tick(experiment.supervisor._view)
    assert line_of(paths) in jobs_table.totals(jobs_table.of_view(shown[0])).plain


def test_what_waits_at_rungs_is_not_to_be_trained_and_the_rest_only_to_its_rung(
    tmp_path: Path,
) -> None:
    paths = search_run(tmp_path / "run", [DONE, AT_FIRST, GOES_ON, Told()], is_over=False)
    shown = jobs_table.of_snapshot(run_snapshot.status(paths.root))
    assert shown.steps_to_go == (300 - 100) + 100


def test_a_supervisor_counts_env_steps_up_to_the_rungs(tmp_path: Path) -> None:
    jobs = [
        make_job("a", spec={"pause_at": 200}),
        make_job("b", spec={"pause_at": 300}),
        make_job("c"),
    ]
    experiment = Experiment(tmp_path, jobs, lambda launch: Behaviour(after_s=10.0), cpus=1)
    promote = once(lambda view: view.elapsed_s > 5, lambda: ask(tmp_path, ("promote", "b=end")))
    left: list[int] = []

    def each_turn(view: View) -> None:
        left.append(view.steps_to_go)
        promote(view)

    experiment.reporter.each_turn = each_turn
    experiment.run()
    total = jobs[2].spec.total_timesteps
    assert left[0] == 200 + 300 + total
    assert 200 + total + total in left
    assert experiment.supervisor._jobs.steps_waiting == 0


def noted(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> str:
    """The state in which `list` shows the run directory."""
    monkeypatch.setenv("XDG_STATE_HOME", str(paths.root.parent / "state"))
    run_index.note(paths.root, "it")
    with run_directory.opened_ledger(paths, read_only=True) as ledger:
        summary.write(paths, ledger)
    (run,) = run_index.listed_runs()
    return run.state


@pytest.mark.parametrize(
    ("trials", "is_over", "ended", "state", "code"),
    [
        ([DONE, AT_FIRST], True, None, "finished", 0),
        ([DONE, Told(why="no legs")], True, None, "finished", 0),
        ([AT_FIRST, AT_SECOND], True, None, "finished", 1),
        ([DONE, AT_FIRST], False, 130, "interrupted", 130),
        ([DONE, AT_FIRST], False, 1, "interrupted", 1),
        ([DONE, AT_FIRST], False, None, "interrupted", 130),
        ([DONE, DONE], False, None, "interrupted", 130),
    ],
)
def test_list_and_the_exit_code_of_status_are_those_of_the_search(
    trials: Sequence[Told],
    is_over: bool,
    ended: int | None,
    state: str,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """:param ended: the exit code of the last run; None: it was killed."""
    paths = search_run(tmp_path / "run", trials, is_over=is_over)
    set_failed(paths, trials)
    if ended is not None:
        end = RunEnd(holder="", exit_code=ended, message="", ended_at=0.0)
        paths.run_end.write_bytes(end.to_line())
        assert run_end.read(paths) == end
    assert noted(paths, monkeypatch) == state
    assert run_snapshot.exit_code_of(run_snapshot.status(paths.root)) == code


def test_jobs_that_are_not_declared_do_not_count_in_a_comparison_at_rungs(tmp_path: Path) -> None:
    paths = search_run(tmp_path / "run", [DONE, AT_FIRST, DONE])
    content = json.loads(SearchPaths(paths.root).declaration.read_text())
    content["data"]["scheduler"] = content["data"].pop("search")["scheduler"]
    SearchPaths(paths.root).declaration.write_text(json.dumps(content))
    with run_directory.opened_ledger(paths) as ledger:
        ledger.set_state("hopper-t00002-s0", Cancelled(is_undeclared=True))
        ledger.commit()
    assert run_snapshot.exit_code_of(run_snapshot.status(paths.root)) == 0


def test_a_search_whose_jobs_succeed_without_a_value_has_failed_and_says_what_to_do(
    tmp_path: Path,
) -> None:
    why = "hops has no value; there are eval_mean, ep_rew_mean"
    paths = search_run(tmp_path / "run", [Told(why=why), AT_FIRST])
    ledger = Ledger.open(paths.ledger)
    ledger.set_state("hopper-t00000-s0", Succeeded())
    ledger.commit()
    for fact in (
        f"No trial has a value of eval_mean (trial 0: {why})",
        "Correct the cause; then `run --fresh`",
    ):
        assert fact in line_of(paths), "no job has failed, so `retry` would train none"
    assert run_snapshot.exit_code_of(run_snapshot.status(paths.root)) == 1

    process: Any = SimpleNamespace(
        is_needed=True,
        _ended=Finished(),
        _ledger=ledger,
        _experiment=changed_search.declared_experiment(paths),
    )
    states = {row.job_id: row.state for row in ledger.jobs()}
    code = partial(
        SearchBesideRun.exit_code, process, states, is_interrupted=False, is_stopping=False
    )
    assert code() == 1
    add(paths, over(0, 2.0))
    assert code() == 0
    assert "No trial" not in line_of(paths)
    ledger.close()


@pytest.mark.parametrize(
    ("problem", "is_stopping", "is_interrupted", "code"),
    [
        ("", False, False, 130),  # the user has paused all that is left
        ("", True, False, 130),
        ("", True, True, 130),
        ("the sampler has no idea", False, False, 1),
        ("the sampler has no idea", True, False, 1),
        ("the sampler has no idea", True, True, 130),  # jobs are left that a stop has interrupted
    ],
)
@pytest.mark.parametrize("is_search", [True, False])
def test_a_search_that_has_stopped_with_a_problem_has_failed_also_while_trials_wait_at_rungs(
    is_search: bool, problem: str, is_stopping: bool, is_interrupted: bool, code: int
) -> None:
    process: Any = SimpleNamespace(
        is_needed=True,
        _ended=Stopped(problem=problem) if problem else WaitsForUser(),
        _ledger=SimpleNamespace(),
        _experiment=SimpleNamespace(makes_jobs=is_search),
    )
    states = {"a": Succeeded(), "b": Paused(at_rung=True)}
    found = SearchBesideRun.exit_code(
        process, states, is_interrupted=is_interrupted, is_stopping=is_stopping
    )
    assert found == code


def set_failed(paths: RunPaths, trials: Sequence[Told]) -> None:
    ledger = Ledger.open(paths.ledger)
    for number, trial in enumerate(trials):
        if trial.why:
            ledger.set_state(
                f"hopper-t{number:05d}-s0", Failed(cause=Cause.ERROR, message=trial.why)
            )
    ledger.close()


def test_a_job_that_the_user_has_paused_keeps_a_search_paused_in_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = search_run(tmp_path / "run", [DONE, AT_FIRST])
    ledger = Ledger.open(paths.ledger)
    ledger.set_state("hopper-t00001-s0", Paused())
    ledger.close()
    assert noted(paths, monkeypatch) == "paused"


@pytest.mark.parametrize("is_over", [False, True])
def test_a_search_that_was_withdrawn_while_trials_wait_at_rungs_is_the_same_in_both_lists(
    is_over: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = search_run(tmp_path / "run", [DONE, AT_FIRST], is_over=is_over)
    with run_directory.opened_ledger(paths) as ledger:
        search_events.withdraw(ledger)
        ledger.commit()
    assert noted(paths, monkeypatch) == "finished", "no user can resume what waits at a rung"


def test_which_trials_have_previews_is_not_known_while_a_finished_search_goes_on(
    tmp_path: Path,
) -> None:
    """`clean` removes what those of others are drawn from."""
    paths = search_run(tmp_path / "run", [DONE])
    SearchPaths(paths.root).shown_jobs.write_text('["hopper-t00000-s0"]')
    with run_directory.opened_ledger(paths) as ledger:
        assert begun_source.shown_jobs(paths, ledger) == ["hopper-t00000-s0"]
        search_events.add(ledger, [SearchEvent(kind="began", content={"lanes": 1})])
        assert begun_source.shown_jobs(paths, ledger) is None


def test_while_a_search_may_make_jobs_it_is_not_over(tmp_path: Path) -> None:
    underway = search_run(tmp_path / "run", [Told(values=[3.0])], is_over=False)
    assert not replace(run_snapshot.status(underway.root), holder=HOLDER).over
    assert replace(
        run_snapshot.status(search_run(tmp_path / "over", [DONE]).root), holder=HOLDER
    ).over


def test_without_a_scheduler_what_waits_at_rungs_trains_to_its_end(tmp_path: Path) -> None:
    trials = [DONE, AT_FIRST, GOES_ON, Told(why="it fell")]
    paths = search_run(tmp_path / "run", trials)
    set_failed(paths, trials)
    watches = RunWatches(paths)
    watches.look()
    assert len(watches.notes) == len(watches.sections()) == 1
    ledger = Ledger.open(paths.ledger)
    jobs = tuple(row.job.with_spec(pause_at=None) for row in ledger.jobs())
    experiment = replace(changed_search.declared_experiment(paths), job_source=None, jobs=jobs)
    messages: list[str] = []

    class Reporter(SilentReporter):
        def event(self, kind: str, message: str, **facts: object) -> None:
            messages.append(message)

    for _ in range(2):  # the second time there is nothing left to do
        search_events.withdraw(ledger)
        jobs_at_rungs.let_train_to_end(experiment, ledger, Reporter())
        ledger.commit()
    states: list[State] = [row.state for row in ledger.jobs()]
    assert states == [
        Succeeded(),
        Pending(),
        Pending(),
        Failed(cause=Cause.ERROR, message="it fell"),
    ]
    assert [row.job.spec.pause_at for row in ledger.jobs()] == [None] * 4
    assert search_events.standing(ledger) == "none"
    ledger.close()
    (message,) = messages
    assert "hopper-t00001-s0" in message
    assert "hopper-t00002-s0" not in message
    for looking in (watches, RunWatches(paths)):
        assert looking.look() == []
        assert looking.notes == []
        assert looking.sections() == [], "the job file declares no search any more"
    assert "best" not in commands.invoke("status", paths.root, cwd=tmp_path).stdout


def test_a_job_of_a_matrix_that_starts_over_is_trained_to_the_rung_that_it_was_promoted_to(
    tmp_path: Path,
) -> None:
    paths = search_run(tmp_path / "run", [DONE, AT_FIRST, GOES_ON])
    declared = changed_search.declared_experiment(paths)
    source = replace(declaration_of(declared), search=None)
    declared = replace(declared, job_source=source)
    SearchPaths(paths.root).declaration.write_text(json.dumps(declared.declaration))
    with run_directory.opened_ledger(paths) as ledger:
        new = make_job("new")
        begun = replace(
            declared, jobs=(*(row.job.with_spec(pause_at=None) for row in ledger.jobs()), new)
        )
        found, _ = changed_search.resumed_experiment(
            begun, RunOptions(run_dir=paths.root), ledger, paths
        )
    assert [job.spec.pause_at for job in found.jobs] == [None, 300, 300, 100]


def test_a_search_is_resumed_from_its_run_directory_as_a_search(tmp_path: Path) -> None:
    paths = search_run(tmp_path / "run", [DONE, AT_FIRST], is_over=False)
    experiment, verdicts = resume.load(paths.root)
    assert declaration_of(experiment).search is not None
    assert declaration_of(experiment).scheduler is not None
    assert not verdicts, "its jobs come from the ledger when they are needed"
    with run_directory.opened_ledger(paths, read_only=True) as ledger:
        assert search_events.standing(ledger) == "underway"
