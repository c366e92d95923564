"""A search, or a matrix that is compared at rungs, whose job file or robot has changed since it
began."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import command_helpers as commands
import pytest
from command_helpers import FORKED, HOPPER, TINY, give, invoke
from supervisor_helpers import RecordingReporter
from trial_helpers import Told, search_run

import orchestrator
from orchestrator.core.errors import ChangedError, UsageError
from orchestrator.core.paths import RunPaths
from orchestrator.experiment.directory import run_directory
from orchestrator.experiment.planning.run_plan import RunOptions
from orchestrator.experiment.resuming import resume
from orchestrator.features.search import changed_search, search_events, search_time
from orchestrator.features.search.declaration.declared_search import declaration_of
from orchestrator.features.search.search_events import SearchEvent
from orchestrator.features.search.search_paths import SearchPaths
from orchestrator.features.search.search_process import SearchBesideRun
from orchestrator.features.search.searcher.trial_examiner import TrialExaminer
from orchestrator.features.search.searcher.watchdog import Watchdog
from orchestrator.jobfile import load
from orchestrator.jobfile.job_source import JobSource

SEARCH = f"""name = "search"
max_parallel = 2
{TINY}
[[jobs]]
name = "hopper"
xml = "{HOPPER}"
task = "forward"
[search]
sampler = "random"
trials = 2
objective = "ep_rew_mean"
[search.space]
"ppo.learning_rate" = {{ low = 1e-4, high = 1e-2, log = true }}
"""
MATRIX = f"""name = "rungs"
max_parallel = 2
scheduler = {{ min_env_steps = 128, factor = 4 }}
{FORKED}
[[jobs]]
name = "hopper"
xml = "hopper.xml"
task = "forward"
matrix = {{ "ppo.gamma" = [0.9, 0.99] }}
"""


def weights(run_dir: Path) -> dict[str, Any]:
    return {job_id: row["weights_sha256"] for job_id, row in commands.summary(run_dir).items()}


def declared(run_dir: Path) -> Any:
    return json.loads((run_dir / "search/declared.json").read_text())["data"]["search"]


@pytest.mark.parametrize("on_change", ["refuse", pytest.param("extend", marks=pytest.mark.nightly)])
def test_another_space_is_refused_with_the_difference_and_what_can_be_done(
    on_change: str, tmp_path: Path
) -> None:
    search_run(tmp_path / "run", [Told(values=[3.0]), Told(reached=[0.5])])
    (tmp_path / "jobs.toml").write_text(SEARCH)
    refused = invoke("run", "jobs.toml", "--run-dir", "run", "--on-change", on_change, cwd=tmp_path)
    assert refused.returncode == 2
    for part in (
        'search.space."policy_kwargs.net_arch".choices: [[32, 32], [64, 64]]',
        "→ not set",
        "--on-change=keep",
        "--on-change=restart",
        "another --run-dir",
    ):
        assert part in refused.stderr
    shown = invoke(
        "run", "jobs.toml", "--run-dir", "run", "--dry-run", "--on-change", on_change, cwd=tmp_path
    )
    assert shown.returncode == 0, shown.stderr
    assert (
        "this run would be refused: run: the search that has begun here is declared differently"
        in shown.stdout
    )


def test_a_declaration_that_is_none_is_refused_also_to_keep_it(tmp_path: Path) -> None:
    paths = search_run(tmp_path / "run", [Told(values=[3.0])])
    (tmp_path / "jobs.toml").write_text(SEARCH)
    for content in ("{", "[]", '{"data": 3, "options": {}}'):
        SearchPaths(paths.root).declaration.write_text(content)
        for on_change in ("refuse", "keep", "restart"):
            refused = invoke(
                "run", "jobs.toml", "--run-dir", "run", "--on-change", on_change, cwd=tmp_path
            )
            assert (refused.returncode, "declared.json: cannot be read" in refused.stderr) == (
                2,
                True,
            )


@pytest.mark.nightly
def test_an_edited_robot_is_another_search_that_can_only_start_over(tmp_path: Path) -> None:
    jobs, robot, run_dir = tmp_path / "jobs.toml", tmp_path / "hopper.xml", tmp_path / "run"
    content = SEARCH.replace(str(HOPPER), "hopper.xml").replace("trials = 2", "trials = 1")
    jobs.write_text(content)
    shutil.copy(HOPPER, robot)
    assert give("run", jobs, "--run-dir", "run", cwd=tmp_path).returncode == 0
    paths = RunPaths(run_dir)
    robot.write_text(robot.read_text().replace("</mujoco>", "<!-- edited --></mujoco>"))
    jobs.write_text(content.replace("trials = 1", "trials = 2"))
    for on_change in ("refuse", "keep", "extend"):
        refused = invoke("run", jobs, "--run-dir", "run", "--on-change", on_change, cwd=tmp_path)
        assert refused.returncode == 2
        assert (
            f"declared differently now:\n    robot: the contents of {robot} changed"
            in refused.stderr
        )
        assert "--on-change=keep cannot go on with it" in refused.stderr
    shown = invoke("run", jobs, "--run-dir", "run", "--dry-run", cwd=tmp_path)
    assert (
        "this run would be refused: run: the search that has begun here is declared differently"
        in shown.stdout
    )
    refusal = pytest.raises(
        UsageError, match=f"robot: the contents of {robot} changed since the search began"
    )
    with (
        contextlib.closing(TrialExaminer(paths=paths, watchdog=Watchdog())) as examiner,
        refusal,
    ):  # as if it were edited meanwhile
        examiner.examine(load(jobs).jobs_to_examine)

    before = weights(run_dir)
    again = give("run", jobs, "--run-dir", "run", "--on-change=restart", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert (len(before), len(weights(run_dir))) == (1, 2)
    (aside,) = (path for path in tmp_path.iterdir() if path.name.startswith("run."))
    assert weights(aside) == before
    assert ["edited" in path.read_text() for path in run_dir.glob("jobs/*/robot/hopper.xml")] == [
        True,
        True,
    ]


@pytest.mark.nightly
def test_a_changed_search_goes_on_as_it_was_or_starts_over(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.toml"
    jobs.write_text(SEARCH)
    assert give("run", jobs, "--run-dir", "run", cwd=tmp_path).returncode == 0
    before = weights(tmp_path / "run")
    jobs.write_text(
        SEARCH.replace("high = 1e-2", "high = 1e-3").replace("trials = 2", "trials = 3")
    )
    kept = give("run", jobs, "--run-dir", "run", "--on-change=keep", cwd=tmp_path)
    assert kept.returncode == 0, kept.stderr
    assert 'kept as before: search.space."ppo.learning_rate".high: 0.01 → 0.001' in kept.stdout
    after = weights(tmp_path / "run")
    assert (len(after), before.items() <= after.items()) == (3, True)
    assert declared(tmp_path / "run")["space"]["ppo.learning_rate"]["high"] == 0.01

    again = give("run", jobs, "--run-dir", "run", "--on-change=restart", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "starts over; the earlier run directory is now " in again.stdout
    (aside,) = (path for path in tmp_path.iterdir() if path.name.startswith("run."))
    assert weights(aside) == after
    assert declared(tmp_path / "run")["space"]["ppo.learning_rate"]["high"] == 0.001
    assert len(weights(tmp_path / "run")) == 3


def test_from_python_the_message_names_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    paths = search_run(tmp_path / "run", [Told(values=[3.0])])
    space = {"ppo.gamma": {"low": 0.9, "high": 0.99}}
    search = orchestrator.Search(
        xml=HOPPER, space=space, trials=1, sampler="random", run_dir=paths.root
    )
    with pytest.raises(
        ChangedError, match=r'on_change="keep" goes on .* on_change="restart" starts over'
    ):
        search.run()
    with pytest.raises(orchestrator.UsageError, match="on_change='no'"):
        search.run(on_change="no")  # type: ignore[arg-type]


@pytest.mark.nightly
def test_an_edited_robot_of_a_compared_matrix_is_kept_as_it_was_or_refused(tmp_path: Path) -> None:
    jobs, robot, run_dir = tmp_path / "jobs.toml", tmp_path / "hopper.xml", tmp_path / "run"
    jobs.write_text(MATRIX)
    shutil.copy(HOPPER, robot)
    assert give("run", jobs, "--run-dir", "run", cwd=tmp_path).returncode == 0
    before = weights(run_dir)
    states = {row["state"]: job_id for job_id, row in commands.summary(run_dir).items()}
    assert set(states) == {"PAUSED", "SUCCEEDED"}
    robot.write_text(robot.read_text().replace("</mujoco>", "<!-- edited --></mujoco>"))
    for on_change in ("refuse", "restart", "extend"):
        refused = invoke("run", jobs, "--run-dir", "run", "--on-change", on_change, cwd=tmp_path)
        assert refused.returncode == 2
        assert "2 jobs that are compared at rungs are declared differently now:" in refused.stderr
        assert f"robot: the contents of {robot} changed" in refused.stderr
        assert (
            "--on-change=keep continues with the earlier declaration, `run --fresh` trains"
            in refused.stderr
        )
        assert "--on-change=restart" not in refused.stderr
    planned = invoke(
        "run", jobs, "--run-dir", "run", "--dry-run", "--json", "--on-change=restart", cwd=tmp_path
    )
    plan = json.loads(planned.stdout)
    assert "would be refused: run: 2 jobs that are compared at rungs" in plan["warnings"][-1]
    assert {job["action"] for job in plan["jobs"]} == {"refuse"}
    kept = give("run", jobs, "--run-dir", "run", "--on-change=keep", cwd=tmp_path)
    assert kept.returncode == 0, kept.stderr
    assert weights(run_dir) == before
    shutil.rmtree(run_dir / "jobs" / states["PAUSED"])
    gone = invoke("run", jobs, "--run-dir", "run", "--on-change=keep", cwd=tmp_path)
    assert gone.returncode == 2
    assert "--on-change=keep" not in gone.stderr

    jobs.write_text(MATRIX.replace("factor = 4", "factor = 2"))
    refused = invoke("run", jobs, "--run-dir", "run", cwd=tmp_path)
    assert (
        "the comparison at rungs that has begun here is declared differently now" in refused.stderr
    )
    again = give("run", jobs, "--run-dir", "run", "--on-change=restart", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    copies = [path.read_text() for path in run_dir.glob("jobs/*/robot/hopper.xml")]
    assert ["edited" in copy for copy in copies] == [True, True]


def run_without_searcher(jobs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that ends before its searcher has entered anything. Returns its directory."""
    run_dir = jobs.parent / "run"
    commands.instant_workers(monkeypatch, jobs.parent)
    with monkeypatch.context() as patch:
        patch.setattr(SearchBesideRun, "before_turn", lambda _: None)
        patch.setattr(SearchBesideRun, "may_add_jobs", lambda _: False)
        orchestrator.run(jobs, run_dir=run_dir)
    return run_dir


