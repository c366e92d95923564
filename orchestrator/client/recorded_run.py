"""The experiment of a run directory that is resumed without its job file: the jobs come from the
ledger, the robots from the job directories.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

from pydantic import TypeAdapter

from orchestrator.core.errors import RunDirError, SpecError
from orchestrator.core.files.regular_files import read_regular
from orchestrator.core.job import Cancelled, Failed, Succeeded
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import listed
from orchestrator.examination.preflight import JobVerdict
from orchestrator.experiment import resume_advice, run_directory
from orchestrator.experiment.begun_source import begun_source
from orchestrator.jobfile import Experiment, Order
from orchestrator.jobfile.toml_models import FEATURE_TABLES, JobFile
from orchestrator.keys.feature_tables import read_kept_tables
from orchestrator.keys.problems import Problems
from orchestrator.keys.value_types import MaxParallel
from orchestrator.ledger import JobRow
from orchestrator.server.verdicts import recorded_verdicts


def load(run_dir: Path) -> tuple[Experiment, Mapping[str, JobVerdict] | None]:
    """Return the experiment with all of its jobs, and their earlier verdicts: no robot is examined
    again. None: a job source goes on, whose examples are.

    :raises UsageError: a part is missing or damaged.
    """
    paths = run_directory.existing_run(run_dir)
    with run_directory.reading_ledger(paths) as ledger:
        if (source := begun_source(paths, ledger)) is not None:
            return source.declared(), None
        rows = [row for row in ledger.jobs() if row.state != Cancelled(is_undeclared=True)]
    _refuse_rungs(paths, rows)
    if not paths.experiment.exists():
        raise RunDirError(
            f"{paths.root}: this command has no job file to resume. {resume_advice.how_to_resume(paths)}"
        )
    try:
        top = tomllib.loads(read_regular(paths.experiment).decode("utf-8-sig"))
        if unknown := [name for name in top if name not in JobFile.model_fields]:
            raise ValueError(f"{unknown[0]}: unknown key")
        problems = Problems()
        tables = read_kept_tables(FEATURE_TABLES, top, problems)
        max_parallel = TypeAdapter(MaxParallel).validate_python(
            top.get("max_parallel", "auto"), strict=True
        )
        name = top.get("name")
        order = top.get("order", "longest-first")
        if not (isinstance(name, str) and order in get_args(Order)):
            raise ValueError("name or order is missing or wrong")
    except (OSError, ValueError) as error:
        advice = "run the job file, which replaces it"
        raise RunDirError(f"{paths.experiment}: cannot be read ({error}); {advice}") from error
    if problems:
        raise SpecError(str(paths.experiment), problems.in_order())
    experiment = Experiment(
        name=name,
        max_parallel=None if max_parallel == "auto" else max_parallel,
        order=order,
        skip_invalid=True,
        tables=tables,
        jobs=tuple(row.job for row in rows),
        source=str(run_dir),
        base=paths.root.absolute(),
        data=top,
    )
    return experiment, recorded_verdicts(rows)


def _refuse_rungs(paths: RunPaths, rows: Sequence[JobRow]) -> None:
    """:raises RunDirError: jobs pause to be compared with others, and nothing here compares them."""
    left = [row for row in rows if not isinstance(row.state, Succeeded | Failed | Cancelled)]
    if compared := [row.job_id for row in left if row.job.spec.pause_at is not None]:
        what = f"pause at rungs ({listed(compared)}), and what compares them there is missing"
        advice = "`run JOBS.toml` with the job file, or install the feature that began this run directory"
        raise RunDirError(f"{paths.root}: jobs {what}: {advice}")
