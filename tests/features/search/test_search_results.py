"""Searches and comparisons at rungs that are stopped and resumed, with real trainings."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Any

import command_helpers as commands
import pytest
from command_helpers import FORKED, HOPPER, TINY, give, wait_until

pytestmark = pytest.mark.nightly


SEARCH = f"""name = "search"
max_parallel = 2
{TINY}
[[jobs]]
name = "hopper"
xml = "{HOPPER}"
task = "forward"
[search]
sampler = "random"
trials = 4
objective = "ep_rew_mean"
[search.space]
"ppo.learning_rate" = {{ low = 1e-4, high = 1e-2, log = true }}
"model.geom.*thigh*.size" = {{ low = 0.8, high = 1.2, multiply = true }}
[search.scheduler]
min_env_steps = 128
factor = 2
"""


def weights(run_dir: Path) -> dict[str, Any]:
    return {job_id: row["weights_sha256"] for job_id, row in commands.summary(run_dir).items()}


def test_a_stopped_search_is_resumed_from_its_run_directory_and_its_best_train_the_same_again(
    tmp_path: Path,
) -> None:
    (tmp_path / "jobs.toml").write_text(SEARCH)
    with commands.Run("jobs.toml", "--run-dir", "run", cwd=tmp_path) as run:
        wait_until(
            lambda: (tmp_path / "run/jobs").exists() and any((tmp_path / "run/jobs").iterdir()),
            "a job is made",
        )
        run.popen.send_signal(signal.SIGINT)
        assert run.popen.wait() == 130
    assert commands.invoke("status", "run", "--exit-code", cwd=tmp_path).returncode == 130
    resumed = give("run", "run", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert commands.invoke("status", "run", "--exit-code", cwd=tmp_path).returncode == 0
    before = weights(tmp_path / "run")
    assert len(before) == 4

    assert commands.invoke("best", "run", "-n", "1", "--to", "copy", cwd=tmp_path).returncode == 0
    assert commands.invoke("check", "copy/jobs.toml", cwd=tmp_path).returncode == 0
    assert give("run", "copy/jobs.toml", "--run-dir", "again", cwd=tmp_path).returncode == 0
    again = weights(tmp_path / "again")
    assert len(again) == 1
    assert again.items() <= before.items()


def test_the_jobs_of_a_matrix_train_as_far_again_and_without_its_scheduler_to_their_end(
    tmp_path: Path,
) -> None:
    job = f'[[jobs]]\nname = "hopper"\nxml = "{HOPPER}"\ntask = "forward"\nmatrix = {{ "ppo.gamma" = [0.9, 0.99] }}\n'
    rungs = "[scheduler]\nmin_env_steps = 128\nfactor = 4\n"
    (tmp_path / "jobs.toml").write_text(f'name = "rungs"\n{rungs}{FORKED}\n{job}')
    assert give("run", "jobs.toml", "--run-dir", "run", cwd=tmp_path).returncode == 0
    before = commands.summary(tmp_path / "run")
    assert sorted(row["state"] for row in before.values()) == ["PAUSED", "SUCCEEDED"]
    (done_before,) = [job_id for job_id, row in before.items() if row["state"] == "SUCCEEDED"]
    shutil.rmtree(tmp_path / "run/jobs" / done_before)
    assert give("run", "jobs.toml", "--run-dir", "run", cwd=tmp_path).returncode == 0
    again = commands.summary(tmp_path / "run")[done_before]
    assert again["weights_sha256"] == before[done_before]["weights_sha256"], (
        "it has not paused at its first rung"
    )
    (tmp_path / "jobs.toml").write_text(f'name = "rungs"\n{FORKED}\n{job}')
    done = give("run", "jobs.toml", "--run-dir", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {row["state"] for row in commands.summary(tmp_path / "run").values()} == {"SUCCEEDED"}
