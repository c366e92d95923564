"""Jobs that start from jobs of the same file: real trainings, killed and resumed."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from pathlib import Path

import command_helpers as commands
import pytest
import worker_helpers as helpers
from command_helpers import HOPPER, wait_until, write_experiment
from kill_helpers import killable

from orchestrator.core.paths import RunPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.server import job_directory
from orchestrator.worker.training import start_policy

STEPS = 6144
STAGE = {
    "xml": HOPPER,
    "task": "forward",
    "policy_kwargs": {"net_arch": [8]},
    "resources": {"start": "fork"},
    "total_timesteps": STEPS,
    "checkpoint_every": 512,
    "retry": {"max_retries": 20},
}
KILLS = 6
DISTURBED = 0.7
"""The part of the training in which kills strike: some must be left, however slow the process that
kills."""


def expected_weights(run: RunPaths, folder: Path) -> dict[str, str | None]:
    """What the jobs have learnt when they are trained here, one after the other and undisturbed."""
    weights = {}
    for job_id in ("a-s0", "b-s0", "c-s0", "d-s0"):
        spec = WorkerSpec.from_json(run.job(job_id).spec.read_text())
        paths = helpers.job(folder / job_id, spec)
        shutil.copytree(run.job(job_id).robot, paths.robot)
        if spec.init_job is not None:
            initial = start_policy.read(folder / spec.init_job)
            assert initial.sha256() == spec.init_sha256
            assert initial.env_steps == spec.init_env_steps
            paths.init.write_bytes(initial.to_bytes())
        record = helpers.train_to_its_end(paths)
        weights[job_id] = record.weights_sha256
    return weights


def trained_steps(run: RunPaths) -> int:
    """env_steps that all jobs together have trained, as far as their checkpoints tell."""
    jobs = [run.job(f"{name}-s0") for name in "abcd"]
    return sum(
        STEPS if job.model.exists() else job_directory.checkpointed_steps(job) for job in jobs
    )


def supervised(jobs: Path) -> subprocess.Popen[str]:
    command = commands.command("run", jobs, "--run-dir", jobs.parent / "run")
    return commands.start(
        command, cwd=jobs.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def killed_and_resumed(jobs: Path, paths: RunPaths) -> int:
    """Kill the worker and the supervisor in turn, at random instants of the training. Returns the
    exit code."""
    dice = random.Random(os.urandom(8))
    run = supervised(jobs)
    try:
        for number in range(KILLS):
            instant = DISTURBED * 4 * STEPS * dice.uniform(number, number + 1) / KILLS
            wait_until(
                lambda instant=instant: trained_steps(paths) >= instant,
                f"{instant:.0f} steps trained",
            )
            time.sleep(dice.uniform(0.0, 0.1))  # not always just after a checkpoint
            assert run.poll() is None, "it strikes while there is something to train"
            if number % 2 and (worker := killable(jobs.parent).get("worker")):
                commands.kill(worker)
            else:
                run.kill()
                run.wait()
                run = supervised(jobs)
        return run.wait(commands.LONG_PATIENCE_S)  # it trains what is left
    finally:
        run.kill()
        run.wait()


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_diamond_killed_anywhere_ends_with_the_weights_of_an_undisturbed_one(
    tmp_path: Path,
) -> None:
    jobs = write_experiment(
        tmp_path,
        {**STAGE, "name": "d", "init": "job:b", "after": ["c"]},
        {**STAGE, "name": "c", "init": "job:a"},
        {**STAGE, "name": "b", "init": "job:a", "total_timesteps": STEPS - 2048},
        {**STAGE, "name": "a"},
    )
    paths = RunPaths(tmp_path / "run")
    assert killed_and_resumed(jobs, paths) == 0
    rows = commands.summary(paths.root)
    assert {job_id: row["weights_sha256"] for job_id, row in rows.items()} == expected_weights(
        paths, tmp_path / "here"
    )
    starts = {job_id: row["started_at"] for job_id, row in rows.items()}
    assert starts["a-s0"] < starts["b-s0"] < starts["d-s0"] > rows["c-s0"]["ended_at"]
    assert sum(row["attempts"] for row in rows.values()) > len(rows)
