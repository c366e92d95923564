"""Where tests of a GPU run, and what their environments note of it.

Where there is no GPU, ``GPU_TESTS_ON_CPU=1 python -m pytest tests/gpu`` runs their bodies on the
CPU.
"""

from __future__ import annotations

import functools
import os
import warnings
from pathlib import Path
from typing import Any

import pytest

GPU = pytest.param("cuda", marks=pytest.mark.gpu)
ON_GPU = ["cpu", GPU] if os.environ.get("GPU_TESTS_ON_CPU") == "1" else [GPU]
"""For a test that takes long: devices that it is run on."""
ON_BOTH = ["cpu", GPU]

CODE = '''
import json, os, pathlib, time
import gymnasium
import numpy as np
import torch

NUMBERS = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
IMAGES = gymnasium.spaces.Box(0, 255, (36, 36, 3), np.uint8)
MOTOR = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
KEYS = gymnasium.spaces.Discrete(3)


class Noted(gymnasium.Env):
    """Notes in ``seen.json`` what the process has of a GPU. With HOLD in the environment, it stops at step HOLD."""

    def __init__(self, observations, actions):
        self.observation_space, self.action_space, self.count = observations, actions, 0

    def observation(self):
        if len(self.observation_space.shape) == 3:
            return self.np_random.integers(0, 256, IMAGES.shape, np.uint8)
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation(), {}

    def step(self, action):
        self.count += 1
        if self.count == 1:
            pathlib.Path(FOLDER, "seen.json").write_text(json.dumps(seen()))
        if self.count == int(os.environ.get("HOLD", "0")):
            time.sleep(600)
        observation = self.observation()
        return observation, float(np.sum(action) * observation.mean()), False, self.count % 16 == 0, {}


FOLDER = os.getcwd()


def seen():
    on_gpu = torch.cuda.is_initialized()
    return {
        "device": "cuda" if on_gpu else "cpu",
        "deterministic": torch.get_deterministic_debug_mode(),
        "workspace": os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "fraction": torch.cuda.get_per_process_memory_fraction(0) if on_gpu else None,
    }


def numbers(xml=None, seed=0):
    return Noted(NUMBERS, MOTOR)


def keys(xml=None, seed=0):
    return Noted(NUMBERS, KEYS)


def images(xml=None, seed=0):
    return Noted(IMAGES, MOTOR)


class Hoard(Noted):
    """Takes a two-hundredth of the GPU's memory with every step, and keeps it."""

    def __init__(self):
        super().__init__(NUMBERS, MOTOR)
        self.held = []

    def step(self, action):
        size = torch.cuda.get_device_properties(0).total_memory // 200
        self.held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        pathlib.Path(FOLDER, "held").write_text(str(len(self.held) / 200))
        return super().step(action)


def hoard(xml=None, seed=0):
    return Hoard()


class Meeting(Noted):
    """Goes on at its first step once the other job has come so far too."""

    def __init__(self, job, other):
        super().__init__(NUMBERS, MOTOR)
        self.job, self.other = job, other

    def step(self, action):
        if self.count == 0 and "ORCHESTRATOR_TOKEN" in os.environ:  # not in the examination before
            here = pathlib.Path(__file__).parent
            (here / self.job).write_text(json.dumps(seen()))
            while not (here / self.other).exists():
                time.sleep(0.05)
        return super().step(action)


def meeting(xml=None, seed=0, job="", other=""):
    return Meeting(job, other)
'''


@functools.cache
def why_no_gpu() -> str:
    """Why tests of a GPU cannot run here; empty: they can."""
    import torch

    from orchestrator.machine.gpu import detect_gpus

    with warnings.catch_warnings():  # torch warns of drivers that it cannot use
        warnings.simplefilter("ignore")
        is_there = torch.cuda.is_available()
    if not is_there:
        return f"PyTorch {torch.__version__} sees no CUDA device"
    return "" if detect_gpus() else "nvidia-smi lists no GPU, or is missing"


def write_module(folder: Path) -> str:
    """Write the environments as module ``noted`` into ``folder``; returns the folder as a search
    path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "noted.py").write_text(CODE)
    return str(folder)


def resources(device: str, gpus: float) -> dict[str, Any]:
    """``resources`` of a job that trains on ``device``."""
    return {"memory": "8 GiB", "gpus": gpus} if device == "cuda" else {"memory": "1 GiB"}
