"""What commands say and do after a supervisor was killed whose pilots train in a real Slurm."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from command_helpers import TINY, Run, invoke, summary, wait_until, write_experiment
from run_helpers import LONG
from slurm_cluster import SlurmCluster

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]


SLURM = '[slurm]\narray = 2\ncpus_per_task = 1\nmem = "6 GiB"\n'
"""A node has room for one pilot."""


def test_after_a_kill_commands_name_the_batch_jobs_the_run_directory_takes_them_over_and_they_complete(
    tmp_path: Path, slurm_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    jobs = write_experiment(
        tmp_path, {**LONG, "total_timesteps": 12_000, "seeds": [0, 1]}, defaults=f"{TINY}{SLURM}"
    )
    with Run(jobs, "--run-dir", "run", "--executor", "slurm", cwd=tmp_path) as run:
        for _ in range(2):
            run.until("launched")
        wait_until(
            lambda: len(list((tmp_path / "run/jobs").glob("*/checkpoints/*.pt"))) >= 2,
            "checkpoints",
        )
        run.kill_supervisor()
    tasks = sorted(slurm_cluster.queue())
    left = f"atch jobs {', '.join(tasks)} may still train"
    transcript = [f"$ squeue: {slurm_cluster.queue()}"]
    for command in (
        ["status", "run"],
        ["list"],
        ["wait", "run"],
        ["clean", "run"],
        ["stop", "run", "long-s0"],
    ):
        done = invoke(*command, cwd=tmp_path)
        transcript.append(
            f"$ {' '.join(command)}  (exit code {done.returncode})\n{done.stdout}{done.stderr}"
        )
        assert left in done.stdout + done.stderr, transcript[-1]
    refused = invoke("run", "run", "--executor", "local", cwd=tmp_path)
    transcript.append(
        f"$ run run --executor local  (exit code {refused.returncode})\n{refused.stderr}"
    )
    assert refused.returncode == 2
    assert left in refused.stderr
    assert sorted(slurm_cluster.queue()) == tasks
    with Run("run", cwd=tmp_path) as run:
        assert sorted(run.until("launched")["node"] for _ in range(2)) == ["node0", "node1"]
        assert sorted(slurm_cluster.queue()) == tasks, "the same pilots"
        assert run.end() == 0, run.stderr
    transcript += ["$ run run", *(f"{event['event']}: {event['message']}" for event in run.events)]
    assert {row["state"] for row in summary(tmp_path / "run").values()} == {"SUCCEEDED"}
    transcript.append(f"$ squeue: {slurm_cluster.queue()}")
    assert not slurm_cluster.queue()
    for task in tasks:
        shown = slurm_cluster.run("scontrol", "show", "job", task).stdout
        transcript.append(f"$ scontrol show job {task}: {shown.split('JobState=')[1].split()[0]}")
        assert "JobState=COMPLETED" in shown
        assert "ExitCode=0:0" in shown
    if path := os.environ.get("SLURM_TRANSCRIPT"):
        Path(path).write_text("\n".join(transcript))
