"""What `run` says of a disk with little space, and what SIGUSR1 and ``--until`` do to it."""

from __future__ import annotations

import signal
from pathlib import Path

import command_helpers as commands
from command_helpers import Run, odd, stubbed, write_experiment


def test_on_a_small_disk_run_says_what_it_waits_for_until_it_is_stopped(
    small_disk: Path, tmp_path: Path
) -> None:
    jobs = write_experiment(tmp_path, odd("one", "nothing", resources={"min_free_disk": "1 GiB"}))
    (small_disk / "go-one-s0").touch()  # so that it would end if it was launched
    with Run(jobs, "--run-dir", small_disk / "run", cwd=tmp_path, typed=stubbed) as run:
        waiting = run.until("waiting")
        assert waiting["asked_mib"] == 1024
        assert "resources.min_free_disk" in waiting["message"]
        run.signal(signal.SIGINT)
        assert run.end() == 130
    assert "launched" not in {event["event"] for event in run.events}
    assert commands.summary(small_disk / "run")["one-s0"]["state"] == "PENDING"


def test_sigusr1_asks_the_running_jobs_for_checkpoints_and_ends_nothing(tmp_path: Path) -> None:
    jobs = write_experiment(tmp_path, odd("one", "nothing"))
    with Run(jobs, "--run-dir", "run", cwd=tmp_path, typed=stubbed) as run:
        run.until("launched")
        run.signal(signal.SIGUSR1)
        assert run.until("checkpoint")["running"] == 1
        (tmp_path / "go-one-s0").touch()
        assert run.end() == 0
    assert [event["event"] for event in run.events][-2:] == ["succeeded", "ended"]
