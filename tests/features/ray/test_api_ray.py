"""The API with ``executor``: the options of the command, with the same names and messages."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import command_helpers as commands
import pytest
from command_helpers import HOPPER, odd, write_experiment
from ray_helpers import Cluster

pytestmark = pytest.mark.nightly

PROGRAM = """
import json, os, sys
import orchestrator
over = {"executor": "ray", "ray_address": sys.argv[1], "storage": "stream"}
short = {"total_timesteps": 256, "n_envs": 2, "eval_episodes": 0, "ppo": {"n_steps": 64, "batch_size": 64}}
before = dict(os.environ)
far = orchestrator.run("jobs.toml", run_dir="far", **over)
trained = orchestrator.train([sys.argv[2]], run_dir="trained", **over, **short)
near = orchestrator.run("jobs.toml", run_dir="near")
print(json.dumps({
    "ok": [far.ok, near.ok, *(one.ok for one in trained)],
    "models": [str(one.model) for one in (*far.results, *trained)],
    "environment": dict(os.environ) == before,
}))
"""


def test_run_and_train_can_use_a_cluster_in_turn_and_restore_the_environment(
    tmp_path: Path, ray_cluster: Cluster
) -> None:
    write_experiment(tmp_path, odd("a", "nothing"))
    command = [sys.executable, "-W", "error", "-c", PROGRAM, ray_cluster.address, HOPPER]
    done = commands.finish(command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["ok"] == [True] * 3
    assert result["environment"]
    assert all(Path(model).is_file() for model in result["models"])
    nodes = [
        row["node"]
        for name in ("far", "trained")
        for row in commands.summary(tmp_path / name).values()
    ]
    assert len(nodes) == 2
    assert all(nodes)
    assert {row["weights_sha256"] for row in commands.summary(tmp_path / "far").values()} == {
        row["weights_sha256"] for row in commands.summary(tmp_path / "near").values()
    }
