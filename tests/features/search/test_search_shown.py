"""What `status`, `attach`, `list` and `run` say of a search; jobs at rungs count as done."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import command_helpers as commands
import pytest
from trial_helpers import Told, search_run

from orchestrator.client import recorded_run, run_snapshot
from orchestrator.core.job import Cause, Failed, Paused, Succeeded
from orchestrator.core.paths import RunPaths
from orchestrator.experiment import run_directory, run_end, run_index
from orchestrator.experiment.run_end import RunEnd
from orchestrator.features.search import search_events
from orchestrator.features.search.declaration.declared_search import declaration_of
from orchestrator.features.search.search_events import SearchEvent
from orchestrator.features.search.search_paths import SearchPaths
from orchestrator.features.search.search_watch import SearchWatch
from orchestrator.ledger import Ledger, summary
from orchestrator.server import companions
from orchestrator.terminal import jobs_table

DONE, AT_FIRST, AT_SECOND = (
    Told(values=[3.0], reached=[1.0, 2.0]),
    Told(reached=[0.5]),
    Told(reached=[1.0, 1.5]),
)
GOES_ON = Told(reached=[2.0], is_promoted=True)


def line_of(paths: RunPaths) -> str:
    watch = SearchWatch(paths=paths)
    watch.look()
    note = watch.note()
    assert note is not None
    assert note.command == "best"
    return note.text


def test_one_line_tells_how_far_a_search_is(tmp_path: Path) -> None:
    trials = [DONE, AT_FIRST, AT_SECOND, GOES_ON, Told(why="no legs")]
    paths = search_run(tmp_path / "run", trials, is_over=False, max_env_steps=50_000)
    line = line_of(paths)
    best, failed = "best eval_mean 3.0 (trial 0)", "1 failed (trial 4: no legs)"
    for fact in ("5 of 5 trials", "1,500 of 50,000 env_steps", best, failed, "2 wait"):
        assert fact in line
    assert "53%" in line  # 1,600 of 3,000
    assert line in commands.invoke("status", paths.root, cwd=tmp_path).stdout


def test_status_says_why_a_search_has_stopped(tmp_path: Path) -> None:
    paths = search_run(tmp_path / "run", [DONE], is_over=False)
    SearchPaths(paths.root).stopped.write_text("the sampler has no idea")
    status = commands.invoke("status", paths.root, cwd=tmp_path)
    assert "the sampler has no idea" in " ".join(status.stdout.split())


def add(paths: RunPaths, *events: SearchEvent) -> None:
    with search_events.writing(paths) as database:
        database.add(events)


def over(trial: int, value: float) -> SearchEvent:
    content = {"values": [value], "measures": None, "env_steps": 1000, "why": ""}
    return SearchEvent(kind="over", trial=trial, content=content)


def test_a_new_best_trial_is_news_once(tmp_path: Path) -> None:
    trials = [Told(values=[3.0]), Told(), Told(), Told(reevaluates=0)]
    paths = search_run(tmp_path / "run", trials, is_over=False)
    looking = SearchWatch(paths=paths)
    assert looking.look() == ()  # it was known before
    add(paths, over(3, 9.0))  # trained again, no new trial
    assert looking.look() == ()
    add(paths, over(1, 2.0))
    assert looking.look() == ()
    add(paths, over(2, 4.5))
    (news,) = looking.look()
    assert news.kind == "best"
    assert "trial 2" in news.message
    assert looking.look() == ()


def test_what_waits_at_rungs_is_not_to_be_trained_and_the_rest_only_to_its_rung(
    tmp_path: Path,
) -> None:
    paths = search_run(tmp_path / "run", [DONE, AT_FIRST, GOES_ON, Told()], is_over=False)
    shown = jobs_table.of_snapshot(run_snapshot.status(paths.root))
    assert shown.steps_to_go == (300 - 100) + 100


def noted(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> str:
    """The state in which `list` shows the run directory."""
    monkeypatch.setenv("XDG_STATE_HOME", str(paths.root.parent / "state"))
    monkeypatch.setenv("ORCHESTRATOR_CPU_LOCKS", str(paths.root.parent / "cpu-locks"))
    run_index.note(paths.root, "it")
    with run_directory.opened_ledger(paths, read_only=True) as ledger:
        summary.write(paths, ledger)
    (run,) = run_index.listed_runs()
    return run.state


@pytest.mark.parametrize(
    ("trials", "is_over", "ended", "state", "code"),
    [
        ([DONE, AT_FIRST], True, None, "finished", 0),
        ([AT_FIRST, AT_SECOND], True, None, "finished", 1),
        ([DONE, AT_FIRST], False, 1, "interrupted", 1),
        ([DONE, AT_FIRST], False, None, "interrupted", 130),
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


@pytest.mark.parametrize(
    ("problem", "is_stopping", "is_interrupted", "code"),
    [
        ("", False, False, 130),  # the user has paused all that is left
        ("the sampler has no idea", False, False, 1),
        ("the sampler has no idea", True, False, 1),
        ("the sampler has no idea", True, True, 130),  # jobs are left that a stop has interrupted
    ],
)
def test_a_search_that_has_stopped_with_a_problem_has_failed_also_while_trials_wait_at_rungs(
    problem: str, is_stopping: bool, is_interrupted: bool, code: int
) -> None:
    source: Any = SimpleNamespace(is_underway=True, makes_jobs=True)
    found = companions.exit_code(
        0,
        source=source,
        states={"a": Succeeded(), "b": Paused(at_rung=True)},
        has_problem=bool(problem),
        is_interrupted=is_interrupted,
        is_stopping=is_stopping,
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


def test_a_search_is_resumed_from_its_run_directory_as_a_search(tmp_path: Path) -> None:
    paths = search_run(tmp_path / "run", [DONE, AT_FIRST], is_over=False)
    experiment, verdicts = recorded_run.load(paths.root)
    assert declaration_of(experiment).search is not None
    assert declaration_of(experiment).scheduler is not None
    assert not verdicts, "its jobs come from the ledger when they are needed"
    assert search_events.standing(paths) == "underway"
