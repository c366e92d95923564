"""A run directory of a small machine that goes on on a larger one."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path

import command_helpers as commands
import pytest


@pytest.mark.nightly
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_a_job_that_was_too_large_is_trained_without_its_job_file(tmp_path: Path) -> None:
    job = {"xml": commands.HOPPER, "eval_episodes": 0, "preview": False}
    jobs = commands.write_experiment(
        tmp_path,
        {"name": "small", **job},
        {"name": "large", **job, "resources": {"memory": "1 GiB", "cores": 2}},
        head='on_invalid = "skip"',
    )
    one_cpu = partial(os.sched_setaffinity, 0, [min(os.sched_getaffinity(0))])
    for command in ([jobs, "--run-dir", "run"], ["run"]):
        there = commands.give("run", *command, cwd=tmp_path, before=one_cpu)
        assert there.returncode == 1
        assert "large: is not trained here: asks for 2 cores" in there.stdout + there.stderr
        rows = commands.summary(tmp_path / "run")
        assert [row["state"] for row in rows.values()] == ["SUCCEEDED", "FAILED"]
        assert rows["large-s0"]["cause"] == "too-large"
    here = commands.give("run", "run", cwd=tmp_path)
    assert here.returncode == 0, here.stderr
    rows = commands.summary(tmp_path / "run")
    assert [row["state"] for row in rows.values()] == ["SUCCEEDED", "SUCCEEDED"]
    assert rows["small-s0"]["attempts"] == 1


@pytest.mark.nightly
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_a_begun_job_that_became_too_large_goes_on_from_its_checkpoint_without_retry(
    tmp_path: Path,
) -> None:
    jobs = commands.write_experiment(
        tmp_path,
        {
            "name": "large",
            "xml": commands.HOPPER,
            "eval_episodes": 0,
            "preview": False,
            "total_timesteps": 20_000,
            "checkpoint_every": 128,
            "resources": {"memory": "1 GiB", "cores": 2},
        },
        head='on_invalid = "skip"',
    )
    run_dir = tmp_path / "run"
    begun = commands.start(commands.command("run", jobs, "--run-dir", "run"), cwd=tmp_path)
    with begun:
        checkpoints = run_dir / "jobs/large-s0/checkpoints"
        commands.wait_until(lambda: list(checkpoints.glob("*.pt")), "a checkpoint")
        begun.send_signal(signal.SIGINT)
        begun.communicate()
    (row,) = commands.summary(run_dir).values()
    assert (row["state"], row["attempts"]) == ("PENDING", 1)

    one_cpu = partial(os.sched_setaffinity, 0, [min(os.sched_getaffinity(0))])
    for _ in range(2):
        there = commands.give("run", "run", cwd=tmp_path, before=one_cpu)
        assert there.returncode == 1
        assert "retry" not in there.stdout + there.stderr
        (row,) = commands.summary(run_dir).values()
        assert (row["state"], row["cause"], row["attempts"]) == ("FAILED", "too-large", 1)

    here = commands.give("run", "run", cwd=tmp_path)
    assert here.returncode == 0, here.stderr
    said = here.stdout + here.stderr
    assert "there is room now for these jobs" in said
    assert "1 resumes from its newest checkpoint" in said
    (row,) = commands.summary(run_dir).values()
    assert (row["state"], row["attempts"]) == ("SUCCEEDED", 2)
