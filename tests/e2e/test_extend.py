"""``run --on-change=extend``, as users type it."""

from __future__ import annotations

from pathlib import Path

import command_helpers as commands
import pytest
import worker_helpers as worker
from command_helpers import HOPPER, Run, invoke, succeed, wait_until, write_experiment

from orchestrator.core.paths import RunPaths


def finish(jobs: Path) -> None:
    succeed("run", jobs, "--run-dir", "run", cwd=jobs.parent)


@pytest.mark.nightly
def test_more_steps_are_refused_and_an_extension_that_is_killed_is_resumed_with_the_same_bits(
    tmp_path: Path,
) -> None:
    sac = {"buffer_size": 3000, "learning_starts": 64, "batch_size": 16, "train_freq": 4}
    net = {"net_arch": [8]}

    def experiment(total_timesteps: int) -> Path:
        shared = {
            "xml": HOPPER,
            "task": "forward",
            "total_timesteps": total_timesteps,
            "policy_kwargs": net,
        }
        others = {"algo": "sac", "sac": sac, "keep_replay_buffer": True}
        return write_experiment(
            tmp_path, {"name": "ppo", **shared}, {"name": "sac", **shared, **others}
        )

    def newest() -> int:
        return max(
            int(path.stem.rpartition("-")[2])
            for path in tmp_path.glob("run/jobs/*/checkpoints/*.pt")
        )

    finish(experiment(600))
    jobs = experiment(3000)
    refused = invoke("run", jobs, "--run-dir", "run", cwd=tmp_path)
    assert refused.returncode == 2
    assert "total_timesteps: 600 → 3000" in refused.stderr
    assert "--on-change=extend" in refused.stderr

    with Run(jobs, "--run-dir", "run", "--on-change=extend", cwd=tmp_path) as run:
        wait_until(lambda: newest() > 1000, "a checkpoint of the extension")
        run.kill_supervisor()
    events = {event["event"]: event for event in reversed(run.events)}
    assert "from 600 to 3,000 env_steps" in events["extended"]["message"]
    assert sorted(events["extended"]["jobs"]) == ["ppo-s0", "sac-s0"]
    assert "ppo-s0 at 640" in events["resumed"]["message"]
    finish(jobs)
    rows = commands.summary(tmp_path / "run")
    assert {row["state"] for row in rows.values()} == {"SUCCEEDED"}
    assert rows["ppo-s0"]["learner"] == "fast"
    assert sum(row["attempts"] for row in rows.values()) > 4, (
        "an attempt of the extension was killed"
    )
    for job_id, row in rows.items():
        assert row["env_steps"] >= 3000
        job = RunPaths(tmp_path / "run").job(job_id)
        _, at_once = worker.train_again(job, tmp_path / job_id, extended_from=())
        assert row["weights_sha256"] == at_once.weights_sha256, job_id
