"""What `run` says of a disk with little space, and what SIGUSR1 and ``--until`` do to it."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import command_helpers as commands
import pytest
from command_helpers import Run, invoke, odd, stubbed, write_experiment

from orchestrator.experiment.examination import preflight
from orchestrator.supervisor import disk_admission


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


def test_a_dry_run_warns_of_a_small_disk_and_shows_intervals(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        preflight,
        "examine",
        lambda jobs, **_: {job.job_id: preflight.JobVerdict(problem=None) for job in jobs},
    )
    jobs = write_experiment(
        tmp_path, odd("one", "nothing", resources={"min_free_disk": "1 GiB"}), odd("two", "nothing")
    )
    done = invoke("run", jobs, "--run-dir", small_disk / "run", "--dry-run", "--json", cwd=tmp_path)
    (warning,) = (
        text for text in json.loads(done.stdout)["warnings"] if "resources.min_free_disk" in text
    )
    assert "1,024 MiB" in warning
    done = invoke(
        "run",
        jobs,
        "--run-dir",
        tmp_path / "run",
        "--set",
        "checkpoint_every=90s",
        "--dry-run",
        "--json",
        cwd=tmp_path,
    )
    assert {job["checkpoint_every"] for job in json.loads(done.stdout)["jobs"]} == {"90s"}


def test_the_space_is_that_of_the_nearest_folder_that_exists(small_disk: Path) -> None:
    there = disk_admission.free_mib(small_disk)
    assert there is not None
    assert there <= 3
    assert disk_admission.free_mib(small_disk / "not" / "made") == there


def test_sigusr1_asks_the_running_jobs_for_checkpoints_and_ends_nothing(tmp_path: Path) -> None:
    jobs = write_experiment(tmp_path, odd("one", "nothing"))
    with Run(jobs, "--run-dir", "run", cwd=tmp_path, typed=stubbed) as run:
        run.until("launched")
        run.signal(signal.SIGUSR1)
        assert run.until("checkpoint")["running"] == 1
        (tmp_path / "go-one-s0").touch()
        assert run.end() == 0
    assert [event["event"] for event in run.events][-2:] == ["succeeded", "ended"]


@pytest.mark.parametrize(("until", "message"), [("5s", "--grace"), ("noon", "time of day")])
def test_a_time_that_cannot_be_kept_is_refused(until: str, message: str, tmp_path: Path) -> None:
    jobs = write_experiment(tmp_path, odd("one", "nothing"))
    done = invoke("run", jobs, "--run-dir", "run", "--until", until, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"--until {until}: " in done.stderr
    assert message in done.stderr
    assert not (tmp_path / "run").exists()
