"""Trainings in the test's process have one thread, as workers have."""

from __future__ import annotations

import functools

import pytest
import torch
from mujoco.batch import Batch

from orchestrator.worker.envs import simulation

# More would mostly wait for each other: networks are tiny, and as many tests as CPUs run at once.
torch.set_num_threads(1)


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[Batch]:
    """Every batch of MuJoCo that the test makes."""
    made: list[Batch] = []

    @functools.wraps(Batch)
    def make(*arguments: object, **settings: object) -> Batch:
        made.append(Batch(*arguments, **settings))
        return made[-1]

    monkeypatch.setattr(simulation, "Batch", make)
    return made
