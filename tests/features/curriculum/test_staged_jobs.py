"""Jobs with stages: real runs of the command."""

from __future__ import annotations

from pathlib import Path

import command_helpers as commands
import pytest
import worker_helpers as helpers
from command_helpers import HOPPER, write_experiment

from orchestrator.core.paths import RunPaths

STAGES = {
    "xml": HOPPER,
    "task": "stand",
    "task_options": {
        "max_episode_steps": 20,
        "push_speed": "stages(0, 0.3, 0.6)",
        "push_period_s": 0.2,
    },
    "curriculum": {"advance": "ep_len_mean > 5", "episodes": 4},
    "randomize": {"push.speed": "uniform(0, linear(0, 0.5))"},
    "policy_kwargs": {"net_arch": [8]},
    "total_timesteps": 8_192,
    "resources": {"start": "fork"},
}


@pytest.mark.nightly
def test_a_job_that_is_killed_in_a_later_stage_among_neighbours_ends_as_alone_and_undisturbed(
    tmp_path: Path,
) -> None:
    write_experiment(
        tmp_path,
        {**STAGES, "name": "a", "seeds": [0, 1]},
        {**STAGES, "name": "b", "algo": "sac", "sac": {"learning_starts": 100, "train_freq": 8}},
    )
    with commands.Run("jobs.toml", "--run-dir", "run", cwd=tmp_path) as run:
        pid = run.until("launched", "a-s0")["pid"]
        stage = run.until("stage", "a-s0")
        assert (stage["stage"], stage["stages"]) == (2, 3)
        commands.kill(pid)
        assert run.end() == 0, run.stderr
    paths, rows = RunPaths(tmp_path / "run"), commands.summary(tmp_path / "run")
    assert {row["stage"] for row in rows.values()} == {3}
    assert rows["a-s0"]["attempts"] > 1
    for job_id, row in rows.items():
        _, record = helpers.train_again(paths.job(job_id), tmp_path / f"alone-{job_id}")
        assert record.weights_sha256 == row["weights_sha256"], job_id
    shown = commands.invoke("status", "run", cwd=tmp_path).stdout
    assert "stage" in shown
    commands.succeed("report", "run", cwd=tmp_path)
