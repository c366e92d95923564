"""The API with ``executor``: the options of the command, with the same names and messages."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import command_helpers as commands
import pytest
from command_helpers import HOPPER, odd, write_experiment
from ray_helpers import Cluster

import orchestrator
from orchestrator.core.text import install_extra

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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"executor": "slurmm"}, 'executor="slurmm": unknown; valid: local, ray'),
        (
            {"executor": "ray", "storage": "cloud"},
            'storage="cloud": unknown; valid: auto, shared, stream, or a URI',
        ),
        (
            {"executor": "ray", "ray_address": "127.0.0.1:1"},
            'ray_address="127.0.0.1:1": no Ray cluster at',
        ),
        (
            {"executor": "ray", "ray_address": "nowhere"},
            "'nowhere' is not an address: expected HOST:PORT",
        ),
    ],
)
def test_errors_are_those_of_the_command_in_the_words_of_python(
    tmp_path: Path, options: dict[str, str], message: str
) -> None:
    if options["executor"] == "ray" and importlib.util.find_spec("ray") is None:
        pytest.skip(f"Ray is an extra: {install_extra('ray')}")
    jobs = write_experiment(tmp_path, odd("a", "nothing"))
    with pytest.raises(orchestrator.UsageError, match=message):
        orchestrator.run(jobs, run_dir=tmp_path / "run", **options)  # type: ignore[arg-type]
    with pytest.raises(orchestrator.UsageError, match=message):
        orchestrator.train([HOPPER], run_dir=tmp_path / "trained", **options)  # type: ignore[arg-type]
