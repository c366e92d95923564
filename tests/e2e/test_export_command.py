"""The ``export`` command, and ``play`` with the files that it writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from command_helpers import Experiment, invoke, succeed

from orchestrator.worker.export import numpy_policy


def test_export_writes_the_policy_of_a_finished_job(
    finished_once: Experiment, tmp_path: Path
) -> None:
    to = tmp_path / "new/balancer.npz"
    succeed(
        "export", finished_once.run_dir, "bal", "--to", to, "--checkpoint", "latest", cwd=tmp_path
    )
    policy = numpy_policy.load(to)
    assert policy.metadata["job"] == "balancer-s0"
    assert policy(np.zeros((2, 5)))["ctrl"].shape == (2, 1)
    assert [path.name for path in to.parent.iterdir()] == ["balancer.npz"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("export", "nobody", "--to", "a.npz"), "nobody: no such job; jobs here: "),
        (
            ("export", "hopper", "--to", "hopper.zip"),
            "hopper.zip: expected a name that ends in .onnx, .pt, .npz or .h",
        ),
        (
            ("play", "hopper", "--policy", "a.npz", "--stochastic"),
            "leave out --checkpoint, --stochastic",
        ),
        (("play", "hopper", "--policy", "gone.npz"), "gone.npz cannot be read: FileNotFoundError"),
    ],
)
def test_what_cannot_be_exported_or_played_is_told(
    finished_once: Experiment, arguments: tuple[str, ...], expected: str, tmp_path: Path
) -> None:
    command, *others = arguments
    done = invoke(command, finished_once.run_dir, *others, cwd=tmp_path)
    assert done.returncode == 2
    assert expected in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("opengl")
@pytest.mark.slow
def test_an_exported_policy_is_played_as_the_jobs_own(
    finished_once: Experiment, tmp_path: Path
) -> None:
    run, job = finished_once.run_dir, "balancer-s0"
    assert invoke("export", run, job, "--to", "bal.pt", cwd=tmp_path).returncode == 0
    for more in ((), ("--policy", "bal.pt")):
        succeed(
            "play", run, job, "--video", "--seconds", "0.3", "--output", ".", *more, cwd=tmp_path
        )
    assert (tmp_path / "video-bal-pt.mp4").read_bytes() == (tmp_path / "video.mp4").read_bytes()
