"""Which job each job started from, and how many env_steps its policy had been trained for by then."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.core.paths import RunPaths
from orchestrator.core.worker_spec import INIT_JOB


def parent(run_dir: Path, spec: Mapping[str, Any]) -> str | None:
    """Return the job of ``run_dir`` whose policy a job started from, or None if there is none.

    :param spec: the declaration of the job that started from it.
    """
    init = spec["init"]
    if not isinstance(init, str):
        return None
    if init.startswith(INIT_JOB):
        return init.removeprefix(INIT_JOB)
    jobs = str(RunPaths(run_dir).jobs)
    path = os.path.normpath(init)
    for folder in (os.path.abspath(jobs), os.path.realpath(jobs)):  # noqa: PTH100
        if path.startswith(f"{folder}/"):
            job_id, _, file = path.removeprefix(f"{folder}/").partition("/")
            return job_id if file in ("", "model.zip") else None
    return None


def earlier_env_steps(init: str | None, init_env_steps: int | None) -> int | None:
    """Return the env_steps of all jobs that have trained the policy that a job started from: 0 for
    random weights, None if not known. The arguments are fields of its spec.
    """
    return 0 if init is None else init_env_steps


def env_steps_before(env_steps: int, lineage_env_steps: int | None) -> int | None:
    """env_steps for which a policy had been trained when its job started from it: 0 for random
    weights, None: not known. So it is true of jobs that are known to go on from another policy.

    :param env_steps: of the job, or of the jobs together.
    :param lineage_env_steps: as :attr:`.rows.SummaryRow.lineage_env_steps`.
    """
    return None if lineage_env_steps is None else lineage_env_steps - env_steps
