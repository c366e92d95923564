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

from orchestrator.core.paths import JobPaths, RunPaths
from orchestrator.core.worker_spec import WorkerSpec


def finish(jobs: Path, *options: str) -> str:
    done = give("run", jobs, "--run-dir", "run", *options, cwd=jobs.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


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

    extended = RunPaths(tmp_path / "run").job("hopper-s0")
    spec = dataclasses.replace(WorkerSpec.from_json(extended.spec.read_text()), extended_from=())
    at_once = worker.job(tmp_path / "at once", spec)
    shutil.copytree(extended.robot, at_once.robot)
    record, log = worker.train_here(at_once)
    assert record.weights_sha256 == row["weights_sha256"], log


@pytest.mark.slow
def test_an_extension_that_is_killed_is_resumed_by_the_same_command_with_the_same_bits(tmp_path: Path) -> None:
    sac = {"buffer_size": 3000, "learning_starts": 64, "batch_size": 16, "train_freq": 4}
    net = {"net_arch": [8]}

    def experiment(folder: str, total_timesteps: int) -> Path:
        shared = {"xml": HOPPER, "task": "forward", "total_timesteps": total_timesteps, "policy_kwargs": net}
        others = {"algo": "sac", "sac": sac, "keep_replay_buffer": True}
        return write_experiment(tmp_path / folder, {"name": "ppo", **shared}, {"name": "sac", **shared, **others})

    def job(folder: str, name: str) -> JobPaths:
        return RunPaths(tmp_path / folder / "run").job(f"{name}-s0")

    finish(experiment("at once", 4000))
    finish(experiment("extended", 600))
    jobs = experiment("extended", 4000)
    new = {name: job("extended", name).checkpoints for name in ("ppo", "sac")}
    with Run(jobs, "--run-dir", "run", "--on-change=extend", cwd=jobs.parent) as run:
        wait_until(
            lambda: any(int(path.stem[-12:]) > 1000 for each in new.values() for path in each.glob("*.pt")), "a new one"
        )
        run.signal(signal.SIGKILL)
    finish(jobs)
    attempts = [row["attempts"] for row in commands.summary(jobs.parent / "run").values()]
    assert sum(attempts) > 4, "an attempt of the extension was killed"
    for name in new:
        mine, theirs = job("extended", name), job("at once", name)
        assert worker.same_bits(worker.parameters(mine.model), worker.parameters(theirs.model)), name
        assert worker.normalization(mine.vecnormalize) == worker.normalization(theirs.vecnormalize), name
