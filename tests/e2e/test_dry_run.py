"""``run --dry-run`` in a run directory that has jobs, and the hyperparameters that it shows."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import command_helpers as commands
import pytest
from command_helpers import invoke, succeed, write_experiment

from orchestrator.core.errors import Problem
from orchestrator.core.job import Job
from orchestrator.executors.local import LocalExecutor
from orchestrator.experiment.directory import run_directory
from orchestrator.experiment.examination import preflight
from orchestrator.experiment.examination.preflight import JobVerdict

NAMES = ("done", "begun", "fresh", "failed", "waits", "changed", "gone")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is examined, and every worker succeeds at once."""
    commands.examine_nothing(monkeypatch)
    commands.instant_workers(monkeypatch, tmp_path)


def declared(folder: Path, *names: str, **of_changed: Any) -> Path:
    jobs = [
        {"name": name, "env": "Ant-v5", **(of_changed if name == "changed" else {})}
        for name in names
    ]
    return write_experiment(folder, *jobs, head='order = "as-listed"')


@pytest.fixture
def half_finished(tmp_path: Path) -> Path:
    """A run directory with a job in every state, whose supervisor was killed; the folder has its
    job file."""
    jobs = declared(tmp_path, *NAMES)
    assert invoke("run", jobs, "--run-dir", "run", cwd=tmp_path).returncode == 0
    with contextlib.closing(sqlite3.connect(tmp_path / "run/ledger.sqlite3")) as ledger, ledger:
        for name, state in (
            ("begun", "RUNNING"),
            ("fresh", "PENDING"),
            ("waits", "PAUSED"),
            ("gone", "PENDING"),
        ):
            ledger.execute("UPDATE jobs SET state = ? WHERE job_id = ?", (state, f"{name}-s0"))
        ledger.execute(
            "UPDATE jobs SET state = 'FAILED', cause = 'error', message = 'fell' WHERE job_id = 'failed-s0'"
        )
    checkpoints = tmp_path / "run/jobs/begun-s0/checkpoints"
    checkpoints.mkdir()
    for env_steps in (128, 384):
        (checkpoints / f"checkpoint-{env_steps:012}.pt").touch()
    declared(tmp_path, *(name for name in NAMES if name != "gone"), "new", n_envs=4)
    return tmp_path


def planned(cwd: Path, *options: str) -> Mapping[str, Any]:
    done = succeed("run", "jobs.toml", "--run-dir", "run", "--dry-run", "--json", *options, cwd=cwd)
    plan: dict[str, Any] = json.loads(done.stdout)
    return plan | {"jobs": {job["name"]: job for job in plan["jobs"]}}


def test_every_job_has_its_state_and_what_the_run_would_do(half_finished: Path) -> None:
    before = {
        path: path.stat().st_mtime_ns
        for path in half_finished.rglob("*")
        if "sqlite3-" not in path.name
    }
    plan = planned(half_finished)
    found = {
        name: (job["state"], job["action"], job["resumes_from"])
        for name, job in plan["jobs"].items()
    }
    assert found == {
        "done": ("SUCCEEDED", "none", None),
        "begun": ("PENDING", "resume", 384),
        "fresh": ("PENDING", "resume", 0),
        "failed": ("FAILED", "none", None),
        "waits": ("PAUSED", "none", None),
        "changed": ("SUCCEEDED", "refuse", None),
        "new": (None, "start", None),
    }
    assert plan["jobs"]["changed"]["changes"] == ["n_envs: 2 → 4"]
    assert plan["undeclared"] == ["gone-s0"]
    assert any(
        "would be refused: changed-s0 declared differently" in warning
        for warning in plan["warnings"]
    )
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_what_the_options_change_is_shown(half_finished: Path) -> None:
    restarting = planned(half_finished, "--on-change=restart")
    assert restarting["jobs"]["changed"]["action"] == "restart"
    assert not any("refused" in warning for warning in restarting["warnings"])
    keeping = planned(half_finished, "--on-change=keep")
    assert keeping["jobs"]["changed"]["action"] == "none"
    extending = planned(half_finished, "--on-change=extend")
    assert extending["jobs"]["changed"]["action"] == "refuse", (
        "more than its total_timesteps has changed"
    )
    further = planned(
        half_finished, "--on-change=extend", "--set", "n_envs=2", "--set", "total_timesteps=1e4"
    )
    assert {
        name: (job["action"], job["resumes_from"]) for name, job in further["jobs"].items()
    } == {
        "done": ("extend", 0),
        "begun": ("resume", 384),
        "fresh": ("resume", 0),
        "failed": ("none", None),
        "waits": ("none", None),
        "changed": ("extend", 0),
        "new": ("start", None),
    }
    afresh = planned(half_finished, "--fresh")
    assert {job["action"] for job in afresh["jobs"].values()} == {"start"}


