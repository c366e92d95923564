"""A run whose cluster loses its head ends in order; another cluster resumes it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import ray_helpers
from command_helpers import Run, give, wait_until, write_experiment
from executor_helpers import await_gone
from ray_helpers import Cluster, checkpoints, impatient, last_attempt, options, until_resumed
from run_helpers import LONG

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]


def test_a_head_that_dies_ends_the_driver_with_a_message_and_another_cluster_resumes(
    tmp_path: Path, ray_cluster: Cluster
) -> None:
    jobs = write_experiment(tmp_path, {**LONG, "seeds": [0, 1]})
    run_dir = tmp_path / "stream"
    with (
        ray_helpers.cluster() as own,
        Run(jobs, *options(own, "stream"), cwd=tmp_path, typed=impatient) as run,
    ):
        launched = [run.until("launched") for _ in range(2)]
        assert len({event["node"] for event in launched}) == 2
        names = [event["job_id"] for event in launched]
        wait_until(
            lambda: all(checkpoints(run_dir, name) for name in names),
            "a checkpoint of each to be received",
        )
        own.kill_head()
        assert run.end() == 1
        assert "the head of the Ray cluster has not answered" in run.stderr
        await_gone(event["pid"] for event in launched)
        assert "2 pending" in give("status", "stream", cwd=tmp_path).stdout
    saved = {name: max(checkpoints(run_dir, name)) for name in names}
    with Run(jobs, *options(ray_cluster, "stream"), cwd=tmp_path) as again:
        for _ in names:
            again.until("launched")
        for name in names:
            until_resumed(run_dir, name, 1, saved[name])
        again.signal(signal.SIGINT)
        assert again.end() == 130
    assert {name: last_attempt(run_dir, name)["resumed_from"] for name in names} == saved
