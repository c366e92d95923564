"""`pause`, `resume`, `set` and `reload` act on an experiment while it runs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import command_helpers as commands
import pytest
from command_helpers import invoke, odd, start, stubbed, wait_until, write_experiment

from orchestrator.ledger import Ledger
from orchestrator.server.ledger import wanted


@contextlib.contextmanager
def run(folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A run whose workers train nothing and end when they are told to; a test that fails kills
    it."""
    command = stubbed("run", "jobs.toml", "--run-dir", "run", *options)
    with start(command, cwd=folder, stderr=subprocess.STDOUT) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def started(folder: Path, job_id: str) -> Path:
    """Waits until a worker of the job has started."""
    path = folder / "run/jobs" / job_id / "started"
    wait_until(path.exists, f"{job_id} runs")
    return path


def states(folder: Path) -> dict[str, str]:
    return {job_id: row["state"] for job_id, row in commands.summary(folder / "run").items()}


@pytest.mark.nightly
def test_a_run_ends_when_only_paused_jobs_are_left_and_says_how_they_continue(
    tmp_path: Path,
) -> None:
    write_experiment(tmp_path, odd("one", "wait"), odd("two", "wait"))
    (tmp_path / "go-one-s0").touch()
    with run(tmp_path, "--max-parallel", "1") as first:
        started(tmp_path, "two-s0").unlink()
        assert (
            "asked its supervisor to pause 1 job (two-s0)"
            in invoke("pause", "run", "two", cwd=tmp_path).stdout
        )
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


def test_reload_takes_new_jobs_and_refuses_changed_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.examine_nothing(monkeypatch)
    one, two = odd("one", "wait"), odd("two", "wait")
    jobs = write_experiment(tmp_path, one)
    with run(tmp_path, "--max-parallel", "2", "--set", "n_envs=3") as first:
        started(tmp_path, "one-s0")
        before = jobs.read_bytes()
        assert "no new jobs" in invoke("reload", "run", cwd=tmp_path).stdout

        changes = {
            "total_timesteps": 77,
            "retry": {"max_retries": 9},
            "resources": {"cores": 2, "threads": 1},
        }
        write_experiment(tmp_path, {**one, **changes}, two)
        refused = invoke("reload", "run", cwd=tmp_path)
        assert refused.returncode == 2
        for text in (
            "1 job that runs is",
            "one-s0",
            "total_timesteps: 512 → 77",
        ):
            assert text in refused.stderr
        write_experiment(tmp_path, one, {"name": "wrong", "entry_point": 5})
        assert invoke("reload", "run", cwd=tmp_path).returncode == 2
        assert (tmp_path / "run/experiment.toml").read_bytes() == before
        assert sorted(path.name for path in (tmp_path / "run/jobs").iterdir()) == ["one-s0"]

        write_experiment(tmp_path, two, odd("three", "wait"))
        done = invoke("reload", "run", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "2 new jobs (two-s0, three-s0)" in done.stdout
        assert "no longer declared, and left as they are: one-s0" in done.stdout
        assert (tmp_path / "run/experiment.toml").read_bytes() == jobs.read_bytes()
        started(tmp_path, "two-s0")
        for name in ("one", "two", "three"):
            (tmp_path / f"go-{name}-s0").touch()
        out = first.communicate(timeout=commands.PATIENCE_S)[0]
    assert first.returncode == 0, out
    assert states(tmp_path) == dict.fromkeys(["one-s0", "two-s0", "three-s0"], "SUCCEEDED")
    assert "`run` takes the new jobs" in invoke("reload", "run", cwd=tmp_path).stdout


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("command", "noted", "state", "code"),
    [("pause", "pause", "PAUSED", 130), ("stop", "cancel", "CANCELLED", 1)],
)
def test_a_job_is_paused_or_cancelled_although_its_supervisor_is_killed_before_the_worker_has_exited(
    command: str, noted: str, state: str, code: int, tmp_path: Path
) -> None:
    write_experiment(tmp_path, odd("one", "wait"))
    with run(tmp_path) as first:
        started(tmp_path, "one-s0")
        ledger = Ledger.open(tmp_path / "run/ledger.sqlite3", read_only=True)
        (row,) = wait_until(
            lambda: [row for row in ledger.summary() if row["pid"]], "it is recorded that it runs"
        )
        os.kill(row["pid"], signal.SIGSTOP)  # it does not hear that it is to exit
        invoke(command, "run", "one", cwd=tmp_path)
        wait_until(lambda: wanted(ledger) == {"one-s0": noted}, "the supervisor has noted it")
        first.kill()
        assert ledger.summary()[0]["state"] == "RUNNING"
        ledger.abandon()
    with run(tmp_path) as again:
        out = again.communicate(timeout=commands.PATIENCE_S)[0]
    assert again.returncode == code, out
    assert states(tmp_path) == {"one-s0": state}
    assert sorted(path.name for path in (tmp_path / "run/jobs/one-s0/attempts").iterdir()) == ["0"]
