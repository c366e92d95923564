"""Videos and previews reach each tracker, and its own reader shows them."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tracker_helpers import JOB, Rows, end, needs, send, tracked_run, write_progress

from orchestrator.core.files.video_file import as_video
from orchestrator.core.paths import RunPaths
from orchestrator.features.tracking import files

SIZE, PICTURES = (64, 48), 20


@pytest.fixture
def paths(tmp_path: Path) -> Iterator[RunPaths]:
    """A run directory whose job has ended, with a video of two seconds and a preview."""
    paths = tracked_run(tmp_path / "run")
    write_progress(paths, [100, 200])
    job = paths.job(JOB)
    bars = [Image.new("RGB", SIZE, "navy") for _ in range(PICTURES)]
    for number, bar in enumerate(bars):
        bar.paste("orange", (2 * number, 8, 2 * number + 16, 40))
    job.video.write_bytes(as_video(bars, 10))
    Image.new("RGB", SIZE, (9, 8, 7)).save(job.preview)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the packages
        yield paths


def send_all(paths: RunPaths, backend: str, **options: Any) -> None:
    needs(backend)
    rows = Rows()
    end(paths, rows)
    assert send(paths, rows, backend, is_last=True, **options)


def images(paths: RunPaths, tag: str) -> list[bytes]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(
        str(files.tensorboard(paths.root) / JOB), size_guidance={"images": 0}
    ).Reload()
    return (
        [event.encoded_image_string for event in read.Images(tag)]
        if tag in read.Tags()["images"]
        else []
    )


def test_tensorboard_shows_the_video_as_a_moving_picture(paths: RunPaths) -> None:
    send_all(paths, "tensorboard")
    [content] = images(paths, "video")
    picture = Image.open(io.BytesIO(content))
    assert (picture.format, picture.size, getattr(picture, "n_frames", 1)) == (
        "GIF",
        SIZE,
        PICTURES,
    )


@pytest.mark.nightly
def test_mlflow_gives_video_and_preview_back(paths: RunPaths, tmp_path: Path) -> None:
    send_all(paths, "mlflow")
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{paths.root / 'mlflow.db'}")
    [run] = client.search_runs([client.get_experiment_by_name("robots").experiment_id])
    for path in (paths.job(JOB).video, paths.job(JOB).preview, paths.job(JOB).eval):
        copy = client.download_artifacts(run.info.run_id, path.name, str(tmp_path))
        assert Path(copy).read_bytes() == path.read_bytes()


@pytest.mark.nightly
def test_wandb_reads_its_log_back_with_points_video_and_preview(paths: RunPaths) -> None:
    send_all(paths, "wandb", mode="offline")
    from orchestrator.features.tracking import wandb_tracker

    [log] = paths.root.glob("wandb/offline-run-*/*.wandb")
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(log)]
    printed = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=paths.root
    ).stdout
    records = [json.loads(line) for line in printed.splitlines()]
    kinds = [record["type"] for record in records]
    assert kinds == [record.WhichOneof("record_type") for record in wandb_tracker.records(log)]
    history = [record["history"]["item"] for record in records if record["type"] == "history"]
    assert (
        [item["_step"] for item in history]
        == list(wandb_tracker.logged_steps(log))
        == [100, 200, 201]
    )
    assert [item.get("rollout/ep_rew_mean") for item in history] == [None, 400, None]
    for name, path in (("video", paths.job(JOB).video), ("preview", paths.job(JOB).preview)):
        assert (
            log.parent / "files" / history[-1][f"{name}.path"]
        ).read_bytes() == path.read_bytes()
