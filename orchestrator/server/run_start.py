"""What is decided, said and recorded at the start of a run."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.core.front_end import option
from orchestrator.core.job import TERMINAL
from orchestrator.core.paths import RunPaths
from orchestrator.executors.executor import OpenedExecutor
from orchestrator.executors.kinds import kind_named
from orchestrator.experiment.planning import run_executor
from orchestrator.experiment.planning.run_plan import RunOptions, restriction
from orchestrator.experiment.planning.start_conditions import StartConditions
from orchestrator.jobfile.toml_models import FEATURE_TABLES
from orchestrator.keys.feature_tables import read_kept_tables
from orchestrator.keys.problems import Problems
from orchestrator.ledger import JobRow
from orchestrator.machine import imported_code, provenance
from orchestrator.machine.gpu import detect_gpus
from orchestrator.machine.topology import Machine
from orchestrator.server.jobs import Report
from orchestrator.server.settings import RunSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenExecutor:
    """The executor of a run."""

    name: str
    options: Mapping[str, str]
    reason: str
    """Why the jobs run elsewhere if the command does not say so; otherwise empty."""


def choose_executor(paths: RunPaths, settings: RunSettings) -> ChosenExecutor:
    """Return the executor that is asked for, else that of the run before.

    :raises RunDirError: batch jobs are left, and another executor is asked for.
    :raises UsageError: there is no such executor.
    """
    asked = RunOptions(
        run_dir=paths.root,
        fresh=settings.fresh,
        executor=settings.executor,
        executor_options=settings.executor_options,
    )
    taken = run_executor.of_claimed(asked, paths)
    return ChosenExecutor(
        name=kind_named(taken.executor or "local").name,
        options=taken.executor_options,
        reason=run_executor.explanation(asked, taken),
    )


def read_tables(settings: RunSettings) -> Mapping[str, Any]:
    """Return what the tables of features mean that the client has sent."""
    return read_kept_tables(FEATURE_TABLES, settings.tables, Problems())


def report_start(
    report: Report,
    settings: RunSettings,
    executor: ChosenExecutor,
    machine: Machine,
    aside: Path | None,
) -> None:
    """Say how the run differs from what its user may expect.

    :param aside: where the earlier run directory is now; None if there was none, or it goes on.
    """
    if aside is not None:
        text = f"starts over; the earlier run directory is now {aside}"
        report("fresh", text, aside=str(aside))
    if executor.reason:
        report("chosen", executor.reason, executor=executor.name)
    if settings.until is not None:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(settings.until))
        text = (
            f"everything ends by {when} ({option('until')}): the jobs are asked to stop"
            f" {settings.grace_s:g} s before that"
        )
        report("until", text, until=settings.until)
    if executor.name == "local" and (restricted := restriction(machine)):
        report("restricted", restricted)
    for warning in settings.warnings:
        report("warning", warning)


def record_provenance(
    paths: RunPaths,
    settings: RunSettings,
    opened: OpenedExecutor,
    machine: Machine,
    repository: provenance.Repository,
    executor: ChosenExecutor,
    rows: Sequence[JobRow],
    report: Report,
) -> None:
    """Record what results come from, and warn of what has changed since the run before."""
    if any(row.job.resources.gpus for row in rows):
        machine = dataclasses.replace(machine, gpus=detect_gpus())
    started_with = StartConditions.of(
        settings.asked_max_parallel, settings.grace_s, settings.until, machine
    )
    changed = provenance.record(
        paths,
        experiment=settings.name,
        command=settings.command,
        thread_variables=settings.thread_variables,
        machine=machine,
        jobs_at_once=opened.jobs_at_once,
        repository=repository,
        started_with=started_with.facts(),
        backend={**executor.options, **opened.facts()},
        user_code=imported_code.digests([row.job for row in rows]),
        declared=settings.declared_by,
        resumed_by=settings.resumed_by,
    )
    has_trained = any(row.attempts for row in rows)
    goes_on = any(row.state.name not in TERMINAL for row in rows)
    if changed and has_trained and goes_on:
        text = (
            f"changed since the run before: {'; '.join(changed)}. What is trained from here on may"
            " have other bits than without these changes."
        )
        report("warning", text, changed=changed)
