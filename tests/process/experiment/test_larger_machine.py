"""A run directory of a small machine that goes on on a larger one."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import command_helpers as commands
import pytest


@pytest.mark.slow
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
        assert rows["large-s0"]["cause"] == "launch-failed"
    here = commands.give("run", "run", cwd=tmp_path)
    assert here.returncode == 0, here.stderr
    rows = commands.summary(tmp_path / "run")
    assert [row["state"] for row in rows.values()] == ["SUCCEEDED", "SUCCEEDED"]
    assert rows["small-s0"]["attempts"] == 1
