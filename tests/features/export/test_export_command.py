"""The ``export`` command, and ``play`` with the files that it writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from command_helpers import Experiment, invoke, succeed
from play_helpers import frames
from supervisor_helpers import edit_robot, staged_robot, with_robots

from orchestrator.core.paths import JobPaths
from orchestrator.core.robot_hash import hash_of_copy
from orchestrator.experiment import policy_process
from orchestrator.experiment.policy_process import PolicyRequest
from orchestrator.features.export.worker import job_export, numpy_policy
from orchestrator.server import job_directory


def test_export_writes_the_policy_of_a_finished_job(
    finished_once: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def use(job: JobPaths, request: PolicyRequest) -> None:
        assert request.module == job_export.__name__
        asked = [str(job.root), *request.arguments()]
        job_export.export(job_export._parser().parse_args(asked))

    monkeypatch.setattr(policy_process, "use", use)
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
            "hopper.zip: expected a name that ends in .onnx, .npz or .h",
        ),
        (("export", "hopper", "--to", "hopper.h", "--check"), "as .npz"),
        (
            ("play", "hopper", "--policy", "a.npz", "--checkpoint", "latest"),
            "leave out --checkpoint",
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


def test_the_policy_of_an_altered_robot_is_not_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file would have names and limits of another robot."""
    staged = staged_robot(tmp_path / "staged")
    experiment = with_robots(tmp_path / "run", staged, "altered", "intact")
    exported: list[str] = []
    monkeypatch.setattr(policy_process, "use", lambda job, _: exported.append(job.root.name))
    for job in experiment.jobs:
        paths = experiment.paths.job(job.job_id)
        job_directory.prepare(paths, 0, job.spec)
        paths.robot_hash.write_text(hash_of_copy(staged, "hopper.xml") or "")
    edit_robot(experiment.paths.job("altered").robot)
    experiment.ledger.close()
    codes = [
        invoke("export", "run", name, "--to", "a.npz", cwd=tmp_path).returncode
        for name in ("intact", "altered")
    ]
    assert (codes, exported) == ([0, 2], ["intact"])
    refused = invoke("export", "run", "altered", "--to", "a.npz", cwd=tmp_path)
    assert (
        "altered cannot be exported: run/jobs/altered/robot/hopper.xml and its files differ"
        in refused.stderr
    )


@pytest.mark.usefixtures("opengl")
@pytest.mark.nightly
def test_an_exported_policy_is_played_as_the_jobs_own(
    finished_once: Experiment, tmp_path: Path
) -> None:
    run, job = finished_once.run_dir, "balancer-s0"
    assert invoke("export", run, job, "--to", "bal.npz", cwd=tmp_path).returncode == 0
    for more in ((), ("--policy", "bal.npz")):
        succeed(
            "play", run, job, "--video", "--seconds", "0.3", "--output", ".", *more, cwd=tmp_path
        )
    own, exported = (frames(tmp_path / name)[0] for name in ("video.mp4", "video-bal-npz.mp4"))
    np.testing.assert_allclose(own, exported, rtol=0, atol=32)
