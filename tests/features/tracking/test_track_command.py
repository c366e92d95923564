"""Trackers of a run: beside it, after a kill, and after its end."""

from __future__ import annotations

import signal
from pathlib import Path

import command_helpers as commands
import pytest
from command_helpers import HOPPER, Experiment, invoke, succeed, wait_until
from tracker_helpers import needs

from orchestrator.analysis import run_reader
from orchestrator.core.paths import RunPaths
from orchestrator.features.tracking import files

HEAD = "track = { tensorboard = true }"


def steps(paths: RunPaths, job_id: str) -> list[int]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(
        str(files.tensorboard(paths.root) / job_id), size_guidance={"scalars": 0}
    ).Reload()
    return [event.step for event in read.Scalars("time/total_timesteps")]


def expected(paths: RunPaths, job_id: str) -> list[int]:
    return [int(row.env_steps or 0) for row in run_reader.iterations(paths.job(job_id).timings_csv)]


def test_a_finished_experiment_is_sent_by_another_run_and_nothing_twice(
    finished: Experiment,
) -> None:
    needs("tensorboard")
    paths = RunPaths(finished.run_dir)
    finished.jobs.write_text(f"{HEAD}\n{finished.jobs.read_text()}")
    for _ in range(2):
        succeed("run", finished.jobs, "--run-dir", finished.run_dir, cwd=finished.cwd)
    for job_id in ("hopper-s0", "balancer-s0"):
        assert steps(paths, job_id) == expected(paths, job_id)


@pytest.mark.nightly
def test_a_run_that_is_killed_and_resumed_is_one_curve_and_its_weights_are_those_without_trackers(
    tmp_path: Path,
) -> None:
    needs("tensorboard")
    job = {"name": "hopper", "xml": HOPPER, "total_timesteps": 6144, "checkpoint_every": 1024}
    jobs = commands.write_experiment(tmp_path, job)
    assert invoke("run", jobs, "--run-dir", "plain", cwd=tmp_path).returncode == 0
    commands.write_experiment(tmp_path, job, head=HEAD)
    paths = RunPaths(tmp_path / "run")
    with commands.Run(jobs, "--run-dir", "run", cwd=tmp_path) as run:
        wait_until(
            lambda: any(paths.job("hopper-s0").checkpoints.glob("*.pt")), "there is a checkpoint"
        )
        run.popen.send_signal(signal.SIGKILL)
        run.popen.wait()
    with commands.Run(jobs, "--run-dir", "run", cwd=tmp_path) as run:
        assert run.end() == 0, run.stderr
    assert steps(paths, "hopper-s0") == expected(paths, "hopper-s0")
    weights = [
        commands.summary(tmp_path / name)["hopper-s0"]["weights_sha256"]
        for name in ("plain", "run")
    ]
    assert weights[0] == weights[1]


@pytest.mark.nightly
def test_a_tracker_that_is_away_is_a_warning_and_the_experiment_succeeds(tmp_path: Path) -> None:
    needs("mlflow")
    needs("tensorboard")
    head = 'track = { mlflow = { uri = "http://127.0.0.1:9" }, tensorboard = true }'
    jobs = commands.write_experiment(tmp_path, {"name": "hopper", "xml": HOPPER}, head=head)
    with commands.Run(jobs, "--run-dir", "run", cwd=tmp_path) as run:
        assert run.end() == 0, run.stderr
    messages = [event["message"] for event in run.events if event["event"] == "warning"]
    assert sum("mlflow" in message and "tried again" in message for message in messages) == 1
    (missing,) = [message for message in messages if "may not have everything" in message]
    assert "mlflow" in missing
    assert "tensorboard" not in missing
    assert steps(RunPaths(tmp_path / "run"), "hopper-s0") == expected(
        RunPaths(tmp_path / "run"), "hopper-s0"
    )
