"""The command on a real Slurm."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from command_helpers import REPOSITORY, TINY, Run, give, summary, wait_until, write_experiment
from run_helpers import LONG, weights
from slurm_cluster import SlurmCluster, until

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

SLURM = '[slurm]\narray = 2\ncpus_per_task = 1\nmem = "6 GiB"\n'
"""A node has room for one pilot."""


def test_the_smoke_experiment_on_two_nodes_has_the_same_weights_as_on_one_machine(
    tmp_path: Path, slurm_cluster: SlurmCluster
) -> None:
    text = (REPOSITORY / "jobs/smoke.toml").read_text().replace("../mjcf", str(REPOSITORY / "mjcf"))
    jobs = tmp_path / "smoke.toml"
    jobs.write_text(text.replace("[defaults]", f"{SLURM}[defaults]", 1))
    with Run(jobs, "--run-dir", "slurm", "--executor", "slurm", cwd=tmp_path) as run:
        nodes = {run.until("launched")["node"] for _ in range(2)}
        assert run.end() == 0, run.stderr
    assert nodes == {"node0", "node1"}
    assert give("run", jobs, "--run-dir", "local", cwd=tmp_path).returncode == 0
    assert weights(tmp_path / "slurm") == weights(tmp_path / "local")
    until(lambda: not slurm_cluster.queue())


def test_a_killed_supervisor_takes_its_pilots_over_and_stop_leaves_nothing_queued(
    tmp_path: Path, slurm_cluster: SlurmCluster
) -> None:
    jobs = write_experiment(tmp_path, LONG, defaults=f"{TINY}{SLURM}")
    command = (jobs, "--run-dir", "run", "--executor", "slurm")
    with Run(*command, cwd=tmp_path) as run:
        run.until("launched")
        wait_until(lambda: list((tmp_path / "run/jobs").glob("*/checkpoints/*.pt")), "a checkpoint")
        run.signal(signal.SIGKILL)
    tasks = slurm_cluster.queue().keys()
    with Run(*command, cwd=tmp_path) as run:
        run.until("launched")
        assert slurm_cluster.queue().keys() == tasks
        assert give("stop", "run", cwd=tmp_path).returncode == 0
        assert run.end() == 130, run.stderr
    (row,) = summary(tmp_path / "run").values()
    assert (row["state"], row["attempts"], row["env_steps"] > 0) == ("PENDING", 2, True)
    until(lambda: not slurm_cluster.queue())
