"""Jobs that start from jobs of the same file: real trainings, killed and resumed."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import command_helpers as commands
import pytest
import worker_helpers as helpers
from command_helpers import HOPPER, Run, write_experiment

from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.paths import RunPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.worker.training import init_source

STAGE = {"xml": HOPPER, "task": "forward", "policy_kwargs": {"net_arch": [8]}, "resources": {"start": "fork"}}


def expected_weights(run: RunPaths, folder: Path) -> dict[str, str | None]:
    """What the jobs have learnt when they are trained here, one after the other and undisturbed."""
    weights = {}
    for job_id in ("a-s0", "b-s0", "c-s0", "d-s0"):
        spec = WorkerSpec.from_json(run.job(job_id).spec.read_text())
        paths = helpers.job(folder / job_id, spec)
        shutil.copytree(run.job(job_id).robot, paths.robot)
        if spec.init_job is not None:
            initial = init_source.read(folder / spec.init_job)
            assert initial.sha256() == spec.init_sha256
            paths.init.write_bytes(initial.to_bytes())
        record, log = helpers.train_here(paths)
        assert record.code == ExitCode.SUCCEEDED, log
        weights[job_id] = record.weights_sha256
    return weights


@pytest.mark.slow
def test_a_diamond_whose_worker_and_supervisor_are_killed_ends_with_the_weights_of_an_undisturbed_one(
    tmp_path: Path,
) -> None:
    write_experiment(
        tmp_path,
        {**STAGE, "name": "d", "init": "job:b", "after": ["c"]},
        {**STAGE, "name": "c", "init": "job:a"},
        {**STAGE, "name": "b", "init": "job:a", "total_timesteps": 384},
        {**STAGE, "name": "a"},
    )
    with Run("jobs.toml", "--run-dir", "run", cwd=tmp_path) as run:
        commands.kill(run.until("launched", "b-s0")["pid"])
        run.until("succeeded", "b-s0")
        run.signal(signal.SIGKILL)
        run.popen.wait()
    with Run("run", cwd=tmp_path) as resumed:
        assert resumed.end() == 0, resumed.stderr
    paths = RunPaths(tmp_path / "run")
    rows = commands.summary(paths.root)
    assert {job_id: row["weights_sha256"] for job_id, row in rows.items()} == expected_weights(paths, tmp_path / "here")
    starts = {job_id: row["started_at"] for job_id, row in rows.items()}
    assert starts["a-s0"] < starts["b-s0"] < starts["d-s0"] > rows["c-s0"]["ended_at"]
