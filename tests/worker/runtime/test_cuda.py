"""How a worker is set up for a GPU, with torch's functions of CUDA replaced: no GPU is needed."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.processes.environment_variables import GPU_SHARE_VARIABLE
from orchestrator.worker.runtime import cuda, failures

GPU = torch.device("cuda")
TOTAL_MIB = 16384


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What was set, by the name of torch's function."""
    calls: dict[str, Any] = {}
    monkeypatch.setattr(
        torch, "set_deterministic_debug_mode", lambda mode: calls.update(deterministic=mode)
    )
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    monkeypatch.setitem(os.environ, "CUBLAS_WORKSPACE_CONFIG", ":16:8")
    answers = {
        "is_available": lambda: True,
        "get_device_properties": lambda device: SimpleNamespace(total_memory=TOTAL_MIB << 20),
        "get_device_name": lambda device: "NVIDIA T4",
        "set_per_process_memory_fraction": lambda fraction, device: calls.update(
            fraction=fraction, device=device
        ),
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    return calls


def test_memory_that_is_used_up_is_a_failure_that_names_the_key() -> None:
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
    code, message, _ = failures.classify(error)
    assert code == ExitCode.ERROR
    assert "raise resources.gpus" in message


@pytest.mark.parametrize(("share", "limit_mib"), [("0.5", 8192 - cuda.OF_CUDA_MIB), ("0.1", 819)])
def test_a_share_limits_torchs_memory(
    monkeypatch: pytest.MonkeyPatch, calls: dict[str, Any], share: str, limit_mib: int
) -> None:
    monkeypatch.setenv(GPU_SHARE_VARIABLE, share)
    cuda.prepare_device(GPU)
    assert calls["fraction"] == pytest.approx(limit_mib / TOTAL_MIB)
    assert calls["device"] == torch.device("cuda", 0)


def test_bits_do_not_depend_on_the_users_setting_of_cublas(calls: dict[str, Any]) -> None:
    cuda.prepare_device(GPU)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert not torch.utils.deterministic.fill_uninitialized_memory
