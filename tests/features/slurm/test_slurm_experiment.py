"""The command on a real Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_helpers import REPOSITORY, Run, give
from run_helpers import weights
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
