"""The request that declares an experiment to its supervisor."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

from orchestrator.core.errors import ChangedError, SpecError
from orchestrator.core.paths import RunPaths
from orchestrator.examination import side_by_side
from orchestrator.experiment import run_directory
from orchestrator.experiment.begun_source import begun_source
from orchestrator.jobfile import Experiment
from orchestrator.server.declaration import job_values
from orchestrator.server.differences import OnChange
from orchestrator.server.entering import Addition


def resumed(experiment: Experiment, run_dir: Path, *, fresh: bool = False) -> Experiment:
    """Return the experiment as it goes on in a run directory, with the warnings of what makes its
    jobs.

    :param fresh: whether the run starts over.
    :raises SpecError: what makes the jobs cannot begin.
    :raises ChangedError: something else has begun there.
    """
    source = experiment.job_source
    if source is None:
        return experiment
    verdict = source.examine(experiment, time_limit_s=side_by_side.TIME_LIMIT_S, turn=lambda: None)
    if verdict.problem is not None:
        raise SpecError(experiment.source, [verdict.problem])
    paths = RunPaths(run_dir)
    with contextlib.ExitStack() as stack:
        ledger = None
        if paths.ledger.exists() and not fresh:
            ledger = stack.enter_context(run_directory.reading_ledger(paths))
        experiment = source.resumed(experiment, ledger, paths)
    return dataclasses.replace(experiment, warnings=[*experiment.warnings, *verdict.warnings])


def is_underway(experiment: Experiment, run_dir: Path) -> bool:
    """Return whether what makes the jobs of an experiment is what has begun in a run directory."""
    source = experiment.job_source
    paths = RunPaths(run_dir)
    if source is None or not paths.ledger.exists():
        return False
    try:
        with run_directory.reading_ledger(paths) as ledger:
            source.resumed(experiment, ledger, paths)
            return begun_source(paths, ledger) is not None
    except ChangedError:
        return False


def addition_of(experiment: Experiment, on_change: OnChange) -> Addition:
    """Return the request that declares all jobs of an experiment, or what makes them.

    :param experiment: as :func:`resumed` returns it.
    """
    has_source = experiment.job_source is not None
    addition = Addition(
        on_change=on_change,
        skip_invalid=experiment.skip_invalid,
        order=experiment.order,
        source=experiment.source,
        text=None if experiment.text is None else experiment.text.decode("utf-8-sig"),
        labels={str(path): robot.label for path, robot in experiment.unnamed.items()},
        declaration=experiment.declaration if has_source else None,
    )
    if experiment.makes_jobs:
        examples = [job_values(job) for job in experiment.jobs_to_examine]
        return dataclasses.replace(addition, as_it_is=True, examples=examples)
    jobs = [job_values(job) for job in experiment.jobs]
    return dataclasses.replace(addition, whole=True, jobs=jobs)