def test_a_changed_job_that_is_invalid_now_would_go_on_as_it_was(
    half_finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    invalid = JobVerdict(problem=Problem(where="jobs[0]", message="no such environment"))

    def examine(jobs: Sequence[Job], **_: Any) -> dict[str, JobVerdict]:
        return {job.job_id: invalid for job in jobs}

    monkeypatch.setattr(preflight, "examine", examine)
    changed = ("--skip-invalid", "--set", "ppo.gamma=0.5")
    restarting = planned(half_finished, *changed, "--on-change=restart")["jobs"]["begun"]
    assert (restarting["action"], restarting["resumes_from"]) == ("resume", 384)
    refused = planned(half_finished, *changed)["jobs"]["begun"]
    assert refused["action"] == "refuse"
    assert refused["changes"][-1] == "is invalid now: no such environment"


def test_a_job_that_is_too_large_would_not_be_resumed(half_finished: Path) -> None:
    much = ("--skip-invalid", "--set", 'resources.memory="900 TiB"', "--on-change=restart")
    found = {name: job["action"] for name, job in planned(half_finished, *much)["jobs"].items()}
    assert found == {
        "done": "none",
        "begun": "none",
        "fresh": "none",
        "failed": "none",
        "waits": "none",
        "changed": "restart",
        "new": "none",
    }
    run = ("run", "jobs.toml", "--run-dir", "run", "--dry-run", *much)
    shown = invoke(*run, cwd=half_finished).stdout
    assert "of which none would be launched" in shown
    assert shown.count("not train it here: it is too large") == 3
    assert "it has changed, and is too large here" in shown


def test_the_table_says_the_same(half_finished: Path) -> None:
    shown = invoke("run", "jobs.toml", "--run-dir", "run", "--dry-run", cwd=half_finished).stdout
    assert "tiny: 7 jobs, of which none would be launched, " in shown
    for job, state, fate in (
        ("done", "SUCCEEDED", "do nothing"),
        ("begun", "PENDING", "resume it at 384"),
        ("fresh", "PENDING", "resume it at 0: it has no checkpoint"),
        ("failed", "FAILED", "do nothing; `retry` queues it"),
        ("waits", "PAUSED", "do nothing; `resume` queues it"),
        ("changed", "SUCCEEDED", "be refused: it has changed"),
        ("new", "new", "start it"),
    ):
        assert re.search(rf"^{job}-s0 +{state} +{re.escape(fate)}  ", shown, re.M), (job, shown)
    assert "n_envs: 2 → 4" in shown
    assert "not resumed: gone-s0" in shown


def test_a_supervisor_that_runs_is_named(
    half_finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_directory.claim(half_finished / "run"):
        plan = planned(half_finished)
    assert any(
        "while another supervisor holds run (process " in warning for warning in plan["warnings"]
    )


def test_hyperparameters_that_are_not_the_defaults_are_shown_once_for_all_jobs_that_have_them(
    tmp_path: Path,
) -> None:
    robots = [{"name": name, "env": "Ant-v5"} for name in "ab"]
    other = {"name": "c", "env": "Ant-v5", "ppo": {"gamma": 0.9, "clip_range": 0.2}}
    jobs = write_experiment(
        tmp_path, *robots, other, {**robots[0], "name": "d", "algo": "sac", "total_timesteps": 1000}
    )
    arguments = (
        "run",
        jobs,
        "--dry-run",
        "--set",
        "ppo.n_epochs=3",
        "--set",
        "policy_kwargs.net_arch=[32]",
    )
    below = invoke(*arguments, cwd=tmp_path).stdout.split(
        "differ from Stable-Baselines3's defaults"
    )[1]
    common = "ppo.n_steps = 64, ppo.n_epochs = 3, policy_kwargs.net_arch = [32]"
    assert f"  a-s0, b-s0: {common}\n" in below
    assert (
        "  c-s0: ppo.n_steps = 64, ppo.n_epochs = 3, ppo.gamma = 0.9, policy_kwargs.net_arch = [32]\n"
        in below
    )
    assert "  d-s0: policy_kwargs.net_arch = [32]\n" in below
    assert "Model edits" not in below
    whole = json.loads(invoke(*arguments, "--json", cwd=tmp_path).stdout)["jobs"]
    of_c = next(job for job in whole if job["name"] == "c")
    assert (of_c["hyperparameters"]["gae_lambda"], of_c["hyperparameters"]["n_steps"]) == (0.95, 64)
    assert "gae_lambda" not in of_c["ppo"]


def test_it_says_how_workers_would_be_started_and_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.executors.local_backend.LocalExecutor", LocalExecutor)
    robot = {"xml": str(commands.HOPPER), "task": "forward"}
    with_env = {"name": "other", "env": "CartPole-v1"}
    asked = {**robot, "name": "asked", "resources": {"start": "exec"}}
    many = write_experiment(
        tmp_path, {**robot, "name": "many", "seeds": [0, 1, 2]}, with_env, asked
    )
    shown = invoke("run", many, "--dry-run", cwd=tmp_path).stdout
    line = " ".join(shown.split()).split("start: ")[1]
    assert line.startswith(
        "4 workers forked from a process that imports their packages once (3 or more jobs that can be forked are due)"
    )
    assert '1 worker started as new Python processes (resources.start = "exec")' in line
    jobs = json.loads(invoke("run", many, "--dry-run", "--json", cwd=tmp_path).stdout)["jobs"]
    assert [job["start"] for job in jobs] == ["fork", "fork", "fork", "fork", "exec"]
    few = write_experiment(tmp_path, {**robot, "name": "few", "seeds": [0, 1]})
    assert (
        "fewer than 3 jobs that can be forked are due"
        in invoke("run", few, "--dry-run", cwd=tmp_path).stdout
    )


def test_edits_of_the_model_are_shown_where_jobs_have_some(tmp_path: Path) -> None:
    robot = {"xml": str(commands.HOPPER), "task": "forward"}
    edited = {**robot, "name": "a", "model": {"geom.thigh.size": "*1.2", "option.timestep": 0.004}}
    jobs = write_experiment(tmp_path, edited, {**robot, "name": "b"})
    below = invoke("run", jobs, "--dry-run", cwd=tmp_path).stdout.split("Model edits:\n")[1]
    assert '  a-s0: geom.thigh.size = "*1.2", option.timestep = 0.004\n' in below
    assert "  b-s0: none\n" in below


def test_jobs_start_in_the_order_of_their_expected_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, physics_s = (
        {"short": 1_000, "quick": 900_000, "slow": 800_000, "long": 901_000},
        {"slow": 1e-3},
    )
    write_experiment(
        tmp_path,
        *({"name": name, "env": "Ant-v5", "total_timesteps": steps[name]} for name in steps),
    )

    def measured(jobs: Any, **_: Any) -> dict[str, JobVerdict]:
        return {j.job_id: JobVerdict(physics_s=physics_s.get(j.spec.name, 0.0)) for j in jobs}

    monkeypatch.setattr(preflight, "examine", measured)
    assert list(planned(tmp_path)["jobs"]) == ["slow", "quick", "long", "short"]


def test_the_plan_shows_the_order_and_what_each_job_waits_for(tmp_path: Path) -> None:
    ant = {"env": "Ant-v5"}
    stages = [
        {**ant, "name": "run", "init": "job:walk"},
        {**ant, "name": "walk", "after": ["stand"]},
    ]
    write_experiment(tmp_path, *stages, {**ant, "name": "stand"})
    shown = invoke("run", "jobs.toml", "--run-dir", "run", "--dry-run", cwd=tmp_path).stdout
    assert re.search(r"stand-s0 .*\n *walk-s0 .* stand-s0 .*\n *run-s0 .* walk-s0 ", shown), shown
    assert {name: job["after"] for name, job in planned(tmp_path)["jobs"].items()} == {
        "stand": [],
        "walk": ["stand-s0"],
        "run": ["walk-s0"],
    }
