"""A worker on a GPU: the same bits every time, and no more of the GPU's memory than the job's
share.
"""

from __future__ import annotations

import os

import torch

from orchestrator.core.processes.environment_variables import GPU_SHARE_VARIABLE
from orchestrator.worker.runtime.progress import say

MIB = 2**20
WORKSPACE_VARIABLE = "CUBLAS_WORKSPACE_CONFIG"
WORKSPACE = ":4096:8"
"""Without this setting, cuBLAS may add up in another order from call to call (cuBLAS documentation,
"Results reproducibility"). It is read when torch first multiplies matrices."""
OF_CUDA_MIB = 1024
"""Set aside in a share for what CUDA itself takes in each process: its context and its libraries,
which torch does not count."""


def prepare_device(device: torch.device) -> None:
    """Set this process up for a training on ``device``. Does nothing on a CPU.

    Operations of which torch has no deterministic form are used nevertheless; torch warns of each
    in the log.

    :raises RuntimeError: PyTorch sees no GPU; stable-baselines3 would silently use the CPU.
    """
    if device.type == "cpu":
        return
    if not torch.cuda.is_available():
        raise RuntimeError(
            f"resources.gpus asks for a GPU, but PyTorch {torch.__version__} sees none here "
            f"(CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', 'unset')}): install a CUDA build of torch "
            "(python -m orchestrator doctor shows which), or set resources.gpus = 0"
        )
    os.environ[WORKSPACE_VARIABLE] = WORKSPACE  # not the user's: it decides bits
    # As use_deterministic_algorithms(True, warn_only=True), which would import the compiler
    # (0.6 s).
    torch.set_deterministic_debug_mode("warn")
    # Slow, and of use only where a program reads it. (Torch makes it a property of the module.)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    device = torch.device("cuda", device.index or 0)
    name = torch.cuda.get_device_name(device)
    share = float(os.environ.get(GPU_SHARE_VARIABLE, "1"))
    total_mib = torch.cuda.get_device_properties(device).total_memory // MIB
    limit_mib = total_mib
    if share < 1:
        limit_mib = int(max(share * total_mib - OF_CUDA_MIB, share * total_mib / 2))
        torch.cuda.set_per_process_memory_fraction(limit_mib / total_mib, device)
    say(f"on {name}, of which torch may use {limit_mib:,} MiB")
