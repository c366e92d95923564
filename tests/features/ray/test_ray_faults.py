"""Whole runs on a real Ray cluster when something dies or fills up: nothing is lost, and no process
is orphaned."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from command_helpers import Run, carriers, give, summary, token_of, wait_until, write_experiment
from executor_helpers import await_gone
from ray_helpers import (
    Cluster,
    checkpoints,
    has_progressed,
    last_attempt,
    options,
    until_resumed,
)
from run_helpers import LONG, SHORT, weights

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

GONE_WITHIN_S = 10.0
"""Documented limit for the end of all trainings after the death of their driver."""

ENDING = {**SHORT, "name": "ending", "total_timesteps": 32_000, "checkpoint_every": 3_200}
"""Ends by itself, long after its first checkpoint has been received."""
LARGE = {**SHORT, "name": "large", "policy_kwargs": {"net_arch": [256, 256]}}
"""Its checkpoints have 1.6 MiB each."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The weights of both jobs when trained on this machine without Ray."""
    cwd = tmp_path_factory.mktemp("undisturbed")
    jobs = write_experiment(cwd, ENDING, LARGE)
    assert give("run", jobs, "--run-dir", "local", cwd=cwd).returncode == 0
    return weights(cwd / "local")


# -- the user, or the driver


def test_after_a_stop_and_after_the_death_of_the_driver_the_run_resumes(
    tmp_path: Path, ray_cluster: Cluster
) -> None:
    """A stop lets every node checkpoint. No training outlives a driver that is killed."""
    names = ["long-s0", "long-s1"]
    jobs = write_experiment(tmp_path, {**LONG, "seeds": [0, 1]})
    run_dir = tmp_path / "run"
    with Run(jobs, *options(ray_cluster, "run", f"file://{tmp_path}/between"), cwd=tmp_path) as run:
        assert len({run.until("launched")["node"] for _ in names}) == 2
        wait_until(lambda: has_progressed(run_dir, dict.fromkeys(names, 512)), "progress")
        run.signal(signal.SIGINT)
        assert run.end() == 130
    assert [event["event"] for event in run.events].count("paused") == 2
    stopped = {name: row["env_steps"] for name, row in summary(run_dir).items()}

    with Run(jobs, *options(ray_cluster, "run", "stream"), cwd=tmp_path) as run:
        pids = [run.until("launched")["pid"] for _ in names]
        for name in names:
            until_resumed(run_dir, name, 1, stopped[name])
        wait_until(
            lambda: max(checkpoints(run_dir, "long-s0")) > stopped["long-s0"],
            "a checkpoint to be received",
        )
        tokens = [token_of(pid) for pid in pids]
        assert {pid for token in tokens for pid in carriers(token)} >= {*pids}
        run.kill_supervisor()
        wait_until(
            lambda: not any(map(carriers, tokens)), "no process of any attempt", GONE_WITHIN_S
        )
    saved, before = max(checkpoints(run_dir, "long-s0")), summary(run_dir)["long-s0"]["env_steps"]

    with Run(jobs, *options(ray_cluster, "run", "stream"), cwd=tmp_path) as again:
        again.until("launched", "long-s0")
        until_resumed(run_dir, "long-s0", 2, saved)
        wait_until(lambda: summary(run_dir)["long-s0"]["env_steps"] > before, "progress")
        again.signal(signal.SIGINT)
        assert again.end() == 130
    assert last_attempt(run_dir, "long-s0")["resumed_from"] == saved


# -- the cluster


@pytest.mark.parametrize(
    "kill", [Cluster.kill, Cluster.kill_raylet], ids=["the machine", "its raylet alone"]
)
def test_a_job_whose_node_dies_resumes_elsewhere_from_the_received_checkpoint(
    tmp_path: Path, ray_cluster: Cluster, undisturbed: dict[str, str], kill: Any
) -> None:
    jobs = write_experiment(tmp_path, ENDING)
    run_dir = tmp_path / "stream"
    with (
        ray_cluster.further(num_cpus=8) as most_cores,
        Run(jobs, *options(ray_cluster, "stream"), cwd=tmp_path) as run,
    ):
        first = run.until("launched")
        assert first["node"] == ray_cluster.name(most_cores)
        wait_until(lambda: checkpoints(run_dir, "ending-s0"), "a checkpoint to be received")
        kill(ray_cluster, most_cores)
        await_gone([first["pid"]])
        assert run.end() == 0
    row = summary(run_dir)["ending-s0"]
    assert row["attempts"] == 2, "nothing more was sent to the dead node"
    assert row["node"] != first["node"]
    assert last_attempt(run_dir, "ending-s0")["resumed_from"] >= 3_200
    assert row["weights_sha256"] == undisturbed["ending-s0"]


def test_a_job_that_fills_the_disk_of_its_node_resumes_elsewhere(
    tmp_path: Path, ray_cluster: Cluster, undisturbed: dict[str, str], small_disk: Path
) -> None:
    """The disk has room for one checkpoint."""
    jobs = write_experiment(tmp_path, LARGE)
    with (
        ray_cluster.further(num_cpus=8, temporary=small_disk) as full,
        Run(jobs, *options(ray_cluster, "stream"), cwd=tmp_path) as run,
    ):
        assert run.end() == 0, run.stderr
        name = ray_cluster.name(full)
    nodes = [event["node"] for event in run.events if event["event"] == "launched"]
    assert nodes[0] == name
    assert len(nodes) == 2
    assert nodes[1] != name
    messages = [
        event["message"] for event in run.events if event["event"] in ("warning", "retrying")
    ]
    assert f"{name} is no longer used: its disk is full" in messages
    assert any(f"no space left on the disk of {name}" in message for message in messages)
    assert last_attempt(tmp_path / "stream", "large-s0")["resumed_from"] == 128, (
        "its checkpoint had been received"
    )
    assert weights(tmp_path / "stream")["large-s0"] == undisturbed["large-s0"]
