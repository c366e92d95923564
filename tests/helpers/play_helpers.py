"""Play policies, and look at the pictures that are made."""

from __future__ import annotations

import contextlib
import os
import subprocess
from fractions import Fraction
from pathlib import Path
from unittest import mock

import av
import numpy as np
import psutil
from command_helpers import Experiment, invoke
from PIL import Image

from orchestrator.core.paths import JobPaths

NO_DISPLAY = {"DISPLAY": "", "WAYLAND_DISPLAY": ""}


def play_here(
    experiment: Experiment, *arguments: str | Path, **added: str
) -> subprocess.CompletedProcess[str]:
    """The command in this process; only the player is one of its own."""
    with mock.patch.dict(os.environ, NO_DISPLAY | added):
        return invoke("play", experiment.run_dir, *arguments, cwd=experiment.cwd)


def job_dir(experiment: Experiment, job_id: str) -> JobPaths:
    return JobPaths(experiment.run_dir / "jobs" / job_id)


def frames(video: Path) -> tuple[list[np.ndarray], Fraction]:
    """Every picture of a video, decoded, and how many are shown a second."""
    with av.open(video) as container:
        [stream] = container.streams
        assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")
        rate = stream.average_rate
        assert rate is not None
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)], rate


def size(png: Path) -> tuple[int, int]:
    with Image.open(png) as image:
        return image.size


def players_of(pid: int) -> list[int]:
    """Processes below ``pid`` that play a policy."""
    players = []
    for child in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "orchestrator.worker.rendering.play" in child.cmdline():
                players.append(child.pid)
    return players
