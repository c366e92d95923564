"""What a search has found, after real trainings: copies of the best train the same again, and
Optuna's tools see it."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import command_helpers as commands
import pytest
from command_helpers import FORKED, HOPPER, TINY, give, wait_until
from trial_helpers import Told, point_of, search_run

from orchestrator.core.errors import OrchestratorError
from orchestrator.core.paths import RunPaths
from orchestrator.experiment.directory import run_directory
from orchestrator.features.search import search_events
from orchestrator.features.search.declaration.spec import Dimension
from orchestrator.features.search.ranking import read as ranking_of
from orchestrator.features.search.search_events import SearchEvent
from orchestrator.features.search.search_paths import SearchPaths
from orchestrator.ledger import Ledger

pytestmark = pytest.mark.nightly

SEARCH = f"""name = "search"
max_parallel = 2
{TINY}
[[jobs]]
name = "hopper"
xml = "{HOPPER}"
task = "forward"
[search]
sampler = "random"
trials = 4
objective = "ep_rew_mean"
[search.space]
"ppo.learning_rate" = {{ low = 1e-4, high = 1e-2, log = true }}
"model.geom.*thigh*.size" = {{ low = 0.8, high = 1.2, multiply = true }}
[search.scheduler]
min_env_steps = 128
factor = 2
"""


def weights(run_dir: Path) -> dict[str, Any]:
    return {job_id: row["weights_sha256"] for job_id, row in commands.summary(run_dir).items()}


def test_a_stopped_search_is_resumed_from_its_run_directory_and_its_best_train_the_same_again(
    tmp_path: Path,
) -> None:
    (tmp_path / "jobs.toml").write_text(SEARCH)
    with commands.Run("jobs.toml", "--run-dir", "run", cwd=tmp_path) as run:
        wait_until(
            lambda: (tmp_path / "run/jobs").exists() and any((tmp_path / "run/jobs").iterdir()),
            "a job is made",
        )
        run.popen.send_signal(signal.SIGINT)
        assert run.popen.wait() == 130
    assert commands.invoke("status", "run", "--exit-code", cwd=tmp_path).returncode == 130
    resumed = give("run", "run", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert "4 of 4 trials" in resumed.stdout
    assert commands.invoke("status", "run", "--exit-code", cwd=tmp_path).returncode == 0
    before = weights(tmp_path / "run")
    assert len(before) == 4

    assert commands.invoke("best", "run", "-n", "1", "--to", "copy", cwd=tmp_path).returncode == 0
    assert commands.invoke("check", "copy/jobs.toml", cwd=tmp_path).returncode == 0
    assert give("run", "copy/jobs.toml", "--run-dir", "again", cwd=tmp_path).returncode == 0
    again = weights(tmp_path / "again")
    assert len(again) == 1
    assert again.items() <= before.items()


def test_the_jobs_of_a_matrix_train_as_far_again_and_without_its_scheduler_to_their_end(
    tmp_path: Path,
) -> None:
    job = f'[[jobs]]\nname = "hopper"\nxml = "{HOPPER}"\ntask = "forward"\nmatrix = {{ "ppo.gamma" = [0.9, 0.99] }}\n'
    rungs = "[scheduler]\nmin_env_steps = 128\nfactor = 4\n"
    (tmp_path / "jobs.toml").write_text(f'name = "rungs"\n{rungs}{FORKED}\n{job}')
    assert give("run", "jobs.toml", "--run-dir", "run", cwd=tmp_path).returncode == 0
    before = commands.summary(tmp_path / "run")
    assert sorted(row["state"] for row in before.values()) == ["PAUSED", "SUCCEEDED"]
    (done_before,) = [job_id for job_id, row in before.items() if row["state"] == "SUCCEEDED"]
    shutil.rmtree(tmp_path / "run/jobs" / done_before)
    assert give("run", "jobs.toml", "--run-dir", "run", cwd=tmp_path).returncode == 0
    again = commands.summary(tmp_path / "run")[done_before]
    assert again["weights_sha256"] == before[done_before]["weights_sha256"], (
        "it has not paused at its first rung"
    )
    (tmp_path / "jobs.toml").write_text(f'name = "rungs"\n{FORKED}\n{job}')
    done = give("run", "jobs.toml", "--run-dir", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {row["state"] for row in commands.summary(tmp_path / "run").values()} == {"SUCCEEDED"}


def of_every_state(folder: Path) -> Path:
    trials = [
        Told(values=[3.0], reached=[1.0, 2.0, 2.5]),
        Told(reached=[0.5]),
        Told(reached=[2.0], is_promoted=True),
        Told(why="no legs"),
        Told(values=[4.0], parent=0),
        Told(values=[3.5], reevaluates=4, point=point_of(4)),
        Told(why="outside", point={"ppo.learning_rate": 5.0}),
    ]
    return search_run(
        folder / "run", trials, is_over=False, start="best", starts_from="hopper-t00000-s0"
    ).root


def study_in(file: Path) -> Any:
    import optuna  # here, as it takes long

    backend = optuna.storages.journal.JournalFileBackend(str(file))
    return optuna.load_study(study_name=None, storage=optuna.storages.JournalStorage(backend))


def test_tables_among_the_choices_are_read_back_with_their_keys_in_another_order(
    tmp_path: Path,
) -> None:
    """Events have the keys sorted."""
    from orchestrator.features.search import optuna_journal  # here, as Optuna takes long

    nets = [{"vf": [32], "pi": [32]}, {"vf": [64], "pi": [64]}]
    net_arch = "policy_kwargs.net_arch"
    trials = [Told(values=[number], point={net_arch: nets[number]}) for number in (1, 0)]
    run_dir = search_run(tmp_path / "run", trials, space={net_arch: {"choices": nets}}).root
    ranking = ranking_of(run_dir, 2)
    assert [trial.point[net_arch] for trial in ranking.shown] == [nets[1], nets[0]]
    study = study_in(optuna_journal.export(run_dir).file)
    assert [trial.params[net_arch] for trial in study.trials] == [
        json.dumps(nets[1]),
        json.dumps(nets[0]),
    ]


def test_optuna_is_given_texts_where_it_would_take_two_choices_for_the_same() -> None:
    from orchestrator.features.search.optuna_journal import _choices  # here, as Optuna takes long

    assert _choices(Dimension(key="a", choices=(1, True))) == ["1", "true"]
    assert _choices(Dimension(key="a", choices=(1, 2.5, "x", [1]))) == [1, 2.5, "x", "[1]"]


def test_the_journal_holds_the_trials_as_optuna_knows_them(tmp_path: Path) -> None:
    run_dir = of_every_state(tmp_path)
    done = commands.succeed("search", "export", run_dir, "--json", cwd=tmp_path)
    study = study_in(json.loads(done.stdout)["file"])
    states = [trial.state.name for trial in study.trials]
    assert states == ["COMPLETE", "RUNNING", "RUNNING", "FAIL", "COMPLETE", "FAIL"]
    outside = study.trials[5]
    assert (outside.params, outside.user_attrs["point"]) == ({}, {"ppo.learning_rate": 5.0})
    assert [trial.values for trial in study.trials if trial.state.name == "COMPLETE"] == [
        [3.0],
        [4.0],
    ]
    assert study.trials[0].intermediate_values == {100: 1.0, 300: 2.0, 900: 2.5}
    assert study.best_trial.number == 4
    assert study.best_trial.user_attrs["again"] == [3.5]
    attributes = [study.trials[number].user_attrs for number in (0, 4)]
    assert [one.get("parent") for one in attributes] == [None, 0]
    assert [one["env_steps"] for one in attributes] == [1000, 1000]
    assert [one.get("lineage_env_steps") for one in attributes] == [None, 2000]
    assert study.trials[3].user_attrs["why"] == "no legs"
    assert study.best_params == {**point_of(4), "policy_kwargs.net_arch": "[32, 32]"}
    assert study.direction.name == "MAXIMIZE"


def test_the_journal_of_a_search_that_runs_has_its_trials_so_far(tmp_path: Path) -> None:
    endless = SEARCH.replace("trials = 4", "trials = 9")
    (tmp_path / "jobs.toml").write_text(
        endless.replace("total_timesteps = 512", "total_timesteps = 100_000_000")
    )
    with commands.Run("jobs.toml", "--run-dir", "run", cwd=tmp_path) as run:
        wait_until(
            lambda: bool(pauses(tmp_path / "run")),
            "a trial waits at its rung, or goes on from there",
        )
        shown = commands.succeed("search", "export", "run", cwd=tmp_path)
        assert re.search(
            r"journal\.log: \d trials \(.*\d training.*\)", " ".join(shown.stdout.split())
        )
        assert "The search has not ended" in shown.stdout
        exported = commands.succeed("search", "export", "run", "--json", cwd=tmp_path)
        study = study_in(tmp_path / json.loads(exported.stdout)["file"])
        run.popen.send_signal(signal.SIGINT)
        assert run.popen.wait() == 130
    facts, states = json.loads(exported.stdout), Counter(trial.state.name for trial in study.trials)
    assert facts["states"].keys() <= {"training", "waiting"}
    assert states == {"RUNNING": sum(facts["states"].values())}
    assert (facts["trials"], facts["is_over"]) == (len(study.trials), False)
    assert any(trial.intermediate_values for trial in study.trials)


def pauses(run_dir: Path) -> int:
    """Number of times that a trial has come to a rung."""
    paths = RunPaths(run_dir)
    with (
        contextlib.suppress(OrchestratorError),
        run_directory.opened_ledger(paths, read_only=True) as ledger,
    ):
        return sum(event.kind == "reached" for event in search_events.events(ledger))
    return 0


def test_an_open_journal_reads_on_after_further_exports_unless_a_trial_has_changed(
    tmp_path: Path,
) -> None:
    run_dir = of_every_state(tmp_path)
    file = SearchPaths(run_dir).journal

    def exported_after(*kinds: tuple[search_events.Kind, int | None, dict[str, Any]]) -> str:
        ledger = Ledger.open(RunPaths(run_dir).ledger)
        search_events.add(
            ledger, [SearchEvent(kind=kind, trial=trial, content=new) for kind, trial, new in kinds]
        )
        ledger.close()
        return " ".join(commands.succeed("search", "export", run_dir, cwd=tmp_path).stdout.split())

    assert "restart" not in exported_after()
    study = study_in(file)
    assert [trial.state.name for trial in study.trials][:3] == ["COMPLETE", "RUNNING", "RUNNING"]
    asked = {"point": point_of(7), "jobs": ["hopper-t00007-s0"]}
    over = {"values": [5.0], "measures": None, "env_steps": 1000, "why": ""}
    with file.open("r+b") as torn:  # as by a command that was killed
        torn.truncate(file.stat().st_size - 9)
    shown = exported_after(
        *(("promoted", 1, {"goal": 1}), ("over", 1, over), ("asked", None, asked)),
        ("reached", 2, {"value": 2.5, "env_steps": 300}),
    )
    assert "restart" not in shown
    states = ["COMPLETE", "COMPLETE", "RUNNING", "FAIL", "COMPLETE", "FAIL", "RUNNING"]
    assert [trial.state.name for trial in study.trials] == states
    assert study.best_trial.values == [5.0]
    assert study.trials[2].intermediate_values == {100: 2.0, 300: 2.5}
    assert "restart an optuna-dashboard" in exported_after(("retried", 3, {}))
    study = study_in(file)
    assert "restart" not in exported_after(("ended", None, {}))
    assert [trial.state.name for trial in study.trials] == [
        *states[:2],
        "PRUNED",
        "RUNNING",
        *states[4:],
    ]


def test_the_journal_of_several_objectives_has_their_names_and_directions(tmp_path: Path) -> None:
    paths = search_run(
        tmp_path / "run",
        [Told(values=(1.0, 2.0)), Told(values=(3.0, 4.0))],
        sampler="nsga2",
        objective=["eval_mean", "env_steps"],
        direction=["maximize", "minimize"],
        scheduler={"kind": "none"},
    )
    commands.succeed("search", "export", paths.root, "--out", "out.log", cwd=tmp_path)
    study = study_in(tmp_path / "out.log")
    assert [direction.name for direction in study.directions] == ["MAXIMIZE", "MINIMIZE"]
    assert study.metric_names == ["eval_mean", "env_steps"]
    assert [trial.values for trial in study.trials] == [[1.0, 2.0], [3.0, 4.0]]


def test_a_file_that_is_no_journal_is_not_replaced_and_a_plain_run_has_no_trials(
    tmp_path: Path,
) -> None:
    run_dir = of_every_state(tmp_path)
    mine = tmp_path / "mine.log"
    mine.write_text("dear diary")
    refused = commands.invoke("search", "export", run_dir, "--out", mine, cwd=tmp_path)
    assert refused.returncode == 2
    assert mine.read_text() == "dear diary"
    for _ in range(2):
        assert (
            commands.invoke(
                "search", "export", run_dir, "--out", "journal.log", cwd=tmp_path
            ).returncode
            == 0
        )
    plain = commands.write_experiment(tmp_path / "plain", commands.odd("a", "nothing"))
    (plain.parent / "supervisor.lock").touch()
    refused = commands.invoke("search", "export", plain.parent, cwd=tmp_path)
    assert refused.returncode == 2
    assert "search" in refused.stderr


def test_optuna_dashboard_shows_an_exported_search(tmp_path: Path) -> None:
    commands.succeed("search", "export", of_every_state(tmp_path), "--out", "out.log", cwd=tmp_path)
    code = "import sys; from optuna_dashboard._cli import main; sys.argv[0] = 'optuna-dashboard'; main()"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen(
        [
            sys.executable,
            "-c",
            code,
            str(tmp_path / "out.log"),
            "--port",
            str(port),
            "--server",
            "wsgiref",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as server:
        try:
            studies: list[Any] = []

            def answers() -> bool:
                try:
                    with urllib.request.urlopen(
                        f"http://127.0.0.1:{port}/api/studies", timeout=10
                    ) as answer:
                        studies.extend(json.load(answer)["study_summaries"])
                except OSError:
                    time.sleep(0.1)
                return bool(studies)

            wait_until(answers, "the dashboard answers")
            (study,) = studies
            url = f"http://127.0.0.1:{port}/api/studies/{study['study_id']}?after=0"
            with urllib.request.urlopen(url, timeout=60) as answer:
                trials = json.load(answer)["trials"]
        finally:
            server.kill()
    assert [trial["state"] for trial in trials] == [
        "Complete",
        "Running",
        "Running",
        "Fail",
        "Complete",
        "Fail",
    ]
