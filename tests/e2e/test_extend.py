"""``run --on-change=extend``, as users type it."""

from __future__ import annotations

import dataclasses
import shutil
import signal
from pathlib import Path

import command_helpers as commands
import pytest
import worker_helpers as worker
from command_helpers import HOPPER, Run, give, wait_until, write_experiment

from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.paths import JobPaths, RunPaths
from orchestrator.core.worker_spec import WorkerSpec


def finish(jobs: Path, *options: str) -> str:
    done = give("run", jobs, "--run-dir", "run", *options, cwd=jobs.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def trained_at_once(extended: JobPaths, directory: Path) -> str | None:
    """The hash of the weights after one training with all env_steps of a job that was extended."""
    spec = dataclasses.replace(WorkerSpec.from_json(extended.spec.read_text()), extended_from=())
    paths = worker.job(directory, spec)
    shutil.copytree(extended.robot, paths.robot)
    record, log = worker.train_here(paths)
    assert record.code == ExitCode.SUCCEEDED, log
    return record.weights_sha256


@pytest.mark.slow
def test_a_finished_job_is_refused_with_more_steps_and_then_extended(tmp_path: Path) -> None:
    jobs = write_experiment(tmp_path, {"name": "hopper", "xml": HOPPER, "task": "forward", "total_timesteps": 200})
    finish(jobs)
    jobs.write_text(jobs.read_text().replace("total_timesteps = 200", "total_timesteps = 400"))
    refused = commands.invoke("run", jobs, "--run-dir", "run", cwd=tmp_path)
    assert refused.returncode == 2
    assert "total_timesteps: 200 → 400" in refused.stderr
    assert "--on-change=extend" in refused.stderr

    said = finish(jobs, "--on-change=extend")
    assert "from 200 to 400 env_steps: hopper-s0" in said
    assert "at 256 env_steps" in said
    row = commands.summary(tmp_path / "run")["hopper-s0"]
    assert (row["state"], row["attempts"], row["env_steps"], row["learner"]) == ("SUCCEEDED", 2, 512, "fast")

    at_once = trained_at_once(RunPaths(tmp_path / "run").job("hopper-s0"), tmp_path / "at once")
    assert row["weights_sha256"] == at_once


@pytest.mark.slow
def test_an_extension_that_is_killed_is_resumed_by_the_same_command_with_the_same_bits(tmp_path: Path) -> None:
    sac = {"buffer_size": 3000, "learning_starts": 64, "batch_size": 16, "train_freq": 4}
    net = {"net_arch": [8]}

    def experiment(total_timesteps: int) -> Path:
        shared = {"xml": HOPPER, "task": "forward", "total_timesteps": total_timesteps, "policy_kwargs": net}
        others = {"algo": "sac", "sac": sac, "keep_replay_buffer": True}
        return write_experiment(tmp_path, {"name": "ppo", **shared}, {"name": "sac", **shared, **others})

    def newest() -> int:
        return max(int(path.stem.rpartition("-")[2]) for path in tmp_path.glob("run/jobs/*/checkpoints/*.pt"))

    finish(experiment(600))
    jobs = experiment(3000)
    with Run(jobs, "--run-dir", "run", "--on-change=extend", cwd=tmp_path) as run:
        wait_until(lambda: newest() > 1000, "a checkpoint of the extension")
        run.signal(signal.SIGKILL)
    finish(jobs)
    rows = commands.summary(tmp_path / "run")
    assert sum(row["attempts"] for row in rows.values()) > 4, "an attempt of the extension was killed"
    for job_id, row in rows.items():
        at_once = trained_at_once(RunPaths(tmp_path / "run").job(job_id), tmp_path / job_id)
        assert row["weights_sha256"] == at_once, job_id
