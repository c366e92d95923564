"""``run --dry-run`` in a run directory that has jobs, and the hyperparameters that it shows."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import command_helpers as commands
import pytest
from command_helpers import invoke, succeed, write_experiment

from orchestrator.experiment import run_directory

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
        "would be refused" in warning and "changed-s0\n    n_envs: 2 → 4" in warning
        for warning in plan["warnings"]
    )
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_what_the_options_change_is_shown(half_finished: Path) -> None:
    restarting = planned(half_finished, "--on-change=restart")
    assert restarting["jobs"]["changed"]["action"] == "restart"
    assert not any("refused" in warning for warning in restarting["warnings"])
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
    whole = json.loads(invoke(*arguments, "--json", cwd=tmp_path).stdout)["jobs"]
    of_c = next(job for job in whole if job["name"] == "c")
    assert (of_c["hyperparameters"]["gae_lambda"], of_c["hyperparameters"]["n_steps"]) == (0.95, 64)
    assert "gae_lambda" not in of_c["ppo"]


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
