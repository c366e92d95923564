"""Trainings on a GPU: killed ones resume bit-identically, and none takes more memory than its
share."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import command_helpers as commands
import gpu_helpers
import pytest
import worker_helpers as helpers

from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.processes.environment_variables import GPU_SHARE_VARIABLE
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.worker.runtime import cuda

pytestmark = pytest.mark.nightly

CASES: dict[str, dict[str, Any]] = {
    "ppo": {"entry_point": "noted:numbers", "learner": "sb3", "normalize": True},
    "discrete actions": {"entry_point": "noted:keys"},
    "images": {"entry_point": "noted:images", "policy": "CnnPolicy"},
    **{
        algo: {
            "entry_point": "noted:numbers",
            "algo": algo,
            "hyperparameters": helpers.SMALL[algo],
            "total_timesteps": 1536,
            "checkpoint_every": 512,
        }
        for algo in ("sac", "td3")
    },
}
HOLD = dict.fromkeys(("sac", "td3"), 384)
"""Steps of an environment after the first checkpoint and before the end."""


def made(tmp_path: Path, device: str, **changes: Any) -> WorkerSpec:
    return helpers.spec(
        device=device, search_path=gpu_helpers.write_module(tmp_path / "code"), **changes
    )


@pytest.mark.parametrize("device", gpu_helpers.ON_GPU)
@pytest.mark.parametrize("case", CASES)
def test_a_killed_training_resumes_bit_identically(tmp_path: Path, case: str, device: str) -> None:
    spec = made(tmp_path, device, **CASES[case])
    whole = helpers.job(tmp_path / "whole", spec)
    undisturbed, log = helpers.run(whole)
    assert undisturbed.code == ExitCode.SUCCEEDED, log
    seen = json.loads((whole.attempt(0).root / "seen.json").read_text())
    on_gpu = {"device": "cuda", "deterministic": 1, "workspace": ":4096:8"}
    assert (
        seen.items()
        >= (on_gpu if device == "cuda" else {"device": "cpu", "deterministic": 0}).items()
    )

    paths = helpers.job(tmp_path / "killed", spec)
    with helpers.Worker(paths, HOLD=str(HOLD.get(case, 160))) as worker:
        commands.wait_until(
            lambda: worker.process.poll() is not None or [*paths.checkpoints.glob("*.pt")],
            "checkpoint",
        )
        assert worker.process.poll() is None, worker.log
        os.killpg(worker.process.pid, signal.SIGKILL)
        worker.process.wait()
    resumed, log = helpers.run(paths, 1)
    assert (resumed.code, resumed.resumed_from) == (ExitCode.SUCCEEDED, spec.checkpoint_every), log
    assert resumed.weights_sha256 == undisturbed.weights_sha256
    assert "does not have a deterministic implementation" not in log


@pytest.mark.gpu
def test_a_job_that_needs_more_than_its_share_fails_and_names_the_key(tmp_path: Path) -> None:
    spec = made(
        tmp_path,
        "cuda",
        entry_point="noted:hoard",
        n_envs=1,
        checkpoint_every=None,
        checkpoint_every_s=60.0,
    )
    paths = helpers.job(tmp_path / "job", spec)
    record, log = helpers.run(paths, **{GPU_SHARE_VARIABLE: "0.1"})
    assert record.code == ExitCode.ERROR, log
    assert "resources.gpus = 0.1 allows" in record.message
    held = float((paths.attempt(0).root / "held").read_text())
    assert 0.04 <= held <= 0.1


@pytest.mark.gpu
def test_what_cuda_takes_beside_torchs_memory_is_less_than_what_is_set_aside(
    tmp_path: Path,
) -> None:
    """If this fails, ``OF_CUDA_MIB`` is too small for this GPU, or another program used it at the
    same time."""
    from orchestrator.machine.gpu import detect_gpus

    spec = made(tmp_path, "cuda", **CASES["images"])
    paths = helpers.job(tmp_path / "job", spec)
    gpu = detect_gpus()[0]
    with helpers.Worker(paths, HOLD="160", CUDA_VISIBLE_DEVICES=gpu.index) as worker:
        commands.wait_until(
            lambda: worker.process.poll() is not None or [*paths.checkpoints.glob("*.pt")],
            "checkpoint",
        )
        assert worker.process.poll() is None, worker.log
        now = detect_gpus()[0]
    assert gpu.free_mib is not None
    assert now.free_mib is not None
    taken_mib = gpu.free_mib - now.free_mib
    print(
        f"a worker with CnnPolicy takes {taken_mib} MiB of {gpu.name}, torch's own memory included"
    )
    assert 0 < taken_mib <= cuda.OF_CUDA_MIB + 512
