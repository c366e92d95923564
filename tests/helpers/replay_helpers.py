"""Replay buffers with rows that say whose they are, and the checkpoints of trainings that have them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gymnasium
import numpy as np
import worker_helpers as helpers
from gymnasium import spaces
from stable_baselines3 import SAC
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.vec_env import DummyVecEnv

from orchestrator.core.paths import JobPaths
from orchestrator.worker.ranks.ranks import ALONE, Ranks
from orchestrator.worker.runtime.attempt_facts import AttemptFacts
from orchestrator.worker.runtime.progress import ProgressReporter
from orchestrator.worker.training.attempt import Attempt
from orchestrator.worker.training.checkpoint import Checkpoints
from orchestrator.worker.training.training_state import LoopState

BUFFER_ROWS = 4
N_ENVS = 2
"""Environments of all ranks together."""


class Training:
    """A training in ``directory`` that only writes checkpoints of ``buffer``."""

    def __init__(
        self,
        directory: Path,
        buffer: ReplayBuffer,
        ranks: Ranks = ALONE,
        before_writing: Callable[[], object] = lambda: None,
    ) -> None:
        spec = helpers.algorithm("sac", total_timesteps=84, n_envs=N_ENVS)
        venv = DummyVecEnv([lambda: gymnasium.make("Pendulum-v1")] * (N_ENVS // ranks.size))
        model = SAC("MlpPolicy", venv, buffer_size=2, policy_kwargs={"net_arch": [4]}, seed=1)
        model.replay_buffer = buffer
        facts = AttemptFacts(started=0.0)
        self.paths = JobPaths(directory)
        attempt = Attempt(
            spec=spec,
            paths=self.paths,
            model=model,
            facts=facts,
            reporter=ProgressReporter(None, facts),
            ranks=ranks,
            before_writing=before_writing,
        )
        self.model = model
        self.attempt = attempt
        self.checkpoints = Checkpoints(attempt)

    def save(self, rows: int) -> None:
        self.model.num_timesteps = rows * N_ENVS
        self.checkpoints.save(LoopState(iteration=rows))


def training_of(directory: Path, ranks: Ranks) -> tuple[Training, ReplayBuffer]:
    """A training of one environment of this rank."""
    box = spaces.Box(-1, 1, (2,), np.float32)
    buffer = ReplayBuffer(BUFFER_ROWS, box, box, n_envs=1)
    return Training(directory, buffer, ranks), buffer


def add(buffer: ReplayBuffer, rank: int, row: int) -> None:
    values = np.full((1, 2), number(rank, row), np.float32)
    buffer.add(values, values, values, values[0, :1], np.zeros(1), [{}])


def number(rank: int, row: int) -> float:
    return 1000.0 * rank + row


def held(buffer: ReplayBuffer) -> list[float]:
    return buffer.rewards[: buffer.size(), 0].tolist()
