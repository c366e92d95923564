"""`run RUN_DIR`: resumes without the job file and the robots, with the same result."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
from pathlib import Path

import command_helpers as commands
import pytest
import worker_helpers as worker
from command_helpers import REPOSITORY, Experiment, give, invoke, succeed, write_experiment

from orchestrator.core.paths import RunPaths


def experiment(folder: Path, steps: int) -> Path:
    """A robot with includes and meshes, and one never launched before the stop, since one runs at a
    time."""
    folder.mkdir()
    for name in ("dog.xml", "dog", "hopper.xml"):
        source = REPOSITORY / "mjcf" / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / name)
    dog = {
        "name": "dog",
        "xml": "dog.xml",
        "task": "forward",
        "total_timesteps": steps,
        "eval_episodes": 1,
    }
    hopper = {"name": "hopper", "xml": "hopper.xml", "task": "auto", "total_timesteps": 512}
    return write_experiment(folder, dog, hopper, head='max_parallel = 1\norder = "as-listed"')


@pytest.mark.nightly
def test_training_and_play_go_on_when_the_originals_and_what_clean_removes_are_gone(
    tmp_path: Path,
) -> None:
    jobs = experiment(tmp_path / "b", steps=4096)
    process = subprocess.Popen(
        commands.command("run", jobs, "--run-dir", tmp_path / "run"),
        env=commands.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    checkpoints = tmp_path / "run/jobs/dog-s0/checkpoints"
    commands.wait_until(lambda: list(checkpoints.glob("checkpoint-*.pt")), "a checkpoint")
    process.send_signal(signal.SIGINT)
    assert process.wait(commands.PATIENCE_S) == 130
    shutil.rmtree(tmp_path / "b")

    assert invoke("run", jobs, "--run-dir", tmp_path / "run", cwd=tmp_path).returncode == 2, (
        "the job file is gone"
    )
    plan = invoke("run", tmp_path / "run", "--dry-run", "--json", cwd=tmp_path)
    assert [job["job_id"] for job in json.loads(plan.stdout)["jobs"]] == ["dog-s0", "hopper-s0"]
    succeed("run", tmp_path / "run", cwd=tmp_path)
    assert invoke("clean", tmp_path / "run", cwd=tmp_path).returncode == 0
    for job_id in ("dog-s0", "hopper-s0"):
        mine = RunPaths(tmp_path / "run").job(job_id)
        alone, _ = worker.train_again(mine, tmp_path / "alone" / job_id)
        assert worker.same_bits(worker.parameters(mine.model), worker.parameters(alone.model)), (
            job_id
        )
        assert mine.vecnormalize.exists(), job_id
        assert worker.normalization(mine.vecnormalize) == worker.normalization(
            alone.vecnormalize
        ), job_id
        if job_id == "dog-s0":
            assert json.loads(mine.eval.read_text()) == json.loads(alone.eval.read_text())
    played = give("play", tmp_path / "run", "dog", "--video", "--seconds", "0.2", cwd=tmp_path)
    assert played.returncode == 0, played.stderr
    assert (tmp_path / "run/jobs/dog-s0/preview.png").exists()


@pytest.mark.parametrize("option", [["--fresh"], ["--set", "n_envs=3"], ["--run-dir", "x"]])
def test_a_run_directory_takes_no_other_settings(
    option: list[str], finished_once: Experiment
) -> None:
    refused = invoke("run", finished_once.run_dir, *option, cwd=finished_once.cwd)
    assert refused.returncode == 2
    assert "need the job file" in refused.stderr


def unfinish(run_dir: Path, job_id: str) -> None:
    with contextlib.closing(
        sqlite3.connect(run_dir / "ledger.sqlite3", isolation_level=None)
    ) as ledger:
        ledger.execute("UPDATE jobs SET state = 'PENDING' WHERE job_id = ?", (job_id,))


def test_an_altered_robot_fails_its_job_until_the_job_file_puts_it_back(
    finished: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.instant_workers(monkeypatch, tmp_path)
    robot = finished.run_dir / "jobs/hopper-s0/robot/hopper.xml"
    robot.write_bytes(robot.read_bytes()[:-300])
    assert invoke("run", "run", cwd=finished.cwd).returncode == 0, "it is trained already"
    unfinish(finished.run_dir, "hopper-s0")
    refused = invoke("run", "run", cwd=finished.cwd)
    assert refused.returncode == 1
    row = commands.summary(finished.run_dir)["hopper-s0"]
    assert (row["state"], row["cause"]) == ("FAILED", "error")
    assert str(robot.relative_to(finished.cwd)) in row["message"]

    assert invoke("retry", "run", "hopper-s0", cwd=finished.cwd).returncode == 0
    again = invoke("run", "jobs.toml", "--run-dir", "run", cwd=finished.cwd)
    assert again.returncode == 0, again.stdout
    assert "put back" in again.stdout
    assert "hopper-s0 at 512" in again.stdout
    assert "changed since the run before" not in again.stdout
    assert robot.read_bytes() == commands.HOPPER.read_bytes()


@pytest.mark.nightly
def test_a_run_directory_with_text_that_is_not_utf_8_can_be_used(
    finished: Experiment,
) -> None:
    exit_json = finished.run_dir / "jobs/hopper-s0/attempts/0/exit.json"
    latin_1 = os.fsdecode(b"/dM\xfcl")
    record = json.loads(exit_json.read_text()) | {"learner_reason": latin_1, "traceback": latin_1}
    exit_json.write_text(json.dumps(record))
    (finished.run_dir / "ledger.sqlite3").unlink()
    succeed("run", finished.jobs, "--run-dir", "run", cwd=finished.cwd)
    assert commands.summary(finished.run_dir)["hopper-s0"]["learner_reason"] == r"/dM\udcfcl"
    exit_json.write_text(json.dumps(record | {"code": 1, "message": latin_1}))
    with contextlib.closing(sqlite3.connect(finished.run_dir / "ledger.sqlite3")) as ledger:
        ledger.execute("UPDATE jobs SET state = 'RUNNING' WHERE job_id = 'hopper-s0'")
        ledger.execute("UPDATE attempts SET record = ?", (json.dumps(record),))
        ledger.commit()
    assert invoke("status", "run", cwd=finished.cwd).returncode == 0
    again = invoke("run", finished.jobs, "--run-dir", "run", cwd=finished.cwd)
    assert again.returncode == 1, again.stderr
    row = commands.summary(finished.run_dir)["hopper-s0"]
    assert (row["state"], row["message"], row["traceback"]) == (
        "FAILED",
        r"/dM\udcfcl",
        r"/dM\udcfcl",
    )
