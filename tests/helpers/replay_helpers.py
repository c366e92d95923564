"""Replay buffers with rows that say whose they are, and the checkpoints of ranks that have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer

from orchestrator.core.paths import JobPaths
from orchestrator.worker.training.checkpoint import OF_EACH_RANK, CheckpointStore
from orchestrator.worker.training.replay import Replay

BUFFER_ROWS = 4
N_ENVS = 2
"""Environments of all ranks together."""


def store_of(directory: Path, rank: int) -> tuple[CheckpointStore, ReplayBuffer]:
    box = spaces.Box(-1, 1, (2,), np.float32)
    buffer = ReplayBuffer(BUFFER_ROWS, box, box, n_envs=1)
    replay = Replay(directory / JobPaths(Path()).replay(rank).name, buffer)
    return CheckpointStore(directory, "f", replay, N_ENVS), buffer


def add(buffer: ReplayBuffer, rank: int, row: int) -> None:
    values = np.full((1, 2), number(rank, row), np.float32)
    buffer.add(values, values, values, values[0, :1], np.zeros(1), [{}])


def number(rank: int, row: int) -> float:
    return 1000.0 * rank + row


def state_of(rank: Any) -> dict[str, Any]:
    return dict.fromkeys(OF_EACH_RANK, f"of rank {rank.rank}")


def held(buffer: ReplayBuffer) -> list[float]:
    return buffer.rewards[: buffer.size(), 0].tolist()
