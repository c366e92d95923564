"""`pause`, `resume`, `set` and `reload` act on an experiment while it runs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import command_helpers as commands
from command_helpers import environment, invoke, odd, stubbed, wait_until, write_experiment


def run(folder: Path, *options: str) -> subprocess.Popen[str]:
    """A run whose workers train nothing and end when they are told to."""
    return subprocess.Popen(
        stubbed("run", "jobs.toml", "--run-dir", "run", *options),
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def started(folder: Path, job_id: str) -> Path:
    """Waits until a worker of the job has started."""
    path = folder / "run/jobs" / job_id / "started"
    wait_until(path.exists, f"{job_id} runs")
    return path


def states(folder: Path) -> dict[str, str]:
    return {job_id: row["state"] for job_id, row in commands.summary(folder / "run").items()}


def test_a_run_ends_when_only_paused_jobs_are_left_and_says_how_they_continue(tmp_path: Path) -> None:
    write_experiment(tmp_path, odd("one", "wait"), odd("two", "wait"))
    (tmp_path / "go-one-s0").touch()
    with run(tmp_path, "--max-parallel", "1") as first:
        started(tmp_path, "two-s0").unlink()
        assert "asked its supervisor to pause 1 job (two-s0)" in invoke("pause", "run", "two", cwd=tmp_path).stdout
        out = first.communicate(timeout=commands.PATIENCE_S)[0]
    assert first.returncode == 130, out
    assert "1 job is paused (two-s0)" in out
    assert "`resume run`" in out
    assert states(tmp_path) == {"one-s0": "SUCCEEDED", "two-s0": "PAUSED"}
    assert "PAUSED" in invoke("status", "run", cwd=tmp_path).stdout

    (tmp_path / "go-two-s0").touch()
    with run(tmp_path) as again:
        again.communicate(timeout=commands.PATIENCE_S)
    assert again.returncode == 130, "it stays paused"
    assert not (tmp_path / "run/jobs/two-s0/started").exists()
    assert "1 job (two-s0)" in invoke("resume", "run", cwd=tmp_path).stdout
    with run(tmp_path) as last:
        last.communicate(timeout=commands.PATIENCE_S)
    assert last.returncode == 0
    assert states(tmp_path) == {"one-s0": "SUCCEEDED", "two-s0": "SUCCEEDED"}
