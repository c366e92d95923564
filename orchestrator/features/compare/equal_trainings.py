"""Which jobs are the same training with another seed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.ledger import JobRow


def start_policy(row: JobRow) -> str | None:
    """Return the SHA-256 (or name) of the policy that a training began with; None: random weights."""
    spec = row.job.spec
    return None if spec.init is None else spec.init_sha256 or spec.init


def training_but_for_seed(spec: WorkerSpec, policy: str | None) -> str:
    """Return a fingerprint that is equal for trainings that differ in their seed alone, and perhaps in
    their robot's files.

    :param policy: what it begins with.
    """
    alike = dataclasses.replace(spec, job_id="", seed=0, init=None, init_sha256=policy)
    return alike.fingerprint()


def identity_of_row(row: JobRow, *, from_nothing: bool) -> tuple[str, str | None]:
    """Return what is equal for jobs that differ in their seed alone, robots included.

    :param from_nothing: whatever they begin with.
    """
    policy = None if from_nothing else start_policy(row)
    return training_but_for_seed(row.job.spec, policy), row.robot_hash


def seeds_trained_otherwise(rows: Sequence[JobRow]) -> list[int]:
    """Return the seeds that differ from the first of ``rows`` in settings or robot. What each of them
    started from may differ.
    """
    first, *others = sorted(rows, key=lambda row: row.job.spec.seed)
    own = identity_of_row(first, from_nothing=True)
    return [row.job.spec.seed for row in others if identity_of_row(row, from_nothing=True) != own]
