"""What one attempt trains, and whom it tells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.core.paths import JobPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.worker.ranks.ranks import ALONE, Ranks
from orchestrator.worker.runtime.attempt_facts import AttemptFacts
from orchestrator.worker.runtime.progress import ProgressReporter
from orchestrator.worker.training.algorithms import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt at a job, on one of its ranks, from the moment when it has a model."""

    spec: WorkerSpec
    paths: JobPaths
    model: Model
    facts: AttemptFacts
    reporter: ProgressReporter
    ranks: Ranks = ALONE
    before_writing: Callable[[], object] = lambda: None
    """Called before anything in the job's directory changes."""

    @property
    def is_trained(self) -> bool:
        return self.model.num_timesteps >= self.spec.total_timesteps