def matrix_file(folder: Path) -> Path:
    shutil.copy(HOPPER, folder)
    (folder / "jobs.toml").write_text(MATRIX)
    return folder / "jobs.toml"


def test_a_comparison_whose_run_ended_before_the_searcher_entered_anything_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.examine_nothing(monkeypatch)
    jobs = matrix_file(tmp_path)
    paths = RunPaths(run_without_searcher(jobs, monkeypatch))
    refused = jobs.with_name("other.toml")
    refused.write_text(MATRIX.replace("factor = 4", "factor = 2"))
    said = invoke("run", refused, "--run-dir", "run", cwd=tmp_path)
    assert said.returncode == 2
    assert "scheduler.factor: 4 → 2" in said.stderr
    commands.succeed("run", jobs, "--run-dir", "run", cwd=tmp_path)
    with run_directory.opened_ledger(paths, read_only=True) as ledger:
        kinds = Counter(event.kind for event in search_events.events(ledger))
    assert kinds == {"began": 1, "asked": 2, "over": 2, "ended": 1}


@pytest.mark.parametrize("is_withdrawn", [True, False], ids=["by a run before", "by this run"])
def test_a_ledger_is_rebuilt_once_jobs_are_compared_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_withdrawn: bool
) -> None:
    table = "scheduler = { min_env_steps = 128, factor = 4 }"
    commands.examine_nothing(monkeypatch)
    shutil.copy(HOPPER, tmp_path)
    jobs = tmp_path / "jobs.toml"
    jobs.write_text(MATRIX)
    run_dir = run_without_searcher(jobs, monkeypatch)
    rebuild = ("run", jobs, "--run-dir", run_dir, "--rebuild-ledger")
    refused = invoke(*rebuild, cwd=tmp_path)
    assert refused.returncode == 2
    assert "a comparison at rungs cannot be rebuilt" in refused.stderr
    jobs.write_text(MATRIX.replace(table, ""))
    if is_withdrawn:
        commands.succeed("run", jobs, "--run-dir", run_dir, cwd=tmp_path)
    commands.succeed(*rebuild, cwd=tmp_path)
    states = {row["state"] for row in commands.summary(run_dir).values()}
    assert states == {"SUCCEEDED"}


