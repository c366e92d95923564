"""``init`` in job files, as users type it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import command_helpers as commands
import pytest
import worker_helpers as helpers
from command_helpers import HOPPER, invoke, succeed, write_experiment

from orchestrator.core.paths import JobPaths, RunPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.worker.training import start_policy

NET = {"net_arch": [8]}
JOB = {
    "name": "child",
    "xml": HOPPER,
    "task": "forward",
    "policy_kwargs": NET,
    "total_timesteps": 128,
}


@pytest.fixture
def parent(tmp_path: Path) -> JobPaths:
    """A job that another program has trained."""
    (robot := tmp_path / "parent/robot/hopper.xml").parent.mkdir(parents=True)
    shutil.copyfile(HOPPER, robot)
    task = {"task": "forward", "xml": "robot/hopper.xml", "normalize": True, "policy_kwargs": NET}
    paths = helpers.job(tmp_path / "parent", helpers.spec(total_timesteps=128, **task))
    helpers.train_to_its_end(paths)
    return paths


@pytest.mark.nightly
def test_the_policy_is_copied_and_a_changed_one_is_refused_as_any_change(
    parent: JobPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.instant_workers(monkeypatch, tmp_path)
    jobs = write_experiment(tmp_path, {**JOB, "init": "parent"})
    done = succeed("run", jobs, "--run-dir", "run", cwd=tmp_path)
    assert (
        f"child: starts from {parent.root} (model.zip with normalisation): all observations and actions"
        in done.stdout
    )
    child = RunPaths(tmp_path / "run").job("child-s0")
    spec, copy = json.loads(child.spec.read_text()), child.init.read_bytes()
    assert (spec["init"], spec["init_sha256"]) == (
        str(parent.root),
        start_policy.read(parent.root).sha256(),
    )

    shutil.move(parent.root, tmp_path / "moved")
    assert invoke("run", "run", cwd=tmp_path).returncode == 0, "to resume, the source is not needed"

    shutil.move(tmp_path / "moved", parent.root)
    shutil.rmtree(parent.checkpoints)
    helpers.train_here(
        helpers.job(parent.root, WorkerSpec.from_json(json.dumps(parent_spec(parent, seed=4)))), 1
    )
    jobs = write_experiment(tmp_path, {**JOB, "init": "parent", "total_timesteps": 256})
    refused = invoke("run", jobs, "--run-dir", "run", "--on-change=extend", cwd=tmp_path)
    assert refused.returncode == 2
    assert f'init (SHA-256 of the policy): "{spec["init_sha256"]}" → "' in refused.stderr
    assert "no other change" in refused.stderr
    assert child.init.read_bytes() == copy


def parent_spec(parent: JobPaths, **changes: object) -> dict[str, object]:
    return {**json.loads(parent.spec.read_text()), **changes}
