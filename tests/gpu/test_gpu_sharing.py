"""Jobs of a run that share one GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import command_helpers as commands
import gpu_helpers
import pytest

from orchestrator.machine.gpu import detect_gpus
from orchestrator.worker.runtime import cuda

pytestmark = pytest.mark.nightly


def meeting(job: str, other: str, device: str) -> dict[str, Any]:
    kwargs = {"job": job, "other": other}
    resources = gpu_helpers.resources(device, 0.5)
    return {
        "name": job,
        "entry_point": "noted:meeting",
        "env_kwargs": kwargs,
        "learner": "sb3",
        "resources": resources,
    }


@pytest.mark.parametrize("device", gpu_helpers.ON_GPU)
def test_two_jobs_train_on_one_gpu_at_the_same_time_each_with_half_of_its_memory(
    tmp_path: Path, device: str
) -> None:
    gpu_helpers.write_module(tmp_path)
    jobs = commands.write_experiment(
        tmp_path, meeting("one", "two", device), meeting("two", "one", device)
    )
    done = commands.give("run", jobs, "--run-dir", "run", "--max-parallel", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    one, two = (json.loads((tmp_path / name).read_text()) for name in ("one", "two"))
    assert one == two
    assert one["device"] == device
    if device == "cuda":
        gpu = detect_gpus()[0]
        assert gpu.memory_mib is not None
        assert one["visible"] == gpu.index
        assert one["fraction"] == pytest.approx(0.5 - cuda.OF_CUDA_MIB / gpu.memory_mib, abs=0.02)