def test_the_ledger_of_a_search_is_never_rebuilt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it the directories of its trials would be there, and nobody knew of them."""
    commands.examine_nothing(monkeypatch)
    shutil.copy(HOPPER, tmp_path)
    jobs = tmp_path / "jobs.toml"
    jobs.write_text(SEARCH)
    run_dir = run_without_searcher(jobs, monkeypatch)
    for content in (SEARCH, SEARCH[: SEARCH.index("[search]")]):
        jobs.write_text(content)
        refused = invoke("run", jobs, "--run-dir", run_dir, "--rebuild-ledger", cwd=tmp_path)
        assert refused.returncode == 2
        assert "a search cannot be rebuilt" in refused.stderr


def test_what_was_declared_may_change_as_long_as_nothing_has_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.examine_nothing(monkeypatch)
    (tmp_path / "jobs.toml").write_text(SEARCH)
    run_dir = run_without_searcher(tmp_path / "jobs.toml", monkeypatch)
    (tmp_path / "jobs.toml").write_text(SEARCH.replace("1e-2", "2e-2"))
    assert invoke("run", "jobs.toml", "--run-dir", run_dir, cwd=tmp_path).returncode == 0
    assert declared(run_dir)["space"]["ppo.learning_rate"]["high"] == 2e-2


def test_a_search_whose_run_ended_before_the_searcher_entered_anything_is_resumed_as_a_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.examine_nothing(monkeypatch)
    (tmp_path / "jobs.toml").write_text(SEARCH)
    experiment, _ = resume.load(run_without_searcher(tmp_path / "jobs.toml", monkeypatch))
    assert declaration_of(experiment).search is not None
    assert "2 trials" in commands.succeed("run", "run", "--dry-run", cwd=tmp_path).stdout


def test_a_search_that_was_withdrawn_is_underway_again_when_its_run_begins(tmp_path: Path) -> None:
    paths = search_run(tmp_path / "run", [Told(values=[3.0])], is_over=False)
    experiment = changed_search.declared_experiment(paths)
    beside = SearchBesideRun(paths=paths, reporter=RecordingReporter(), is_needed=True)
    beside._experiment = experiment
    with run_directory.opened_ledger(paths) as ledger:
        search_events.withdraw(ledger)
        assert search_events.standing(ledger) == "none"
        for _ in range(2):
            beside.ledger_opened(ledger)
            assert search_events.standing(ledger) == "underway"
        kinds = [event.kind for event in search_events.events(ledger)]
    assert kinds == ["began", "asked", "over", "ended", "began"]


def test_time_in_which_nothing_ran_before_a_search_was_withdrawn_is_none_of_it(
    tmp_path: Path,
) -> None:
    paths = search_run(tmp_path / "run", [Told(values=[3.0])], is_over=False)
    with run_directory.opened_ledger(paths) as ledger:
        before = search_time.spent_budget(ledger).elapsed_s
        ledger.change("UPDATE search SET at = at - 86400")
        search_events.withdraw(ledger)
        search_events.add(ledger, [SearchEvent(kind="began", content={"lanes": 2})])
        assert search_time.spent_budget(ledger).elapsed_s == pytest.approx(before)


class Draw(JobSource):
    noun = "draw"


def test_jobs_of_another_source_are_refused_where_a_search_has_begun(tmp_path: Path) -> None:
    paths = search_run(tmp_path / "run", [Told(values=[3.0]), Told()], is_over=False)
    drawn = dataclasses.replace(changed_search.declared_experiment(paths), job_source=Draw())
    options = RunOptions(run_dir=paths.root)
    with run_directory.opened_ledger(paths) as ledger:
        with pytest.raises(ChangedError) as refused:
            changed_search.resumed_experiment(drawn, options, ledger, paths)
        search_events.withdraw(ledger)
        assert changed_search.resumed_experiment(drawn, options, ledger, paths) == (drawn, options)
    assert "a search has begun here, and the job file declares a draw in its place" in str(
        refused.value
    )
    assert "`run --fresh` starts over" in str(refused.value)
