"""Resume a run directory without its job file: the jobs come from the ledger, the robots from the job directories."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

from pydantic import TypeAdapter

from orchestrator.core.errors import Problem, RunDirError
from orchestrator.core.job import Cancelled, Failed
from orchestrator.core.regular_files import read_regular
from orchestrator.experiment import run_directory
from orchestrator.experiment.preflight import JobVerdict
from orchestrator.jobfile import Experiment, Notify, Order
from orchestrator.jobfile.toml_models import NotifyTable
from orchestrator.jobfile.value_types import MaxParallel
from orchestrator.ledger import JobRow


def load(run_dir: Path) -> tuple[Experiment, Mapping[str, JobVerdict]]:
    """Every job of ``run_dir``, with the robot in its directory, and its earlier verdict: no robot is examined again.

    :raises UsageError: a part is missing or damaged.
    """
    paths = run_directory.existing(run_dir)
    with run_directory.reading_ledger(paths) as ledger:
        rows = [row for row in ledger.jobs() if row.state != Cancelled(is_undeclared=True)]
    try:
        top = tomllib.loads(read_regular(paths.experiment).decode("utf-8-sig"))
        notify = NotifyTable.model_validate(top.get("notify", {})).model_dump(exclude_unset=True)
        max_parallel = TypeAdapter(MaxParallel).validate_python(top.get("max_parallel", "auto"), strict=True)
        name, order = top.get("name"), top.get("order", "longest-first")
        if not (isinstance(name, str) and order in get_args(Order)):
            raise ValueError("name or order is missing or wrong")
    except (OSError, ValueError, RecursionError) as error:
        advice = "run the job file, which replaces it"
        raise RunDirError(f"{paths.experiment}: cannot be read ({error}); {advice}") from error
    experiment = Experiment(
        name=name,
        max_parallel=None if max_parallel == "auto" else max_parallel,
        order=order,
        skip_invalid=True,
        notify=Notify.from_table(notify),
        jobs=tuple(row.job for row in rows),
        source=str(run_dir),
        base=paths.root.absolute(),
    )
    return experiment, {row.job.job_id: _verdict(row) for row in rows}


def _verdict(row: JobRow) -> JobVerdict:
    job = row.job
    if isinstance(row.state, Failed) and not row.attempts:  # invalid, and never launched
        return JobVerdict(problem=Problem(where=f"jobs/{job.job_id}", message=row.state.message))
    return JobVerdict(problem=None, robot_hash=row.robot_hash)
